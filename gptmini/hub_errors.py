"""Errors of the client of the Hugging Face hub, as one line for the user."""

from collections.abc import Iterator
from contextlib import contextmanager

from gptmini.user_error import UserError


@contextmanager
def downloading(what: str, instead: str) -> Iterator[None]:
    """Turn an error of the hub's client, within a block, into a UserError.

    Args:
        what: is downloaded, as in: the dataset roneneldan/TinyStories.
        instead: what the user can give in place of a name on the hub, as a clause.

    Raises UserError: the hub cannot be reached, or refuses.
    """
    try:
        yield
    except Exception as error:
        if not _is_of_the_client(error):
            raise
        reason = _first_sentence(str(error))
        raise UserError(f"could not download {what} ({reason}); {instead}") from None


def _first_sentence(text: str) -> str:
    """What a message says before its first full stop, in one line."""
    sentence, _, _ = " ".join(text.split()).partition(". ")
    return sentence.removesuffix(".")


def _is_of_the_client(error: Exception) -> bool:
    """Whether an error says that the hub cannot be reached or refuses; classes of HTTP libraries differ by version."""
    library, _, _ = type(error).__module__.partition(".")
    return library in ("huggingface_hub", "requests", "urllib3") or library.startswith("http")
