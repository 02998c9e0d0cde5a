"""The exception for mistakes that a user can fix, the nearest name, and the errors of a full memory or of the hub."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

# Maximum number of characters of a value in an error message. A longer value is cut.
LONGEST_VALUE = 80
# Some values as Python writes them, and as YAML writes them.
YAML_NAMES = {"None": "null", "True": "true", "False": "false"}


class UserError(ValueError):
    """A mistake that the user can fix.

    The text is one sentence. It states the problem with all values that matter, and then the fix, unless the fix is
    obvious. A command prints the text as one line. Any other exception is a bug and keeps its traceback.

    Args:
        message: the problem, with the values that matter.
        for_training: a fix that names a key of the configuration. This fix is appended to the text. A command without a
            configuration prints only the attribute `message`.
    """

    def __init__(self, message: str, *, for_training: str = "") -> None:
        super().__init__(f"{message}; {for_training}" if for_training else message)
        self.message = message


class TryLater(UserError):
    """An obstacle that ends by itself. The same command may succeed later, so its exit code is 1, not 2."""


class RanksFailed(UserError):
    """The error of a run whose ranks failed, with the exit code of the first rank that failed.

    The argument killed has a text for each rank that a signal killed. All other ranks have printed their error.
    """

    def __init__(self, code: int, killed: Sequence[str] = ()) -> None:
        reason = f"{', '.join(killed)}; resume the run from its latest checkpoint"
        super().__init__(reason if killed else "its ranks printed the error")
        self.code = code
        self.is_printed = not killed


def value_text(value: object) -> str:
    """Return the text of a value for an error message: Python's repr, but 'null', 'true' and 'false' as in YAML."""
    text = YAML_NAMES.get(repr(value), repr(value))
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def similar(name: str, options: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the option that a misspelt name probably means, or an empty string if no option is similar.

    The cutoff is the smallest similarity, from 0 to 1, in the sense of difflib. For example, the similarity of --json
    and --sort is 0.67.
    """
    return next(iter(difflib.get_close_matches(name, options, n=1, cutoff=cutoff)), "")


def did_you_mean(name: str, options: Iterable[str], otherwise: str = "") -> str:
    """Return the fix for an unknown name: a question with the most similar option, or else another fix."""
    close = similar(name, options)
    return f"did you mean {close}?" if close else otherwise


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the CPU or a GPU ran out of memory. torch has no common class for such errors."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    # The last one is of a library such as cuBLAS.
    parts = ("can't allocate memory", "_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(part in str(error) for part in parts)


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
