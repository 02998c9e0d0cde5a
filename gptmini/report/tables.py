"""Tables of a run's configuration, model, data and curves, as rows of texts or as CSV."""

import csv
import io
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gptmini.key_table import keys_with
from gptmini.runs import STEP, Line, curves_of

if TYPE_CHECKING:  # importing torch takes seconds
    from gptmini.data import TokenStore
    from gptmini.model import GPT

# On TensorBoard's HParams page, every run has these columns and a column for each override. This list is short, because
# the measured values are to the right of these columns and should stay visible.
FIXED = (
    "init_from",
    "optimizer.lr",
    "parameters",
    "seed",
    "tokenizer",
    "trainer.global_batch_size",
    "trainer.max_steps",
)


def config_table(config: dict) -> list[list[str]]:
    """Return a heading row, then a row for each value of a configuration by its dotted key."""
    return [["key", "value"], *([key, _plain(value)] for key, value in leaves(config))]


def model_table(model: "GPT") -> list[list[str]]:
    """Return a heading row, a row for each weight of a model, and a row of totals.

    All blocks have weights of the same shapes, so a weight of the blocks has one row, with the number of blocks in the
    column "times". The padding of the vocabulary is not counted.
    """
    total = model.n_parameters
    rows = [["weight", "shape", "times", "parameters", "share"]]
    for name, weight in model.named_parameters():
        label = name
        times = 1
        block = re.match(r"blocks\.(\d+)\.(.*)", name)
        if block:
            number, name_in_block = block.groups()
            if number != "0":  # block 0 represents all blocks
                continue
            label = f"blocks.*.{name_in_block}"
            times = model.config.n_layers

        count = model.count_parameters([name])  # without the padding of the vocabulary
        shape = (count // weight[0].numel(), *weight.shape[1:])
        n_all = times * count
        cells = [" x ".join(map(str, shape)), str(times), f"{n_all:,}", f"{n_all / total:.1%}"]
        rows.append([label, *cells])

    rows.append(["all", "", "", f"{total:,}", "100%"])
    return rows


def data_card(store: "TokenStore") -> list[list[str]]:
    """Return rows about the tokens of a store: the source, the size of each split and the folder.

    The heading is empty.
    """
    rows = [["", ""]]

    # The keys depend on the corpus. A list of files may be long, so only the number of files is shown.
    source = dict(store.meta["source"])
    files = source.pop("files", None)
    rows.append(["source", source.pop("corpus")])
    rows += [[key, _plain(value)] for key, value in source.items()]
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
    """Return the values of a run for TensorBoard's HParams page, as arguments of EventLogger.log_comparison.

    Args:
        config: the run's configuration, as nested dicts.
        store, model: the run's tokens and model.
        overrides: the user's overrides, each KEY=VALUE.

    Returns every value of the run by its dotted key, the overridden keys, and all other keys of FIXED that the run has.
    """
    overridden: dict[str, object] = {}
    for override in overrides:
        key, equals, value = override.lstrip("+").partition("=")
        if equals and key not in keys_with("unmeasured"):
            overridden[key] = value

    # The text of an override remains only for keys without a value in the configuration, such as experiment=NAME.
    values = overridden | {key: value for key, value in leaves(config) if value is not None}
    values["tokenizer"] = store.meta["builder"]["name"]
    values["parameters"] = model.n_parameters
    values["overrides"] = shlex.join(overrides)

    changed = ["overrides", *overridden]
    others = [key for key in FIXED if key in values and key not in overridden]
    return values, changed, others


def leaves(tree: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted key and the value of each entry of a configuration, except groups.

    Skip Hydra's keys, which end with an underscore, such as _target_. Every yielded key starts with prefix.
    """
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        elif not str(key).endswith("_"):  # a mapping in a user's own class may have numbers as keys
            yield f"{prefix}{key}", value


def csv_of(lines: Sequence[Line]) -> str:
    """Return the curves of a run's metrics.jsonl as CSV with the columns step and every tag.

    Rows are ordered by step. A cell is empty if its tag was not logged at the step. Non-finite numbers are nan, inf or
    -inf.
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


def _plain(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)
