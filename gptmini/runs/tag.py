"""The tag of a run: a text by which the user labels the run."""

from pathlib import Path

from gptmini.files import encodable, replacing
from gptmini.untrusted import read_text

FILE = "tag"  # in the run's folder


def write_tag(folder: Path, text: str) -> None:
    """Write the tag of a run as one line. An empty text removes the tag. The run may be training."""
    line = encodable(" ".join(text.split()))
    if line:
        with replacing(folder / FILE) as file:
            file.write(f"{line}\n".encode())
    else:
        (folder / FILE).unlink(missing_ok=True)


def read_tag(folder: Path) -> str:
    """Return the tag of a run, which is empty if the run has no tag.

    Raises UserError if the file does not contain text.
    """
    path = folder / FILE
    return " ".join(read_text(path).split()) if path.exists() else ""
