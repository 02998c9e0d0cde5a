"""What a run shows in pictures: attention and token losses at every validation, the embedding at the end."""

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
from gptmini.training.loggers.logger import run_loggers, say
from gptmini.training.module import GPTModule
from gptmini.user_error import UserError

# Tokens of a validation whose losses are kept, in 30 MB; more would hardly change the pictures.
MOST_TOKENS = 2**20
MOST_MAPS = 256  # in one image; matplotlib draws at most 2^16 pixels a side

# Folder inside a run's folder in which TensorBoard's projector looks for an embedding.
ASSETS = Path("plugins", "org_tensorflow_tensorboard_projector")

# Layers or heads, counted from 0, or backwards from -1.
Numbers = Annotated[list[int], Field(min_length=1)]


class Pictures(L.Callback):
    """Draws attention and token losses at every validation, and writes the token embedding at the end of the run.

    The images and a table of mispredicted tokens go to every RunLogger; without one, none is drawn. Token losses are
    those of the first million tokens that the first process evaluates. The embedding is written into the folder of the
    run, where TensorBoard's projector finds it.
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
        """Choose what is shown.

        Args:
            layers, heads: whose attention is drawn; None for all.
            text: over which attention is drawn; None for the beginning of the held-out text.
            max_tokens: rows and columns of an attention map; the text is cut to so many tokens.
            embedding_tokens: rows of the embedding: those of the lowest ids.
        """
        self.layers = layers
        self.heads = heads
        self.text = text
        self.max_tokens = max_tokens
        self.embedding_tokens = embedding_tokens
        self._batches: list[TokenLosses] = []  # of the running validation

    def setup(self, trainer: L.Trainer, pl_module: GPTModule, stage: str) -> None:
        """Take the tokenizer of the run's text; UserError if the text to draw attention over cannot be encoded."""
        self.tokenizer = from_dict(pl_module.store.tokenizer_state)
        self.ids = None if self.text is None else self.tokenizer.encode(self.text)

    def check(self, config: ModelSettings) -> None:
        """Raise UserError unless the model has the chosen layers and heads, and one image can hold all their maps."""
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
                f"callbacks.pictures must draw at most {MOST_MAPS} maps, got {n_maps}; "
                "choose layers, heads"
            )

    def on_validation_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Forget the token losses of the last validation."""
        self._batches = []

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: GPTModule,
        outputs: tuple[Tensor, Tensor],
        batch: tuple[Tensor, Tensor],
        batch_idx: int,
    ) -> None:
        """Keep the losses of a batch's tokens, on the first process and until there are MOST_TOKENS."""
        n_kept = sum(len(kept.losses) for kept in self._batches)
        is_shown = trainer.is_global_zero and run_loggers(trainer)
        if not is_shown or n_kept >= MOST_TOKENS:
            return

        losses, likeliest = outputs  # (B, T) each
        _, targets = batch  # (B, T)
        is_scored = (targets != NOT_COUNTED).cpu()  # (B, T)
        positions = torch.arange(losses.size(1)).expand(losses.shape)  # (B, T)
        kept = TokenLosses(
            losses=losses.cpu()[is_scored].numpy(),  # (n,), like the others
            positions=positions[is_scored].numpy(),
            targets=targets.cpu()[is_scored].numpy(),
            likeliest=likeliest.cpu()[is_scored].numpy(),
        )
        self._batches.append(kept)

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Draw and log attention and token losses, unless no logger takes images or the loss is not finite."""
        loss = pl_module.newest_evaluation.loss
        if not run_loggers(trainer) or not math.isfinite(loss):
            return
        model = pl_module.whole_model()
        if model is None:
            return
        from gptmini.report import drawing  # matplotlib takes half a second

        step = trainer.global_step
        maps, labels = self._attention(model, pl_module)
        found = joined(self._batches)
        self._batches = []  # 30 MB that training need not carry along
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
            say(trainer, f"the token embedding was not written: {error}")

    def _attention(
        self, model: GPT, pl_module: GPTModule
    ) -> tuple[dict[tuple[int, int], np.ndarray], list[str]]:
        """Attention weights (T, T) by (layer, head), both counted from 0, and the labels of the T tokens."""
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
                # The remainder turns -1 into the number of the last layer or head.
                place = (layer % model.config.n_layers, head % model.config.n_heads)
                maps[place] = weights_of_heads[head]  # (T, T)
        labels = [self._label(token) for token in ids]
        return maps, labels

    def _label(self, token: int) -> str:
        """A token's text, or its id where the token is only a part of a character."""
        text = self.tokenizer.decode([token])
        if not text or REPLACEMENT in text:
            return f"#{token}"
        return text


def write_embedding(matrix: Tensor, labels: list[str], run: Path) -> None:
    """Write an embedding where TensorBoard's projector finds it; OSError if the disk does not take the files.

    Args:
        matrix: embedding of n tokens, (n, C).
        labels: texts of the n tokens, or their ids.
        run: the run's folder.
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
