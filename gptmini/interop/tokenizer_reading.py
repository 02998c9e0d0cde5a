"""tokenizer.json as a tokenizer of gptmini, where gptmini has one that gives the same ids."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.tokenizer import (
    END_OF_TEXT,
    REPLACEMENT,
    SPLIT_PATTERN,
    BytePairTokenizer,
    CharTokenizer,
    Tokenizer,
)
from gptmini.tokenizer.byte_pairs import ALL_BYTES, BYTE_PATTERN
from gptmini.tokenizer.letters import in_bytes
from gptmini.untrusted import read_json
from gptmini.user_error import UserError

if TYPE_CHECKING:
    import tokenizers

# Texts on which a tokenizer that was read is compared with the library's: all kinds of pieces, side by side.
LATIN = ("the", " The", " tokenizer", "'s", "'ll", "'", "é", " naïve", "a" * 30)
OTHERS = (" 1984", "3.14", "==", " (", ")", "_x", "日本", "🙂", "\u0301", "\u017f")
SPACES = (" ", "  ", "\n", "\n\n    ", "\t", "\u3000", "\xa0")
N_COMPARED = 2000  # texts


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a folder with tokenizer.json.

    Raises UserError: the file is damaged, or no tokenizer of gptmini gives the same ids; OSError: it is missing.
    """
    import tokenizers

    file = Path(path) / "tokenizer.json"
    _check_model(file, read_json(file).get("model"))
    try:
        theirs = tokenizers.Tokenizer.from_file(str(file))
        vocabulary = theirs.get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises bare Exceptions
        raise UserError(f"{file} must be a tokenizer of the library tokenizers ({error})") from None

    by_id = {i: token for token, i in vocabulary.items()}
    if sorted(by_id) != list(range(len(vocabulary))):
        raise UserError(f"{file} must number its tokens from 0 on without gaps")
    tokens = [by_id[i] for i in range(len(by_id))]

    ours = _ours(file, theirs, tokens)
    _check_same(file, theirs, ours)
    return ours


def _check_model(file: Path, model: object) -> None:
    """Raise UserError for settings of byte pairs that change ids; some make the library end the whole process."""
    if not isinstance(model, dict):
        raise UserError(f"{file} must have a model with its settings")
    for name in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(name):
            raise UserError(f"{file} must have no {name}, got {model[name]!r:.80}")


def _ours(file: Path, theirs: "tokenizers.Tokenizer", tokens: list[str]) -> Tokenizer:
    """The tokenizer of gptmini with these tokens; UserError for a kind that it does not have."""
    if theirs.normalizer is not None:
        raise UserError(f"{file} must leave text as it is, and has a normalizer")

    ends = bool(tokens) and tokens[-1] == END_OF_TEXT
    plain = tokens[:-1] if ends else tokens
    kind = type(theirs.model).__name__
    if kind == "WordLevel" and all(len(token) == 1 for token in plain):
        return CharTokenizer("".join(plain), end_of_text=ends)
    if kind != "BPE" or not ends:
        raise UserError(
            f"{file} must be byte pairs or characters, with {END_OF_TEXT} as the last token, to be read by gptmini"
        )

    try:
        ranks = [in_bytes(token) for token in plain]
    except KeyError:
        raise UserError(f"{file} must have a vocabulary of bytes, as that of GPT-2") from None
    pattern = BYTE_PATTERN if ranks == ALL_BYTES else SPLIT_PATTERN
    return BytePairTokenizer(pattern, ranks)


def _check_same(file: Path, theirs: "tokenizers.Tokenizer", ours: Tokenizer) -> None:
    """Raise UserError if the ids of the tokens themselves, of tokens side by side, or of random texts differ."""
    draw = random.Random(0)
    words = [*LATIN, *OTHERS, *SPACES]
    if isinstance(ours, CharTokenizer):
        words = list(ours.characters)
    tokens = [ours.decode([i]) for i in range(ours.n_vocab) if i != ours.end_of_text]
    whole_tokens = [token for token in tokens if REPLACEMENT not in token]

    texts = list(whole_tokens)
    for some in (words, whole_tokens):
        texts += ["".join(draw.choices(some, k=draw.randrange(1, 12))) for _ in range(N_COMPARED)]

    try:
        batch = theirs.encode_batch(texts, add_special_tokens=False)
    except Exception as error:  # the library raises bare Exceptions
        raise UserError(f"{file} must encode any text ({error})") from None
    for text, encoded in zip(texts, batch, strict=True):
        if END_OF_TEXT in text:
            continue
        if encoded.ids != ours.encode(text):
            raise UserError(
                f"{file} cuts or merges in another way than GPT-2's tokenizer does, as {text!r} shows; gptmini has no "
                "tokenizer for it"
            )
