"""Texts that tokenizers are tried on."""

import random

# Hugging Face's and GPT-2's own spelling of the rule that tiktoken spells with possessive quantifiers.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = (
    "the theory of these three trees: they're 33 feet  tall,\n"
    "\tand I'll say \u00e9t\u00e9 \u65e5\u672c \U0001f600!"
)
END = "<|endoftext|>"


def random_texts(n, seed=0):
    """Texts of any code points but surrogates. Small code points, white space and words are frequent."""
    draw = random.Random(seed)
    anything = [*range(0xD800), *range(0xE000, 0x110000)]
    parts = [
        lambda: draw.choice(WORDS.split(" ")),
        lambda: draw.choice(" \n\t\r\u00a0"),
        lambda: chr(draw.randrange(128)),
        lambda: chr(draw.choice(anything)),
    ]

    def text():
        return "".join(draw.choice(parts)() for _ in range(draw.randrange(60)))

    return [text() for _ in range(n)]


TRAIN = [WORDS * 3, *random_texts(40, seed=1)]
