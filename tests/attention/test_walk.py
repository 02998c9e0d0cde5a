"""`python -m gptmini.attention` prints the worked example."""

import re
import sys

import pytest

from gptmini.attention.__main__ import main


def printed(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["gptmini.attention", *arguments])
    main()
    return capsys.readouterr().out


def test_the_example_ends_in_the_notebooks_numbers(monkeypatch, capsys):
    out = printed(monkeypatch, capsys)

    assert "-3.3182,  0.4293,  3.2498, -2.0282, -2.0650,  2.2758" in out  # a row of the queries
    assert "-0.7676, -1.9399, -0.4324" in out  # a row of the scaled scores
    assert "0.3693, 0.1144, 0.5163" in out  # of the weights
    assert "0.8291,  1.6919, -1.2977,  1.2108, -2.2525,  1.7438" in out  # of the context vectors
    assert re.search(r"sleeps +▒ 0\.48 +0\.15 +░ 0\.37", out)
    assert max(map(len, out.splitlines())) <= 110


def test_any_sentence_gives_a_row_and_a_column_to_each_word(monkeypatch, capsys):
    out = printed(monkeypatch, capsys, "--text", "Life is short, eat dessert first")
    words = ["Life", "is", "short", "eat", "dessert", "first"]

    for head in (1, 2):
        table = out[out.index(f"\n  head {head}") :].splitlines()[1:8]
        assert table[0].split()[2:] == words
        assert [row.split()[0] for row in table[1:]] == words

        for t, row in enumerate(table[1:], start=1):
            shares = [float(number) for number in re.findall(r"\d\.\d\d", row)]
            assert sum(shares) == pytest.approx(1, abs=0.03)
            assert all(share == 0 for share in shares[t:])
