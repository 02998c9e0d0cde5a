"""The documentation that comes with Python, as a text that needs no download."""

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from pydantic import validate_call

from gptmini.data.corpus import Corpus, DigestOf, HeldOut
from gptmini.data.prepared.splits import split_of
from gptmini.settings import STRICT
from gptmini.system.errors import UserError
from gptmini.tokenizer import Document

# Folders with tests, installed packages, and the help topics, which are read separately, before the modules.
PYDOC_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "pydoc_data"}

PYDOC_BYTES = 2_250_000  # bytes of the text in Python 3.11


class PydocCorpus(Corpus):
    """The help topics of CPython, followed by the docstrings of its modules, which are parsed but not imported."""

    name = "pydoc"

    @validate_call(config=STRICT)
    def __init__(self, val_fraction: HeldOut) -> None:
        """Hold out approximately the fraction val_fraction of the documents."""
        self.fraction_held_out = val_fraction
        self.root = Path(sysconfig.get_path("stdlib"))

    def identity(self, digest_of: DigestOf) -> dict:
        """Return the split rule, the version of Python, and a digest of all source files."""
        files = [
            (path.relative_to(self.root).as_posix(), digest_of(path)) for path in self._sources()
        ]
        return {
            "val_fraction": self.fraction_held_out,
            "python": ".".join(map(str, sys.version_info[:3])),
            "sha256": hashlib.sha256(repr(files).encode()).hexdigest(),
        }

    def documents(self) -> Iterator[Document]:
        """Yield the topics sorted by name, and then the docstrings sorted by module path and line."""
        for text in self._texts:
            yield Document(split_of(text, self.fraction_held_out), text)

    def bytes_to_train_on(self) -> int:
        """Return about the number of bytes to train on, without reading the text, because this takes seconds."""
        return round(PYDOC_BYTES * (1 - self.fraction_held_out))

    @cached_property
    def _texts(self) -> list[str]:
        # Cached, because parsing the modules takes seconds. The texts need only two megabytes.
        texts: list[str] = []
        for path in self._sources():
            tree = ast.parse(path.read_bytes())
            if path.parent.name == "pydoc_data":
                texts += topics(tree)
            else:
                texts += docstrings(tree)
        return texts

    def _sources(self) -> list[Path]:
        modules: list[Path] = []
        for name in sys.stdlib_module_names:
            modules += self.root.glob(f"{name}.py")
            modules += (self.root / name).rglob("*.py")
        modules = [path for path in modules if not PYDOC_SKIPPED & {*self._parts(path)}]
        topic_file = self.root / "pydoc_data" / "topics.py"
        if not modules or not topic_file.is_file():
            raise UserError(
                f"data=pydoc requires Python's standard library in {self.root}; use data=text instead"
            )
        return [topic_file, *sorted(modules, key=self._parts)]

    def _parts(self, path: Path) -> tuple[str, ...]:
        return path.relative_to(self.root).parts


def topics(tree: ast.Module) -> list[str]:
    """Return the help texts of a parsed pydoc_data/topics.py, sorted by topic name."""
    (assignment,) = [node for node in tree.body if isinstance(node, ast.Assign)]
    texts = ast.literal_eval(assignment.value)
    return [texts[name] for name in sorted(texts)]


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of a parsed module without indentation, in the order of their lines."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        text = ast.get_docstring(node)
        if text:
            yield text
