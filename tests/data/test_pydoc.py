"""The corpus of Python's documentation: its documents and their splits."""

import sys
from itertools import count

import pytest

from data.parts import by_split, digest_of, first_byte
from gptmini.data import PydocCorpus

MODULE = '''"""Module text."""
import sys, pathlib
pathlib.Path(__file__).with_name("was_imported").touch()
raise RuntimeError("a module was run")

class Late:
    """Class text.

        Indented further.
    Last line.
    """
    def method(self):
        """Method text."""
        def inner(): "Inner text."
    async def waits(self): "Waiting text."
    def undocumented(self): pass
x = """Not a docstring."""
'''
CLASS_TEXT = "Class text.\n\n    Indented further.\nLast line."
MODULE_TEXTS = ["Module text.", CLASS_TEXT, "Method text.", "Inner text.", "Waiting text."]


def topic_with(byte):
    """Return a text whose digest starts with this byte."""
    return next(text for text in map("Topic {}.".format, count()) if first_byte(text) == byte)


# Texts on both sides of the boundary of val_fraction=0.05: a first byte of 12 is held out, and 13 is not.
EDGES = [topic_with(12), topic_with(13)]
TOPICS = (
    "# made by Sphinx\n"
    f"topics = {{'with': 'Third.', 'while': {EDGES[1]!r}, 'assert': {EDGES[0]!r}, 'del': 'Second.'}}"
)


@pytest.fixture
def fake_library(tmp_path):
    """A corpus over a standard library of a few files."""
    files = {
        "pydoc_data/topics.py": TOPICS,
        "pydoc_data/__init__.py": "'SkippedRecords, beside the topics.'",
        "json/__init__.py": "'Package text.'",
        "json/tool.py": MODULE,
        "ast.py": "'Ast text, before json.'",
        "zipfile.py": b"# coding: latin-1\n'\xe9t\xe9'",
        "not_in_the_library.py": "'SkippedRecords, another name.'",
        "site-packages/ast.py": "'SkippedRecords, installed.'",
        "json/tests/test_json.py": "'SkippedRecords, a test.'",
        "test/support.py": "'SkippedRecords, a test.'",
        "csv.txt": "SkippedRecords, no module.",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    corpus = PydocCorpus(0.05)
    corpus.root = tmp_path
    return corpus


def test_pydoc_takes_topics_then_docstrings_in_order_and_imports_nothing(fake_library):
    loaded = set(sys.modules)
    topics = [EDGES[0], "Second.", EDGES[1], "Third."]
    documents = [*topics, "Ast text, before json.", "Package text.", *MODULE_TEXTS, "\u00e9t\u00e9"]
    held_out = [text for text in documents if first_byte(text) < 13]

    assert 0 < len(held_out) < 5
    train = [text for text in documents if text not in held_out]
    assert by_split(fake_library) == {"train": train, "val": held_out}
    # The latin-1 file requires Python's own decoder.
    assert set(sys.modules) - loaded <= {"encodings.iso8859_1"}
    assert not list(fake_library.root.rglob("was_imported"))


@pytest.mark.parametrize("name", ["json/tool.py", "pydoc_data/topics.py"])
def test_pydoc_identity_changes_with_any_source(fake_library, name):
    before = fake_library.identity(digest_of)
    assert fake_library.identity(digest_of) == before
    (fake_library.root / name).write_text(MODULE + "# more")
    assert fake_library.identity(digest_of) != before


def test_pydoc_reads_the_library_of_this_python(monkeypatch):
    monkeypatch.setattr(sys, "stdlib_module_names", {"json"})  # of two hundred
    splits = by_split(PydocCorpus(0.05))
    texts = splits["train"] + splits["val"]
    assert any(text.startswith('The "with" statement') for text in texts)
    assert any(text.startswith("JSON (JavaScript Object Notation)") for text in texts)
