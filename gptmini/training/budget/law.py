"""The scaling law that budget= uses. The law depends on the size of the text and on the size of the model."""

import math
from typing import NamedTuple

from gptmini.data import TokenStore
from gptmini.model import GPTConfig, meta_gpt
from gptmini.training.recipe import BYTES_OF_PAIRS, suitable_vocabulary

# Passes after which one more pass over a text is worth 1 / e of the first. Source: R*_D of Muennighoff et al. 2023,
# "Scaling Data-Constrained Language Models".
PASSES_OF_WORTH = 15.4


class TextSize(NamedTuple):
    """The size of a training text in bytes and tokens."""

    n_bytes: int
    n_vocab: int
    bytes_per_token: float

    @classmethod
    def in_pairs(cls, n_bytes: int, width: int) -> "TextSize":
        """Estimate the number of tokens of a text that is not prepared yet.

        The estimate assumes a BPE vocabulary that suits the text and the width of the model. A vocabulary has more than
        8,000 tokens only for widths above 200, because a narrow model would spend too much time on it.
        """
        n_vocab = suitable_vocabulary(n_bytes, most=max(8000, 50 * width))
        return cls(
            n_bytes=n_bytes,
            n_vocab=n_vocab,
            bytes_per_token=BYTES_OF_PAIRS * math.log(n_vocab),
        )

    @classmethod
    def of(cls, store: TokenStore) -> "TextSize":
        """Return the size of a prepared text."""
        return cls(
            n_bytes=store.n_bytes("train"),
            n_vocab=store.tokenizer.n_vocab,
            bytes_per_token=1 / store.tokens_per_byte("train"),
        )

    def worth(self, n_read: float) -> float:
        """Return how many bytes of new text are worth as much as reading n_read bytes of this text, again and again."""
        repeated = max(0.0, n_read / self.n_bytes - 1)
        first = min(n_read, self.n_bytes)
        return first + self.n_bytes * PASSES_OF_WORTH * (1 - math.exp(-repeated / PASSES_OF_WORTH))


def predicted_loss(n_weights: int, n_bytes: float, n_vocab: int) -> float:
    """Predict the final loss of a run in bits per byte. Use the law only to compare runs on the same text.

    Args:
        n_weights: number of weights in the blocks of the model.
        n_bytes: bytes of text that the run trains on. For a text that is read several times, see TextSize.worth.
        n_vocab: vocabulary size of the tokenizer.

    scripts/benchmarks/budget.py fitted the law to 38 runs. Each run took 20 to 180 s on two cores and trained on 20 MB
    of manual pages. The relative errors of the law on these runs have a root mean square of 1.8 % and a maximum of
    3.9 %. The law has the form of equation 2 of Hoffmann et al. 2022. It has an additional term for the vocabulary.
    """
    return (
        0.195
        + 0.377 * (n_weights / 1e6) ** -0.107
        + 0.510 * (n_bytes / 1e6) ** -0.566
        + 0.156 * (n_vocab / 4000) ** -0.513
    )


def n_block_weights(config: GPTConfig) -> int:
    """Return the number of weights in the blocks of a model."""
    blocks = meta_gpt(config).blocks
    return sum(weight.numel() for block in blocks for weight in block.parameters())


def sizes_for_width(width: int, n_heads: int | None = None) -> dict[str, int]:
    """Return the model sizes for a width. The keys of the result are field names of ModelSettings.

    If n_heads is None, this function chooses the number of heads. Each head then has a width of 32 if the width of the
    model is below 512, and a width of 64 otherwise. Heads are wider if this width would not divide the width of the
    model evenly.
    """
    if n_heads is None:
        d_head = 32 if width < 512 else 64
        n_heads = max((n for n in range(1, width // d_head + 1) if width % (2 * n) == 0), default=1)
    return {
        "d_model": width,
        "n_layers": max(2, round(width / 80)),
        "n_heads": n_heads,
        "n_kv_heads": n_heads // 2 if n_heads % 2 == 0 else n_heads,
        # An MLP with three matrices and this d_ff has as many weights as an MLP with two matrices and d_ff = 4 * width.
        "d_ff": 8 * round(width / 3),
    }
