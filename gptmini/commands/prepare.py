"""Tokenise a text into a folder: gptmini prepare [KEY=VALUE ...]; --help lists groups and keys."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gptmini.checks import UserError, shown
from gptmini.commands.errors import naming_keys
from gptmini.commands.inspecting import inspection
from gptmini.commands.launching import run_configured
from gptmini.commands.plan import check_text
from gptmini.commands.progress import ProgressLine
from gptmini.commands.start_up import started

if TYPE_CHECKING:
    from omegaconf import DictConfig


def tokenise(
    config: "DictConfig",
    overrides: Sequence[str] = (),
    label: str = "",
    config_dir: str | None = None,
) -> None:
    """Tokenise a text, unless an earlier command has done so, and print the folder and the size of each split.

    Args:
        config: the composed configuration, with data, tokenizer and data_dir.
        overrides: what was typed. Not read, like label and config_dir: every task of run_configured is called with all.
        label: what tells a job of a sweep from the others.
        config_dir: a folder of the user's own that adds options to the groups.
    """
    from rich.console import Console

    from gptmini.commands.tokens import open_tokens
    from gptmini.data import Watcher
    from gptmini.data.format import SPLITS

    # The large imports are done: from here on there is garbage to collect, and work that a Ctrl-C may not cut off.
    started()
    check(config)

    console = Console(soft_wrap=True, highlight=False)
    with ProgressLine(console) as line, naming_keys(data_dir=config.data_dir):
        watcher = Watcher(
            on_progress=line.show,
            on_note=lambda note: console.print(note, markup=False),
            on_warning=lambda note: console.print(f"warning: {note}", markup=False),
        )
        try:
            store, written = open_tokens(config, None, watcher=watcher)
        except KeyboardInterrupt:
            if line.phase == "tokenising":
                console.print("interrupted; the same command goes on with what is encoded already")
            else:
                console.print(
                    "interrupted before the text was encoded; the same command begins again"
                )
            raise
        if config.verify:
            store.verify()
        lines = list(inspection(store, line.show)) if config.inspect else []

    origin = "prepared now" if written else "prepared before"
    if config.verify:
        found = "every checksum" if store.has_checksums else "the size of every token file"
        origin += f", {found} is right"
    console.print(f"{store.folder}, {origin}", markup=False, emoji=False)
    for split in SPLITS:
        n_tokens = store.n_tokens(split)
        n_bytes = store.n_bytes(split)
        sizes = f"{n_tokens:,} tokens, {n_bytes:,} bytes, {n_bytes / n_tokens:.2f} bytes a token"
        console.print(f"{split:5} {sizes}")
    for text in ["", *lines] if lines else []:
        console.print(text, markup=False, emoji=False)


def check(config: "DictConfig") -> None:
    """Check what is asked for before the text is read.

    Raises UserError: a value of the wrong type or out of range, or a text that is not there.
    """
    if config.resume is not None:
        raise UserError(
            f"resume must be null for gptmini prepare, which goes on with no run, got resume={config.resume}"
        )
    for key in ("verify", "inspect"):
        if type(config[key]) is not bool:
            raise UserError(f"{key} must be true or false, got {shown(config[key])}")
    check_text(config)


def main(arguments: list[str] | None = None) -> None:
    """Tokenise as a list of overrides says; None takes the overrides of the command line."""
    run_configured("prepare", tokenise, arguments=arguments, check=check)
