"""Errors of the library tokenizers, as one line for the user."""

from collections.abc import Iterator
from contextlib import contextmanager

from gptmini.user_error import UserError


@contextmanager
def library_errors(problem: str) -> Iterator[None]:
    """Turn an error of the library tokenizers, within a block, into a UserError that begins with the problem.

    The library raises bare Exceptions; where its Rust code gives up, it raises a PanicException, which is not even an
    Exception.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{problem} ({' '.join(str(error).split())})") from None
