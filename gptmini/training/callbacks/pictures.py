"""Draw attention at every validation."""

import math
from typing import Annotated

import lightning as L
import numpy as np
import torch
from pydantic import Field, PositiveInt, validate_call

from gptmini import report
from gptmini.data import without_marks
from gptmini.model import GPT, ModelSettings
from gptmini.settings import STRICT
from gptmini.system.errors import UserError
from gptmini.tokenizer import REPLACEMENT
from gptmini.training.devices.distributed import full_model
from gptmini.training.loggers.logger import run_loggers
from gptmini.training.module import GPTModule

# Maximum number of attention maps in one image. matplotlib draws at most 2^16 pixels per side.
MOST_MAPS = 256

# Indices of layers or heads. Negative indices count from the end.
Numbers = Annotated[list[int], Field(min_length=1)]


class Pictures(L.Callback):
    """A callback that draws attention at every validation, for every RunLogger of the run.

    Args:
        layers, heads: the layers and the heads whose attention is drawn; None for all layers or all heads.
        text: text for the attention maps; None for the start of the held-out text.
        max_tokens: maximum number of rows and columns of an attention map. The text is cut to this number of tokens.
    """

    @validate_call(config=STRICT)
    def __init__(
        self,
        *,
        layers: Numbers | None,
        heads: Numbers | None,
        text: Annotated[str, Field(min_length=1)] | None,
        max_tokens: PositiveInt,
    ) -> None:
        self.layers = layers
        self.heads = heads
        self.text = text
        self.max_tokens = max_tokens

    def setup(self, trainer: L.Trainer, pl_module: GPTModule, stage: str) -> None:
        """Load the tokenizer of the run. Raise UserError if it cannot encode the text for the attention maps."""
        self.tokenizer = pl_module.store.tokenizer
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
                "choose fewer layers or heads"
            )

    def on_validation_end(self, trainer: L.Trainer, pl_module: GPTModule) -> None:
        """Draw and log attention, if a logger accepts images and the loss is finite."""
        if not run_loggers(trainer) or not math.isfinite(pl_module.evaluation.loss):
            return
        model = full_model(pl_module.model, keep=trainer.is_global_zero)
        if model is None:
            return
        step = trainer.global_step
        maps, labels = self._attention(model, pl_module)
        image = report.png(report.attention_maps(maps, labels, f"attention at step {step}"))
        for logger in run_loggers(trainer):
            logger.log_entry("zoom/attention", image, step)

    def _attention(
        self, model: GPT, pl_module: GPTModule
    ) -> tuple[dict[tuple[int, int], np.ndarray], list[str]]:
        """Return the attention weights (T, T) by (layer, head), counted from 0, and the labels of the T tokens."""
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
