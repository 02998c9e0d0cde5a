"""What a run shows in pictures: attention and token losses at every validation, the embedding at the end."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor

from gptmini.checks import UserError, whole
from gptmini.model import GPTConfig
from gptmini.tokenizer import REPLACEMENT, Tokenizer
from gptmini.training.module import GPTModule
from gptmini.training.monitoring.logger import say, takers

MOST_TOKENS = 2**20  # whose losses are kept, 30 MB; more would change no picture
MOST_MAPS = 256  # in one image; matplotlib draws at most 2^16 pixels
COSTLIEST = 25  # rows of the table of mispredicted tokens
ASSETS = Path("plugins", "org_tensorflow_tensorboard_projector")  # where TensorBoard's projector looks in a run


class TokenLosses(NamedTuple):
    """What a validation found token by token, (n_tokens,) each."""

    losses: np.ndarray  # nats
    positions: np.ndarray  # in their windows
    targets: np.ndarray  # ids
    likeliest: np.ndarray  # the id that the model held likeliest in the target's place


class Pictures(L.Callback):
    """Draws for every logger with log_image(tag, image, step) and log_table(tag, table, step).

    Token losses are of the first million tokens that the first rank evaluated.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        layers: list[int] | None,
        heads: list[int] | None,
        text: str | None,
        max_tokens: int,
        embedding_tokens: int,
    ) -> None:
        """Choose what is shown.

        Args:
            tokenizer: of the run.
            layers, heads: whose attention, counted from 0, or from -1 backwards; None for all.
            text: over which, its first max_tokens; None for the beginning of the held-out text.
            max_tokens: rows and columns of an attention map.
            embedding_tokens: rows of the embedding, those with the lowest ids.

        Raises UserError: a value of the wrong type, or a text that cannot be encoded.
        """
        for name, numbers in (("layers", layers), ("heads", heads)):
            fits = isinstance(numbers, list) and numbers and all(type(number) is int for number in numbers)
            if numbers is not None and not fits:
                raise UserError(f"{name} must be a list of whole numbers, or null for all, got {numbers!r}")
        if text is not None and (type(text) is not str or not text):
            raise UserError(f"text must be some text, or null for the beginning of the held-out text, got {text!r}")

        self.tokenizer = tokenizer
        self.layers = layers
        self.heads = heads
        self.max_tokens = whole("max_tokens", max_tokens)
        self.embedding_tokens = whole("embedding_tokens", embedding_tokens)
        self.ids = None if text is None else tokenizer.encode(text)
        self._batches: list[TokenLosses] = []

    def check(self, config: GPTConfig) -> None:
        """Raise UserError unless the model has these layers and heads."""
        for name, numbers, n in (("layers", self.layers, config.n_layers), ("heads", self.heads, config.n_heads)):
            if any(not -n <= number < n for number in numbers or ()):
                raise UserError(f"callbacks.pictures.{name} must be from {-n} to {n - 1} in this model, got {numbers}")
        n_maps = len(self.layers or range(config.n_layers)) * len(self.heads or range(config.n_heads))
        if n_maps > MOST_MAPS:
            raise UserError(
                f"callbacks.pictures must draw at most {MOST_MAPS} maps, got {n_maps}; choose layers, heads"
            )

    def on_validation_start(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Begin to keep what tokens cost."""
        self._batches = []

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: GPTModule, outputs: tuple, batch: tuple, batch_idx: int
    ) -> None:
        """Keep what each token cost, of as many as change the pictures."""
        losses, likeliest = outputs
        if not trainer.is_global_zero or sum(len(kept.losses) for kept in self._batches) >= MOST_TOKENS:
            return
        positions = torch.arange(losses.size(1)).expand(losses.shape)
        columns = (losses, positions, batch[1], likeliest)
        self._batches.append(TokenLosses(*(column.flatten().cpu().numpy() for column in columns)))

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Draw attention and token losses."""
        if not trainer.is_global_zero or not math.isfinite(pl_module.evaluation.loss):
            return
        from gptmini.report import drawing  # matplotlib takes half a second

        step, loss = trainer.global_step, pl_module.evaluation.loss
        maps, labels = self._attention(pl_module)
        found = TokenLosses(*map(np.concatenate, zip(*self._batches, strict=True)))
        self._batches = []
        images = {
            "attention": drawing.attention_maps(maps, labels, f"attention at step {step}"),
            "loss_by_position": drawing.loss_by_position(
                found.losses, found.positions, f"validation loss by position, step {step}, mean {loss:.4f}"
            ),
            "loss_histogram": drawing.loss_histogram(found.losses, f"validation loss token by token, step {step}"),
        }
        for logger in takers(trainer, "log_image"):
            for name, figure in images.items():
                logger.log_image(f"zoom/{name}", drawing.pixels(figure), step)
        for logger in takers(trainer, "log_table"):
            logger.log_table("zoom/mispredicted", mispredicted(found, self._label), step)

    def on_train_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Leave the token embedding for TensorBoard's projector."""
        n_tokens = min(self.embedding_tokens, self.tokenizer.n_vocab)
        if trainer.is_global_zero:
            matrix = pl_module.model.embedding.weight.detach()[:n_tokens].float().cpu()  # (n_tokens, C)
            try:
                write_embedding(matrix, [self._label(i) for i in range(n_tokens)], Path(trainer.default_root_dir))
            except OSError as error:
                say(trainer, f"the embedding's picture was not written: {error.strerror}")

    def _attention(self, pl_module: GPTModule) -> tuple[dict[tuple[int, int], np.ndarray], list[str]]:
        """Weights (T, T) by layer and head, and the tokens' labels."""
        config, ids = pl_module.model.config, self.ids
        n_tokens = min(self.max_tokens, config.context_length)
        ids = (pl_module.store.tokens("val")[:n_tokens].tolist() if ids is None else ids)[:n_tokens]
        layers, heads = self.layers or range(config.n_layers), self.heads or range(config.n_heads)
        weights = pl_module.model.attention_weights(torch.tensor([ids], device=pl_module.device), layers)
        weights = weights[:, 0].float().cpu().numpy()  # (L, H, T, T)
        named = (
            (i, layer % config.n_layers, head % config.n_heads) for i, layer in enumerate(layers) for head in heads
        )
        return {(layer, head): weights[i, head] for i, layer, head in named}, [self._label(token) for token in ids]

    def _label(self, token: int) -> str:
        text = self.tokenizer.decode([token])
        return f"#{token}" if REPLACEMENT in text or not text else text  # part of a character


def mispredicted(found: TokenLosses, label: Callable[[int], str]) -> list[list[str]]:
    """Rows on the tokens that cost most in all, under a row of headings; label gives the text of an id."""
    from gptmini.report.drawing import visible

    counts, costs = np.bincount(found.targets), np.bincount(found.targets, weights=found.losses)
    hits = np.bincount(found.targets, weights=found.targets == found.likeliest)
    rows = [["token", "times", "right", "mean loss, nats", "share of all loss", "likeliest when wrong"]]
    for token in np.argsort(-costs)[:COSTLIEST]:
        if not counts[token]:
            break
        wrong = np.bincount(found.likeliest[(found.targets == token) & (found.likeliest != token)])
        instead = visible(label(int(wrong.argmax()))) if len(wrong) else ""
        share, mean = costs[token] / costs.sum(), costs[token] / counts[token]
        right = f"{hits[token] / counts[token]:.0%}"
        rows.append([visible(label(int(token))), f"{counts[token]:,}", right, f"{mean:.2f}", f"{share:.1%}", instead])
    return rows


def write_embedding(matrix: Tensor, labels: list[str], run: Path) -> None:
    """Write rows (n, C) and their labels where the projector finds them; OSError if the disk does not take them."""
    from tensorboard.plugins.projector import ProjectorConfig

    from gptmini.report.drawing import visible

    folder = run / ASSETS
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "embedding.tsv").open("w", encoding="utf-8") as file:
        for row in matrix:
            file.write("\t".join(f"{number:.4g}" for number in row.tolist()) + "\n")
    (folder / "tokens.tsv").write_text("\n".join(map(visible, labels)) + "\n", encoding="utf-8")
    config = ProjectorConfig()
    config.embeddings.add(tensor_name="token embedding", tensor_path="embedding.tsv", metadata_path="tokens.tsv")
    (folder / "projector_config.pbtxt").write_text(str(config), encoding="utf-8")
