"""Draw attention and token losses at every validation, and write the token embedding at the end of a run."""

import math
from pathlib import Path
from typing import Annotated

import lightning as L
import numpy as np
import torch
from pydantic import Field, PositiveInt, validate_call
from torch import Tensor

from gptmini.data.batches import NOT_COUNTED
from gptmini.data.ids import without_marks
from gptmini.model import GPT, ModelSettings
from gptmini.report.tables import visible
from gptmini.settings import STRICT
from gptmini.tokenizer import REPLACEMENT, from_dict
from gptmini.training.callbacks.token_losses import TokenLosses, joined, mispredicted
from gptmini.training.devices import distributed
from gptmini.training.loggers.logger import print_line, run_loggers
from gptmini.training.module import GPTModule
from gptmini.user_error import UserError

# Maximum number of token losses to keep from a validation. These losses take 30 MB. More losses would hardly change the
# images.
MOST_TOKENS = 2**20
# Maximum number of attention maps in one image. matplotlib draws at most 2^16 pixels per side.
MOST_MAPS = 256

# TensorBoard's projector looks for an embedding in this folder inside the run folder.
ASSETS = Path("plugins", "org_tensorflow_tensorboard_projector")

# Indices of layers or heads. Negative indices count from the end.
Numbers = Annotated[list[int], Field(min_length=1)]


class Pictures(L.Callback):
    """A callback that draws attention and token losses at every validation, and writes the token embedding at the end.

    Every RunLogger receives the images and a table of mispredicted tokens. If the run has no RunLogger, this callback
    does not draw images. The images of token losses cover the first million tokens that the first process evaluates.
    The embedding is written into the run folder, so that TensorBoard's projector can show it.

    Args:
        layers, heads: the layers and the heads whose attention is drawn; None for all layers or all heads.
        text: text for the attention maps; None for the start of the held-out text.
        max_tokens: maximum number of rows and columns of an attention map. The text is cut to this number of tokens.
        embedding_tokens: maximum number of rows of the embedding. The rows belong to the tokens with the lowest ids.
    """

    @validate_call(config=STRICT)
    def __init__(
        self,
        *,
        layers: Numbers | None,
        heads: Numbers | None,
        text: Annotated[str, Field(min_length=1)] | None,
        max_tokens: PositiveInt,
        embedding_tokens: PositiveInt,
    ) -> None:
        self.layers = layers
        self.heads = heads
        self.text = text
        self.max_tokens = max_tokens
        self.embedding_tokens = embedding_tokens
        self._batches: list[TokenLosses] = []  # batches of the current validation

    def setup(self, trainer: L.Trainer, pl_module: GPTModule, stage: str) -> None:
        """Load the tokenizer of the run. Raise UserError if it cannot encode the text for the attention maps."""
        self.tokenizer = from_dict(pl_module.store.tokenizer_state)
        self.ids = None if self.text is None else self.tokenizer.encode(self.text)

    def check(self, config: ModelSettings) -> None:
        """Raise UserError unless the model has all chosen layers and heads, and all maps fit into one image."""
        n_maps = 1
        chosen = {"layers": (self.layers, config.n_layers), "heads": (self.heads, config.n_heads)}
        for name, (numbers, n) in chosen.items():
            if any(not -n <= number < n for number in numbers or ()):
                raise UserError(
                    f"callbacks.pictures.{name} must be from {-n} to {n - 1} in this model, "
                    f"got {numbers}"
                )
            n_maps *= len(numbers or range(n))
        if n_maps > MOST_MAPS:
            raise UserError(
                f"callbacks.pictures can draw at most {MOST_MAPS} attention maps, got {n_maps}; "
                "set fewer callbacks.pictures.layers or callbacks.pictures.heads"
            )

    def on_validation_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Discard the token losses of the last validation."""
        self._batches = []

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: GPTModule,
        outputs: tuple[Tensor, Tensor],
        batch: tuple[Tensor, Tensor],
        batch_idx: int,
    ) -> None:
        """On the first process, keep the token losses of a batch, unless MOST_TOKENS losses are already kept."""
        n_kept = sum(len(kept.losses) for kept in self._batches)
        is_shown = trainer.is_global_zero and run_loggers(trainer)
        if not is_shown or n_kept >= MOST_TOKENS:
            return

        losses, likeliest = outputs  # (B, T) each
        _, targets = batch  # (B, T)
        is_scored = (targets != NOT_COUNTED).cpu()  # (B, T)
        positions = torch.arange(losses.size(1)).expand(losses.shape)  # (B, T)
        kept = TokenLosses(
            losses=losses.cpu()[is_scored].numpy(),  # (n,); the other arrays have the same shape
            positions=positions[is_scored].numpy(),
            targets=targets.cpu()[is_scored].numpy(),
            likeliest=likeliest.cpu()[is_scored].numpy(),
        )
        self._batches.append(kept)

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Draw and log attention and token losses, if a logger accepts images and the loss is finite."""
        loss = pl_module.latest_evaluation.loss
        if not run_loggers(trainer) or not math.isfinite(loss):
            return
        model = pl_module.full_model()
        if model is None:
            return
        from gptmini.report import drawing  # importing matplotlib takes half a second

        step = trainer.global_step
        maps, labels = self._attention(model, pl_module)
        found = joined(self._batches)
        self._batches = []  # free 30 MB before training continues
        if not found.losses.size:  # with loss_on=answers, this rank may have no counted token
            return
        figures = {
            "attention": drawing.attention_maps(maps, labels, f"attention at step {step}"),
            "loss_by_position": drawing.loss_by_position(
                found.losses,
                found.positions,
                f"validation loss by position, step {step}, mean {loss:.4f}",
            ),
            "loss_histogram": drawing.loss_histogram(
                found.losses, f"validation loss token by token, step {step}"
            ),
        }

        images = {name: drawing.png(figure) for name, figure in figures.items()}
        table = mispredicted(found, self._label)
        for logger in run_loggers(trainer):
            for name, image in images.items():
                logger.log_image(f"zoom/{name}", image, step)
            logger.log_table("zoom/mispredicted", table, step)

    def on_train_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Write the token embedding for TensorBoard's projector, on the first process."""
        matrix = distributed.gathered(pl_module.model.embedding.weight.detach())  # (V padded, C)
        if not trainer.is_global_zero:
            return

        n_tokens = min(self.embedding_tokens, self.tokenizer.n_vocab)
        matrix = matrix[:n_tokens].float().cpu()  # (n_tokens, C)
        labels = [self._label(token) for token in range(n_tokens)]
        try:
            write_embedding(matrix, labels, Path(trainer.default_root_dir))
        except OSError as error:
            print_line(trainer, f"cannot write the token embedding: {error}")

    def _attention(
        self, model: GPT, pl_module: GPTModule
    ) -> tuple[dict[tuple[int, int], np.ndarray], list[str]]:
        """Return the attention weights of each head, and the labels of the T tokens.

        The attention weights are arrays (T, T). Their keys are pairs (layer, head). Layers and heads are counted from
        0.
        """
        n_tokens = min(self.max_tokens, model.config.context_length)
        ids = self.ids
        if ids is None:
            ids = without_marks(pl_module.store.tokens("val")[:n_tokens]).tolist()
        ids = ids[:n_tokens]

        layers = self.layers or range(model.config.n_layers)
        heads = self.heads or range(model.config.n_heads)
        tokens = torch.tensor([ids], device=pl_module.device)  # (1, T)
        weights = model.attention_weights(tokens, layers)  # (L, 1, H, T, T)
        weights = weights[:, 0].float().cpu().numpy()  # (L, H, T, T)

        maps = {}
        for layer, weights_of_heads in zip(layers, weights, strict=True):
            for head in heads:
                # The modulo operation turns -1 into the index of the last layer or the last head.
                place = (layer % model.config.n_layers, head % model.config.n_heads)
                maps[place] = weights_of_heads[head]  # (T, T)
        labels = [self._label(token) for token in ids]
        return maps, labels

    def _label(self, token: int) -> str:
        """Return the text of a token, or the id of the token if the token is only part of a character."""
        text = self.tokenizer.decode([token])
        if not text or REPLACEMENT in text:
            return f"#{token}"
        return text


def write_embedding(matrix: Tensor, labels: list[str], run: Path) -> None:
    """Write an embedding for TensorBoard's projector.

    Args:
        matrix: the embedding of n tokens, (n, C).
        labels: the texts or the ids of the n tokens.
        run: the run folder.

    Raises OSError if the files cannot be written.
    """
    from tensorboard.plugins.projector import ProjectorConfig

    folder = run / ASSETS
    folder.mkdir(parents=True, exist_ok=True)
    np.savetxt(folder / "embedding.tsv", matrix.numpy(), fmt="%.4g", delimiter="\t")
    lines = [visible(label) + "\n" for label in labels]
    (folder / "tokens.tsv").write_text("".join(lines), encoding="utf-8")

    config = ProjectorConfig()
    config.embeddings.add(
        tensor_name="token embedding",
        tensor_path="embedding.tsv",
        metadata_path="tokens.tsv",
    )
    (folder / "projector_config.pbtxt").write_text(str(config), encoding="utf-8")
