"""The law of the loss behind budget=, and the text and the sizes that it ranks."""

import math
from dataclasses import dataclass

from gptmini.data.store import TokenStore
from gptmini.model import GPTConfig
from gptmini.model.gpt import gpt_of_shapes

VOCABULARIES = (512, 1000, 2000, 4000, 8000, 16_000, 32_000)
BYTES_OF_PAIRS = 0.36  # bytes a token, divided by the natural logarithm of the number of ids


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text to train on, in the tokens of a tokenizer."""

    n_bytes: int
    n_vocab: int
    bytes_per_token: float

    @classmethod
    def in_pairs(cls, n_bytes: int, width: int) -> "Text":
        """A text that is not prepared yet, in as many byte pairs as suit it and the width of a model.

        That is 2,000 for 200 KB and 8,000 for 20 MB, and more only where the width is above 200. With fewer ids a text
        has more tokens; with more of them each is seen too seldom, and a narrow model spends its time on them.
        """
        wanted = min(2000 * (n_bytes / 200e3) ** 0.3, max(8000, 50 * width))
        n_vocab = min(VOCABULARIES, key=lambda n_vocab: abs(math.log(n_vocab / wanted)))
        return cls(
            n_bytes=n_bytes, n_vocab=n_vocab, bytes_per_token=BYTES_OF_PAIRS * math.log(n_vocab)
        )

    @classmethod
    def of(cls, store: TokenStore) -> "Text":
        """A text that was prepared."""
        return cls(
            n_bytes=store.n_bytes("train"),
            n_vocab=store.tokenizer.n_vocab,
            bytes_per_token=1 / store.tokens_per_byte("train"),
        )


def predicted(n_weights: int, n_bytes: float, n_vocab: int) -> float:
    """The law: how a run ends, in bits per byte. It ranks the runs on one text.

    Args:
        n_weights: in the blocks of the model.
        n_bytes: of text that the run trains on.
        n_vocab: ids of the tokenizer.

    Fitted to 38 runs of 20 to 180 s on two cores, on 20 MB of manual pages, by scripts/benchmarks/dial.py. The root
    mean square of its relative errors there is 1.8 %, and the largest is 3.9 %. The form is that of Hoffmann et al.
    2022, equation 2, with a term for the vocabulary.
    """
    return (
        0.195
        + 0.377 * (n_weights / 1e6) ** -0.107
        + 0.510 * (n_bytes / 1e6) ** -0.566
        + 0.156 * (n_vocab / 4000) ** -0.513
    )


def weights_of(config: GPTConfig) -> int:
    """Number of weights in the blocks of a model."""
    blocks = gpt_of_shapes(config).blocks
    return sum(weight.numel() for block in blocks for weight in block.parameters())


def sizes_of(width: int, n_heads: int | None = None) -> dict[str, int]:
    """The sizes of a model that belong to a width, and to a number of heads if one is given, as ModelSettings has them.

    A head is 32 wide, and 64 from a width of 512 on; or wider, where that does not divide the width.
    """
    if n_heads is None:
        d_head = 32 if width < 512 else 64
        n_heads = max((n for n in range(1, width // d_head + 1) if width % (2 * n) == 0), default=1)
    return {
        "d_model": width,
        "n_layers": max(2, round(width / 80)),
        "n_heads": n_heads,
        "n_kv_heads": n_heads // 2 if n_heads % 2 == 0 else n_heads,
        "d_ff": 8 * round(width / 3),  # its three matrices are as large as two of 4 * width
    }
