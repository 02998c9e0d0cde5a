"""Turn errors of the Hugging Face hub's client into UserErrors of one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from gptmini.user_error import UserError


@contextmanager
def downloading(what: str, instead: str) -> Iterator[None]:
    """Turn an error of the hub's client in the block into a UserError with the remedy `instead`.

    The argument what is such as "the dataset roneneldan/TinyStories".
    """
    try:
        yield
    except Exception as error:
        if not _is_of_the_client(error):
            raise
        reason = _first_sentence(str(error))
        raise UserError(f"cannot download {what} ({reason}); {instead}") from None


def _first_sentence(text: str) -> str:
    sentence, _, _ = " ".join(text.split()).partition(". ")
    return sentence.removesuffix(".")


def _is_of_the_client(error: Exception) -> bool:
    """Whether an error comes from the hub's client or from its HTTP library. The error classes differ by version."""
    library, _, _ = type(error).__module__.partition(".")
    return library in ("huggingface_hub", "requests", "urllib3") or library.startswith("http")
