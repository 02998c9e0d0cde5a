"""gptmini tokens: ids and bytes of hand-made tokenizers and of GPT-2, colors, JSON, and every kind of RUN."""

import io
import json
import sys

import pytest

from gptmini.tokenizer import SPLIT_PATTERN, BytePairTokenizer, CharTokenizer
from gptmini.tokenizer.byte_pairs import ALL_BYTES
from run_folders import save_model

# The id of a byte is its value. The three merges follow.
PAIRS = BytePairTokenizer(SPLIT_PATTERN, [*ALL_BYTES, b"th", b"the", b" \xf0"])
LETTERS = CharTokenizer("\nabé", end_of_text=True)


@pytest.fixture
def checkpoint(tmp_path, script):
    """Return a function that writes a checkpoint with a tokenizer."""
    return lambda tokenizer: save_model(tmp_path / "m.ckpt", tokenizer).name


def rows(result):
    """Return the first line and the rows of a table as words."""
    assert (result.code, result.err) == (0, "")
    first, *rest = result.out.splitlines()
    return first, [row.split() for row in rest]


def test_each_token_is_shown_with_its_id_its_text_and_its_bytes(script, checkpoint):
    # "🙂" is f0 9f 99 82 in UTF-8. Its first byte is merged with the space.
    result = script("tokens", checkpoint(PAIRS), "then 🙂")
    assert rows(result) == (
        "tokens: 6, bytes: 9, bytes per token: 1.50",
        [
            ["257", '"the"', "74", "68", "65"],
            ["110", '"n"', "6e"],
            ["258", '"', r'\xf0"', "20", "f0"],
            ["159", r'"\x9f"', "9f"],
            ["153", r'"\x99"', "99"],
            ["130", r'"\x82"', "82"],
        ],
    )


def test_control_characters_and_backslashes_are_escapes(script, checkpoint):
    result = script("tokens", checkpoint(PAIRS), r"\x1b\\" + "\N{NO-BREAK SPACE}")
    assert [row[:2] for row in rows(result)[1]] == [
        ["27", r'"\x1b"'],
        ["92", r'"\\"'],
        ["194", r'"\xc2"'],
        ["160", r'"\xa0"'],
    ]
    result = script("tokens", checkpoint(LETTERS), r"\né")
    assert rows(result)[1] == [["0", r'"\n"', "0a"], ["3", '"é"', "c3", "a9"]]


def test_json_has_ids_texts_and_bytes(script, checkpoint, monkeypatch):
    name = checkpoint(PAIRS)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the \xf0\x9f\x99\x82\n")))
    result = script("tokens", name, "-", "--json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == {
        "tokens": [
            {"id": 257, "text": "the", "bytes": [116, 104, 101]},
            {"id": 258, "text": None, "bytes": [0x20, 0xF0]},
            {"id": 159, "text": None, "bytes": [0x9F]},
            {"id": 153, "text": None, "bytes": [0x99]},
            {"id": 130, "text": None, "bytes": [0x82]},
        ]
    }
    assert json.loads(script("tokens", name, "", "--json").out) == {"tokens": []}
    assert script("tokens", name, "").out == "tokens: 0, bytes: 0\n"


def test_only_a_terminal_gets_colors(script, checkpoint, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    name = checkpoint(LETTERS)
    plain = script("tokens", name, r"a\nb").out
    assert "\x1b" not in plain

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    colored = script("tokens", name, r"a\nb").out
    assert colored.endswith(plain)
    # SGR codes: 30 is black text, 106 a cyan background and 103 a yellow background.
    split = "\x1b[30;106ma\x1b[0m\x1b[30;103m\\n\x1b[0m\n\x1b[30;106mb\x1b[0m\n"
    assert colored.removesuffix(plain) == split


def test_runs_prepared_folders_and_exported_folders_have_a_tokenizer(script, trained, tmp_path):
    (prepared,) = (tmp_path / "data").glob("*-byte-*")
    assert script("export", str(trained), "exported").code == 0
    checkpoint = f"{trained}/checkpoints/last.ckpt"
    for place in (trained, "runs/latest", checkpoint, prepared, "exported"):
        _, found = rows(script("tokens", str(place), "é"))
        assert [row[0] for row in found] == ["195", "169"]  # the ids of tokenizer=byte are bytes
    result = script("tokens", "runs/smoke", "é")
    assert (result.code, "latest run in runs/smoke" in result.err) == (0, True)


def test_mistakes_are_one_line(script, checkpoint):
    name = checkpoint(LETTERS)
    script("tokens", name, "ax").assert_refused("'x' (U+0078)", "position 1")
    script("tokens", "absent", "a").assert_refused("absent", "runs/latest")
    script("tokens", name).assert_refused("text")
