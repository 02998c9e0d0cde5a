"""Tokenise a text into a folder: gptmini prepare [KEY=VALUE ...]; --help lists groups and keys."""

from collections.abc import Sequence

from gptmini.commands.launching import run_configured
from gptmini.commands.start_up import resume_collector


def tokenise(config, overrides: Sequence[str] = ()) -> None:
    """Prepare the tokens, or find them prepared, and say where they are."""
    from hydra.utils import instantiate
    from omegaconf import OmegaConf
    from rich.console import Console

    from gptmini.data import prepare
    from gptmini.data.store import SPLITS

    resume_collector()
    OmegaConf.resolve(config)
    console = Console(soft_wrap=True, highlight=False)
    with console.status("reading text"):
        store, written = prepare(
            instantiate(config.data), instantiate(config.tokenizer, _convert_="all"), config.data_dir
        )
    console.print(f"{store.folder}, {'prepared now' if written else 'prepared before'}", markup=False)
    for split in SPLITS:
        n_tokens, n_bytes = store.n_tokens(split), store.n_bytes(split)
        console.print(f"{split:5} {n_tokens:,} tokens, {n_bytes:,} bytes, {n_bytes / n_tokens:.2f} bytes a token")


def main(arguments: list[str] | None = None) -> None:
    """Tokenise for overrides, those of the command line if none are given."""
    run_configured("prepare", tokenise, arguments=arguments)
