"""Turn errors of the Hugging Face hub's client into UserErrors of one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from gptmini.system.errors import UserError


@contextmanager
def downloading(what: str, instead: str) -> Iterator[None]:
    """Turn an error of the hub's client in the block into a UserError with the remedy `instead`.

    The argument what is such as "the dataset roneneldan/TinyStories".
    """
    try:
        yield
    except Exception as error:
        # The error classes of the client and its HTTP library differ by version.
        library, _, _ = type(error).__module__.partition(".")
        if not library.startswith(("huggingface_hub", "requests", "urllib3", "http")):
            raise
        reason, _, _ = " ".join(str(error).split()).partition(". ")
        raise UserError(f"cannot download {what} ({reason.removesuffix('.')}); {instead}") from None
