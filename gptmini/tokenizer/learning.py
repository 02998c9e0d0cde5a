"""Byte pairs learned from a text, by the library tokenizers."""

import json
import math
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, PositiveInt, SkipValidation, validate_call

from gptmini.settings import STRICT
from gptmini.tokenizer.byte_pairs import ALL_BYTES, BytePairTokenizer
from gptmini.tokenizer.letters import in_bytes
from gptmini.tokenizer.pieces import SPLIT_PATTERN, in_short_runs
from gptmini.tokenizer.tokenizer import Document
from gptmini.user_error import UserError

# Ids: 256 bytes and end-of-text at least. The trainer reserves 70 bytes for each id before it begins.
VocabSize = Annotated[int, Field(ge=257, le=2**20)]

# Characters of a run of white space, or of a run of anything else. Learning takes time that grows with the square of a
# piece's length, so that longer runs are cut. Encoding does not mind.
LONGEST_RUN = 1000

# Characters of text that the trainer is given at once. It takes nearly a hundred bytes for each of them, and keeps
# nothing but the number of times that each word has come when it is given the next.
SLICE = 2**20


# The settings are checked; the documents, whose type is a protocol, are not.
@validate_call(config=ConfigDict(**STRICT, arbitrary_types_allowed=True))
def bpe(
    documents: SkipValidation[Iterable[Document]],
    *,
    vocab_size: VocabSize,
    train_bytes: PositiveInt | None = None,
) -> BytePairTokenizer:
    """Tokenizer with merges learned from the training split alone.

    Args:
        documents: of a corpus, read once. A method share_read, as that of Corpus, says how much of them is to come.
        vocab_size: counts the 256 bytes, the merges and end-of-text; a short text may yield fewer merges.
        train_bytes: most bytes of text to learn from, about; of a longer text a sample is drawn, or its beginning taken
            where there is no share_read. None for no limit.

    Raises pydantic.ValidationError: vocab_size leaves no room for the bytes, or is beyond what training reserves memory
    for; or train_bytes is not a whole number of at least 1.
    Source: Sennrich et al. 2016, section 3.2, on bytes as in Radford et al. 2019, section 2.2; trained by tokenizers.
    """
    slices = _training_slices(documents, train_bytes or math.inf)
    texts = (part for some in slices for part in in_short_runs(some, LONGEST_RUN))
    vocabulary = _learned(texts, vocab_size - 1)

    in_order = sorted(vocabulary, key=lambda token: vocabulary[token])
    learned = [in_bytes(token) for token in in_order if len(token) > 1]
    return BytePairTokenizer(SPLIT_PATTERN, ALL_BYTES + learned)


def _learned(texts: Iterable[str], n_ids: int) -> dict[str, int]:
    """The ids of tokens, in letters, that merging.py learns from texts; an exception here ends its process too."""
    program = Path(__file__).with_name("merging.py")
    command = [sys.executable, "-P", str(program), str(n_ids)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a terminal's Ctrl-C is for this process
    )
    # Where the process has died, its exit status is the error.
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
            f"learning byte pairs ended with exit status {process.returncode}; if memory was short, give a smaller "
            "tokenizer.train_bytes or tokenizer.vocab_size"
        )
    return json.loads(answer)


def _training_slices(documents: Iterable[Document], train_bytes: float) -> Iterator[str]:
    """Slices of the training text; of a text of more than train_bytes bytes, slices that are drawn as it is read.

    A slice is taken with the chance of train_bytes, less what was taken, in the bytes that are expected to follow: by
    selection sampling (Knuth, The Art of Computer Programming, volume 2, section 3.4.2).
    """
    share_read = getattr(documents, "share_read", lambda: None)
    draw = random.Random(0)  # always the same sample of a text
    n_read = 0
    n_left = train_bytes
    texts = (part.text for part in documents if part.split == "train")

    for some in (some for text in texts for some in in_slices(text, SLICE)):
        size = len(some.encode())
        n_read += size
        share = share_read()
        n_to_come = n_read / share - n_read if share else 0
        if draw.random() * n_to_come < n_left:
            yield some
            n_left -= size
        if n_left <= 0:
            return


def in_slices(text: str, most: int) -> Iterator[str]:
    """Cut a text into parts of at most `most` characters, each behind a line break, or else behind a space.

    A part ends in the middle of a word only where `most` characters hold neither. Joined, the parts are the text.
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
