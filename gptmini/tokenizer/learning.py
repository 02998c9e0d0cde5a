"""Learn byte pairs from a corpus with the tokenizers library."""

import json
import math
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from gptmini.system.errors import UserError
from gptmini.tokenizer.byte_pairs import ALL_BYTES, BytePairTokenizer
from gptmini.tokenizer.letters import letters_to_bytes
from gptmini.tokenizer.pieces import SPLIT_PATTERN, split_long_runs
from gptmini.tokenizer.tokenizer import Document

# Maximum number of characters in a run of white space, or in a run of other characters. Longer runs are split before
# learning, because the time to learn grows with the square of the length of a piece. Encoding does not split long runs.
LONGEST_RUN = 1000

# Number of characters that the trainer receives at a time. The trainer needs nearly a hundred bytes of memory per
# character. Before the next slice, the trainer frees all memory except the count of each word.
SLICE = 2**20


def bpe(
    documents: Iterable[Document], *, vocab_size: int, train_bytes: int | None = None
) -> BytePairTokenizer:
    """Learn byte pairs from the training split, and return the tokenizer that merges these pairs.

    Args:
        documents: the documents of a corpus. They are read once. If they have a method share_read, as Corpus has, this
            method returns the fraction of the text that has been read.
        vocab_size: number of ids: the 256 bytes, end-of-text and the merges. A short text may have fewer merges. See
            BytePairSettings for the range.
        train_bytes: approximate limit of the bytes of text to learn from. None for no limit. If the text is longer,
            random parts of the text are used. If documents has no method share_read, the start of the text is used.

    Source: Sennrich et al. 2016, section 3.2. The pairs consist of bytes, as in Radford et al. 2019, section 2.2. The
    tokenizers library learns the pairs.
    """
    slices = _training_slices(documents, train_bytes or math.inf)
    texts = (part for some in slices for part in split_long_runs(some, LONGEST_RUN))
    vocabulary = _learned(texts, vocab_size - 1)

    in_order = sorted(vocabulary, key=lambda token: vocabulary[token])
    learned = [letters_to_bytes(token) for token in in_order if len(token) > 1]
    return BytePairTokenizer(SPLIT_PATTERN, ALL_BYTES + learned)


def _learned(texts: Iterable[str], n_ids: int) -> dict[str, int]:
    """Run merging.py on texts. Return a dict that maps each learned token, written in letters, to its id."""
    program = Path(__file__).with_name("merging.py")
    process = subprocess.Popen(
        [sys.executable, "-P", str(program), str(n_ids)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C must not reach the new process
    )
    # If the process died, its exit status is reported below.
    with suppress(BrokenPipeError), process:
        assert process.stdin is not None
        assert process.stdout is not None
        for text in filter(None, texts):
            data = text.encode()
            process.stdin.write(len(data).to_bytes(8, "little"))
            process.stdin.write(data)
        process.stdin.write(bytes(8))
        process.stdin.flush()
        answer = process.stdout.read()

    if process.returncode:
        raise UserError(
            f"learning byte pairs failed with exit status {process.returncode}; "
            "lower tokenizer.train_bytes if the memory is full"
        )
    return json.loads(answer)


def _training_slices(documents: Iterable[Document], train_bytes: float) -> Iterator[str]:
    """Yield slices of the training text. If the text exceeds train_bytes, yield a random sample of its slices.

    This is selection sampling (Knuth, The Art of Computer Programming, volume 2, section 3.4.2).
    """
    share_read = getattr(documents, "share_read", lambda: None)
    draw = random.Random(0)  # the same text always gives the same slices
    n_read = 0
    n_left = train_bytes
    texts = (part.text for part in documents if part.split == "train")

    for some in (some for text in texts for some in split_slices(text, SLICE)):
        size = len(some.encode())
        n_read += size
        share = share_read()
        n_to_come = n_read / share - n_read if share else 0
        if draw.random() * n_to_come < n_left:
            yield some
            n_left -= size
        if n_left <= 0:
            return


def split_slices(text: str, most: int) -> Iterator[str]:
    """Split a text into parts of at most `most` characters.

    Each part except the last ends after a line break, or else after a space, or else inside a word.
    """
    start = 0
    while len(text) - start > most:
        end = text.rfind("\n", start, start + most) + 1
        if end == 0:
            end = text.rfind(" ", start, start + most) + 1
        if end == 0:
            end = start + most
        yield text[start:end]
        start = end
    yield text[start:]
