"""Byte pairs learned from a text, by the library tokenizers."""

import random
from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import ConfigDict, Field, PositiveInt, SkipValidation, validate_call

from gptmini.settings import STRICT
from gptmini.tokenizer.byte_pairs import ALL_BYTES, BytePairTokenizer
from gptmini.tokenizer.letters import in_bytes
from gptmini.tokenizer.pieces import SPLIT_PATTERN, in_short_runs
from gptmini.tokenizer.tokenizer import Part

# Ids: 256 bytes and end-of-text at least. The trainer reserves 70 bytes for each id before it begins.
VocabSize = Annotated[int, Field(ge=257, le=2**20)]

# Characters of a run of white space, or of a run of anything else. Learning takes time that grows with the square of a
# piece's length, so that longer runs are cut. Encoding does not mind.
LONGEST_RUN = 1000

# Characters of text that the trainer is given at once. It takes nearly a hundred bytes for each of them, and keeps
# nothing but the number of times that each word has come when it is given the next.
SLICE = 2**20
# Characters of a slice where only some slices are trained on: small, so that the sample comes from all over the text.
SAMPLED_SLICE = 2**14


# The settings are checked; the documents, whose type is a protocol, are not.
@validate_call(config=ConfigDict(**STRICT, arbitrary_types_allowed=True))
def bpe(
    documents: SkipValidation[Iterable[Part]],
    *,
    vocab_size: VocabSize,
    train_bytes: PositiveInt | None = None,
) -> BytePairTokenizer:
    """Tokenizer with merges learned from the training split alone.

    Args:
        documents: of a corpus. With train_bytes, documents is iterated twice.
        vocab_size: counts the 256 bytes, the merges and end-of-text; a short text may yield fewer merges.
        train_bytes: most bytes of text to learn from; of a longer text a sample is drawn. None for no limit.

    Raises pydantic.ValidationError: vocab_size leaves no room for the bytes, or is beyond what training reserves memory
    for; or train_bytes is not a whole number of at least 1.
    Source: Sennrich et al. 2016, section 3.2, on bytes as in Radford et al. 2019, section 2.2; trained by tokenizers.
    """
    from tokenizers import Tokenizer as Trainable
    from tokenizers import models, pre_tokenizers, trainers

    learner = Trainable(models.BPE())
    # GPT-2's rule, and a letter for each byte.
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    slices = _training_slices(documents, train_bytes)
    parts = (part for some in slices for part in in_short_runs(some, LONGEST_RUN))
    learner.train_from_iterator(parts, trainer)

    learned = []
    for token, _ in sorted(learner.get_vocab().items(), key=lambda item: item[1]):
        if len(token) > 1:
            learned.append(in_bytes(token))
    return BytePairTokenizer(SPLIT_PATTERN, ALL_BYTES + learned)


def _training_slices(documents: Iterable[Part], train_bytes: int | None) -> Iterator[str]:
    """Slices of the training text; of a text of more than train_bytes bytes, slices that are drawn at random."""
    share = 1.0
    if train_bytes is not None:
        n_bytes = sum(len(text.encode()) for text in _training_texts(documents))
        share = train_bytes / max(n_bytes, 1)
    if share >= 1:
        for text in _training_texts(documents):
            yield from in_slices(text, SLICE)
        return

    draw = random.Random(0)  # always the same sample of a text
    n_left = train_bytes or 0
    is_first = True
    for text in _training_texts(documents):
        for some in in_slices(text, SAMPLED_SLICE):
            if is_first or draw.random() < share:
                is_first = False
                yield some
                n_left -= len(some.encode())
                if n_left <= 0:
                    return


def _training_texts(documents: Iterable[Part]) -> Iterator[str]:
    """The texts of the training split."""
    return (part.text for part in documents if part.split == "train")


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
