"""Convert each error of the tokenizers library, which is written in Rust, to a message of one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from gptmini.system.errors import UserError


@contextmanager
def library_errors(problem: str) -> Iterator[None]:
    """Turn an error of the tokenizers library into a UserError. The message starts with `problem`.

    The library raises plain Exceptions. If its Rust code panics, it raises a PanicException, which is not a subclass
    of Exception.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{problem} ({' '.join(str(error).split())})") from None
