"""Restore tokenizers from the JSON objects in files."""

import base64

from pydantic import ValidationError

from gptmini.settings import first_error
from gptmini.system.errors import UserError
from gptmini.tokenizer.byte_pairs import BytePairTokenizer
from gptmini.tokenizer.characters import CharTokenizer
from gptmini.tokenizer.library import LibraryTokenizer
from gptmini.tokenizer.tokenizer import Tokenizer

# Keys that do not change the ids of a text. Texts that early versions prepared do not have these keys. Therefore, only
# the other keys identify a tokenizer.
NAMES = ("bos_token", "chat_template")


def identity_of(state: dict) -> dict:
    """Return the part of the to_dict() of a tokenizer that determines the ids of texts."""
    return {key: value for key, value in state.items() if key not in NAMES}


def from_dict(state: dict) -> Tokenizer:
    """Rebuild a tokenizer from its to_dict(). Raises UserError if the kind is unknown, or if a field is invalid."""
    try:
        kind = state["kind"]
        template = state.get("chat_template")
        if template is not None and not isinstance(template, str):
            raise UserError(f"the field 'chat_template' must be a string, got {template!r:.80}")

        if kind == CharTokenizer.kind:
            tokenizer = CharTokenizer(state["characters"], end_of_text=state["end_of_text"])
            return tokenizer if template is None else tokenizer.with_template(template)

        if kind == BytePairTokenizer.kind:
            ranks = state["ranks"]
            # A damaged checkpoint can repeat one long string many times. Therefore, compare the strings before
            # decoding them.
            if len(set(ranks)) != len(ranks):
                raise UserError(
                    f"ranks must be distinct, but some of the {len(ranks)} ranks are repeated"
                )
            decoded = [base64.b64decode(token, validate=True) for token in ranks]
            tokenizer = BytePairTokenizer(state["pattern"], decoded)
            return tokenizer if template is None else tokenizer.with_template(template)

        if kind == LibraryTokenizer.kind:
            return LibraryTokenizer(
                state["json"],
                n_vocab=state["n_vocab"],
                end_of_text=state["end_of_text"],
                # Older checkpoints do not have these fields.
                more_ends=state.get("more_ends", ()),
                chat=state.get("chat"),
                bos_token=state.get("bos_token"),
            )

        kinds = (CharTokenizer.kind, BytePairTokenizer.kind, LibraryTokenizer.kind)
        raise UserError(
            f"the field 'kind' of the tokenizer must be one of {', '.join(kinds)}, got {kind!r}"
        )
    except ValidationError as error:
        raise UserError(first_error(error)) from None
    except ValueError as error:  # this is a UserError of the tokenizer, or an error of base64
        raise UserError(" ".join(str(error).split())) from None
    except Exception as error:  # an untrusted file may cause errors of any class
        raise UserError(
            f"cannot restore the tokenizer from its fields ({type(error).__name__}: {error})"
        ) from None
