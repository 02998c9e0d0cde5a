"""A tokenizer from the dict of plain JSON types that a file keeps of it."""

import base64

from pydantic import ValidationError

from gptmini.settings import first_mistake
from gptmini.tokenizer.byte_pairs import BytePairTokenizer
from gptmini.tokenizer.characters import CharTokenizer
from gptmini.tokenizer.library import LibraryTokenizer
from gptmini.tokenizer.tokenizer import Tokenizer
from gptmini.user_error import UserError

# Keys that change no id of a text. They are newer than the first prepared texts, which are known by the others.
NAMES = ("bos_token",)


def of_ids(state: dict) -> dict:
    """What the ids of texts follow from, of a tokenizer's to_dict()."""
    return {key: value for key, value in state.items() if key not in NAMES}


def from_dict(state: dict) -> Tokenizer:
    """Rebuild a tokenizer from its to_dict(); UserError for another kind, or fields that make no tokenizer."""
    try:
        kind = state["kind"]
        if kind == CharTokenizer.kind:
            return CharTokenizer(state["characters"], end_of_text=state["end_of_text"])

        if kind == BytePairTokenizer.kind:
            ranks = state["ranks"]
            # A checkpoint can hold one long text once and name it many times: compare before decoding.
            if len(set(ranks)) != len(ranks):
                raise UserError(f"ranks must be distinct, and some of {len(ranks)} are given twice")
            decoded = [base64.b64decode(token, validate=True) for token in ranks]
            return BytePairTokenizer(state["pattern"], decoded)

        if kind == LibraryTokenizer.kind:
            return LibraryTokenizer(
                state["json"],
                n_vocab=state["n_vocab"],
                end_of_text=state["end_of_text"],
                # These are newer than the first checkpoints with such a tokenizer.
                more_ends=state.get("more_ends", ()),
                chat=state.get("chat"),
                bos_token=state.get("bos_token"),
            )

        kinds = (CharTokenizer.kind, BytePairTokenizer.kind, LibraryTokenizer.kind)
        raise UserError(f"tokenizer kind must be one of {', '.join(kinds)}, got {kind!r}")
    except ValidationError as error:
        raise UserError(first_mistake(error)) from None
    except ValueError as error:  # a UserError of the tokenizer, or an error of base64
        raise UserError(" ".join(str(error).split())) from None
    except Exception as error:  # of any class: the fields may come from a stranger's file
        raise UserError(
            f"a tokenizer must have kind and its fields, got {type(error).__name__}: {error}"
        ) from None
