"""What a run is, as tables: its configuration, its model layer by layer, its data; and what HParams compares."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a report needs neither, and torch takes seconds
    from gptmini.data.store import TokenStore
    from gptmini.model import GPT

# Columns of HParams that every run has, few enough that its figures stay in sight; beside them stands what was changed.
FIXED = ("optimizer.lr", "parameters", "seed", "tokenizer", "trainer.global_batch_size", "trainer.max_steps")
NAMES = ("name", "resume", "data_dir", "runs_dir", "console")  # what changes no figure


def config_table(config: dict) -> list[list[str]]:
    """Every value of a configuration by its dotted key."""
    return [["key", "value"], *([key, _plain(value)] for key, value in leaves(config))]


def model_table(model: "GPT") -> list[list[str]]:
    """Every weight: those that all blocks have stand once."""
    from gptmini.model.gpt import VOCABULARY

    rows, total, n_blocks = [], model.n_parameters, model.config.n_layers
    for name, weight in model.named_parameters():
        block = re.match(r"blocks\.(\d+)\.(.*)", name)
        if block and block[1] != "0":
            continue
        shape = [model.config.vocab_size if name in VOCABULARY else weight.size(0), *weight.shape[1:]]
        times = n_blocks if block else 1
        count = times * int(weight[: shape[0]].numel())
        shown = f"blocks.*.{block[2]}" if block else name
        rows.append([shown, " x ".join(map(str, shape)), str(times), f"{count:,}", f"{count / total:.1%}"])
    heading = ["weight", "shape", "times", "parameters", "share"]
    return [heading, *rows, ["all", "", "", f"{total:,}", "100%"]]


def data_card(store: "TokenStore") -> list[list[str]]:
    """Where the tokens come from, how they are split, and how many there are."""
    source, builder = dict(store.meta["source"]), dict(store.meta["builder"])
    files = source.pop("files", None)
    rows = [["source", source.pop("corpus")], *([key, _plain(value)] for key, value in source.items())]
    if files is not None:
        rows.append(["files", f"{len(files):,}; sha256 of the first {files[0]}"])
    rows.append(["tokenizer", ", ".join((builder.pop("name"), *(f"{key}={value}" for key, value in builder.items())))])
    for split in ("train", "val"):
        counts = f"{store.meta[split]['documents']:,} documents, {store.n_bytes(split):,} bytes"
        per_token = f"{store.n_tokens(split):,} tokens, {1 / store.tokens_per_byte(split):.3f} bytes a token"
        rows.append([split, f"{counts}, {per_token}"])
    return [["", ""], *rows, ["folder", str(store.folder)], ["fingerprint", store.fingerprint]]


def comparison(
    config: dict, store: "TokenStore", model: "GPT", overrides: Sequence[str]
) -> tuple[dict[str, object], list[str], list[str]]:
    """For HParams: every value of a run, the keys that its overrides (KEY=VALUE) changed, and those of FIXED."""
    values = {key: value for key, value in leaves(config) if value is not None}
    values |= {"tokenizer": store.meta["builder"]["name"], "parameters": model.n_parameters}
    values |= {"overrides": shlex.join(overrides)}
    typed = dict(override.lstrip("+").split("=", 1) for override in overrides if "=" in override)
    changed = {key: value for key, value in typed.items() if key not in NAMES}
    values = changed | values  # as typed where there is no value, as of experiment=NAME
    return values, ["overrides", *changed], [key for key in FIXED if key in values and key not in changed]


def leaves(tree: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted key and value of everything that is not a group; what Hydra calls is left out."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        elif not key.endswith("_"):
            yield f"{prefix}{key}", value


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
