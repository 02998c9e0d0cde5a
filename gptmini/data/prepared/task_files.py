"""The hidden folder of a running or interrupted preparation. It contains the tokenizer and the ids of each task."""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gptmini.data.prepared.checksums import block_checksums
from gptmini.data.prepared.ids import without_marks
from gptmini.system.files import flush_file, replacing
from gptmini.system.version import __version__
from gptmini.tokenizer import Tokenizer, from_dict


class TaskFiles:
    """The files of the tasks of one preparation. An interrupted preparation continues with the missing files."""

    def __init__(self, prepared: Path) -> None:
        self.folder = prepared.with_name(f".{prepared.name}.parts")
        self._tokenizer_file = self.folder / "tokenizer.json"

    def path_of(self, number: int) -> Path:
        """Return the file of the task with this number."""
        return self.folder / f"{number:06}.npz"

    def load_tokenizer(self) -> tuple[Tokenizer, int | None] | None:
        """Return the saved tokenizer and boundary, or None.

        Delete the files of a different version of gptmini, which may cut the text into different tasks.
        """
        if not self._tokenizer_file.is_file():
            return None
        saved = json.loads(self._tokenizer_file.read_bytes())
        if saved["version"] != __version__:
            shutil.rmtree(self.folder)
            return None
        return from_dict(saved["tokenizer"]), saved["boundary"]

    def save_tokenizer(self, tokenizer: Tokenizer, boundary: int | None) -> None:
        """Save the tokenizer before the first task, and the boundary between the splits (SplitDocuments.boundary)."""
        saved = {"version": __version__, "boundary": boundary, "tokenizer": tokenizer.to_dict()}
        self.folder.mkdir(exist_ok=True)
        with replacing(self._tokenizer_file) as file:
            file.write(json.dumps(saved).encode("utf-8"))

    def new_folder(self) -> Path:
        """Return an empty folder for the joined ids. A process that was killed may have left such a folder."""
        joined = self.folder / "joined"
        shutil.rmtree(joined, ignore_errors=True)
        joined.mkdir()
        return joined

    def delete(self) -> None:
        """Delete all files that no later preparation may use. A file that cannot be deleted stays."""
        shutil.rmtree(self.folder, ignore_errors=True)


def join_split(
    split: str, task_files: Sequence[Path], folder: Path, byte_lengths: np.ndarray | None
) -> dict:
    """Write the ids of a split and the index of its documents. Return the entry of the split for meta.json.

    byte_lengths, (n_vocab,), is None unless the documents are chats. The bytes of chats are counted from the ids,
    because the template adds text to the messages.
    """
    n_documents = 0
    n_bytes = 0
    n_tokens = 0
    largest_id = 0
    counted: Counter[str] = Counter()  # tokens and bytes of chats that the loss counts
    ids_path = folder / f"{split}.bin"
    index_path = folder / f"{split}.index"

    with ids_path.open("wb") as ids_file, index_path.open("wb") as index_file:
        for path in task_files:
            with np.load(path) as task:
                ids = task[f"{split}_ids"]
                ends = task[f"{split}_ends"]
                n_bytes += int(task[f"{split}_bytes"]) if byte_lengths is None else 0
            ids_file.write(ids.tobytes())
            index_file.write((ends + np.uint64(n_tokens)).astype("<u8").tobytes())

            n_documents += len(ends)
            n_tokens += len(ids)
            largest_id = max(largest_id, int(without_marks(ids).max(initial=0)))
            if byte_lengths is not None:
                n_bytes += int(byte_lengths[without_marks(ids)].sum())
                answers = ids[ids >= 0]
                counted["counted"] += len(answers)
                counted["counted_bytes"] += int(byte_lengths[answers].sum())
        flush_file(ids_file)
        flush_file(index_file)

    return {
        "documents": n_documents,
        "bytes": n_bytes,
        "tokens": n_tokens,
        "largest_id": largest_id,
        "crc32": block_checksums(ids_path),
        "index_crc32": block_checksums(index_path),
        **counted,
    }
