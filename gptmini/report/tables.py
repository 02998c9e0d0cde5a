"""A run's configuration, model, data and curves as tables of text, and what TensorBoard's page HParams compares."""

import csv
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from gptmini.key_table import keys_with
from gptmini.runs.metrics import STEP, Line, curves_of

if TYPE_CHECKING:  # a report needs neither, and torch takes seconds to import
    from gptmini.data.store import TokenStore
    from gptmini.model import GPT

# TensorBoard's page HParams has these columns for every run, beside columns of what the user changed. They are few, so
# that the measured figures, which stand to the right of all these columns, stay in sight.
FIXED = (
    "init_from",
    "optimizer.lr",
    "parameters",
    "seed",
    "tokenizer",
    "trainer.global_batch_size",
    "trainer.max_steps",
)

# White space would be invisible in a label.
VISIBLE = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥"}


def config_table(config: dict) -> list[list[str]]:
    """Rows of every value of a configuration by its dotted key, under a row of headings."""
    rows = [["key", "value"]]
    for key, value in leaves(config):
        rows.append([key, _plain(value)])
    return rows


def model_table(model: "GPT") -> list[list[str]]:
    """Rows of a model's weights, between a row of headings and a row of totals.

    All blocks have weights of the same shapes, so that a block's weight is one row, with the number of blocks in the
    column "times". The padding of the vocabulary is not counted.
    """
    from gptmini.model.gpt import VOCABULARY

    total = model.n_parameters
    rows = [["weight", "shape", "times", "parameters", "share"]]
    for name, weight in model.named_parameters():
        shown_name = name
        times = 1
        block = re.match(r"blocks\.(\d+)\.(.*)", name)
        if block:
            number, name_in_block = block.groups()
            if number != "0":  # the row of block 0 stands for every block
                continue
            shown_name = f"blocks.*.{name_in_block}"
            times = model.config.n_layers

        n_rows = model.config.vocab_size if name in VOCABULARY else weight.size(0)
        counted = weight[:n_rows]
        shape = " x ".join(str(size) for size in counted.shape)
        count = times * counted.numel()
        rows.append([shown_name, shape, str(times), f"{count:,}", f"{count / total:.1%}"])

    rows.append(["all", "", "", f"{total:,}", "100%"])
    return rows


def data_card(store: "TokenStore") -> list[list[str]]:
    """Rows of where a store's tokens come from, how many each split has, and where they lie, under empty headings."""
    rows = [["", ""]]

    # Every corpus has its own keys; a list of thousands of files is shortened to a count.
    source = dict(store.meta["source"])
    files = source.pop("files", None)
    rows.append(["source", source.pop("corpus")])
    for key, value in source.items():
        rows.append([key, _plain(value)])
    if files is not None:
        rows.append(["files", f"{len(files):,}; sha256 of the first {files[0]}"])

    builder = dict(store.meta["builder"])
    name = builder.pop("name")
    arguments = [f"{key}={value}" for key, value in builder.items()]
    rows.append(["tokenizer", ", ".join([name, *arguments])])

    for split in ("train", "val"):
        n_documents = store.meta[split]["documents"]
        counts = (
            f"{n_documents:,} documents, {store.n_bytes(split):,} bytes, "
            f"{store.n_tokens(split):,} tokens, {store.bytes_per_token(split):.3f} bytes a token"
        )
        rows.append([split, counts])

    rows.append(["folder", str(store.folder)])
    rows.append(["fingerprint", store.fingerprint])
    return rows


def comparison(
    config: dict, store: "TokenStore", model: "GPT", overrides: Sequence[str]
) -> tuple[dict[str, object], list[str], list[str]]:
    """What TensorBoard's page HParams shows of a run, as EventLogger.log_comparison takes it.

    Args:
        config: the run's whole configuration, as nested dicts.
        store, model: the run's tokens and model.
        overrides: what the user typed, KEY=VALUE each.

    Returns every value of the run by its dotted key; the keys that the user changed; the keys of FIXED that the run
    has and the user did not change.
    """
    typed = {}
    for override in overrides:
        key, equals, value = override.lstrip("+").partition("=")
        if equals and key not in keys_with("unmeasured"):
            typed[key] = value

    # A typed text stands in only for a key that has no value of its own, such as experiment=NAME.
    values: dict[str, object] = dict(typed)
    for key, value in leaves(config):
        if value is not None:
            values[key] = value
    values["tokenizer"] = store.meta["builder"]["name"]
    values["parameters"] = model.n_parameters
    values["overrides"] = shlex.join(overrides)

    changed = ["overrides", *typed]
    others = [key for key in FIXED if key in values and key not in typed]
    return values, changed, others


def leaves(tree: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted key and the value of everything in a configuration that is not a group.

    Keys that end with an underscore, such as _target_, are Hydra's and are left out. Every key begins with prefix.
    """
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        elif not str(key).endswith("_"):  # a mapping of a user's own part may have numbers for keys
            yield f"{prefix}{key}", value


def csv_of(lines: Sequence[Line]) -> str:
    """The curves of a run's metrics.jsonl as CSV, whose first line holds the headings: step, and every tag.

    The rows are in the order of their steps. A tag that was not logged at a step is an empty cell, and a number that is
    not finite is nan, inf or -inf.
    """
    curves = curves_of(lines)
    rows: dict[int, dict[str, float]] = {}
    for tag, points in curves.items():
        for step, value in points:
            rows.setdefault(step, {})[tag] = value

    text = io.StringIO()
    writer = csv.DictWriter(text, [STEP, *curves], lineterminator="\n")
    writer.writeheader()
    for step in sorted(rows):
        writer.writerow({STEP: step, **rows[step]})
    return text.getvalue()


def aligned(rows: Sequence[Sequence[str]], *, justify: Callable = str.ljust) -> list[str]:
    """The cells of a table as lines, each column as wide as its widest cell; justify is str.ljust or str.rjust."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(justify, row, widths)).rstrip() for row in rows]


def printable(text: str) -> str:
    """Text whose unprintable characters are written as escapes, so that a terminal obeys none of them."""
    shown = ""
    for character in text:
        if character.isprintable():
            shown += character
        else:
            shown += character.encode("unicode_escape").decode()
    return shown


def visible(text: str) -> str:
    """Text as a label shows it: white space as signs, other unprintable characters as escapes."""
    return printable("".join(VISIBLE.get(character, character) for character in text))


def _plain(value: object) -> str:
    """A value of a configuration as a cell's text: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)
