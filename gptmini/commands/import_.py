"""Make a run of a model that another program has trained: gptmini import SOURCE RUN [options]."""

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.commands.mistakes import Parser, one_line_errors, path_argument
from gptmini.job.say import command_line, say
from gptmini.loading import local_path
from gptmini.process import started
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.model import GPT, GPTConfig
    from gptmini.tokenizer import Tokenizer


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; argparse refuses an unknown option or a value of the wrong type."""
    parser = Parser(
        prog="gptmini import",
        description="Make a run of a model that another program has trained, to sample from it and to evaluate it.",
    )

    parser.add_argument(
        "source",
        help="folder of a GPT-2, Llama, Mistral or Qwen (safetensors, and tokenizer.json or vocab.json with "
        "merges.txt) or of what gptmini export wrote, nanoGPT's ckpt.pt, or the name of a model on the Hugging Face "
        "hub, as openai-community/gpt2",
    )

    parser.add_argument("run", type=path_argument, help="run folder to write, as runs/gpt2")

    parser.add_argument(
        "--meta",
        type=path_argument,
        help="nanoGPT's meta.pkl, for a ckpt.pt of characters (default: GPT-2's tokenizer)",
    )

    return parser.parse_args(arguments)


@one_line_errors()
def main(arguments: list[str] | None = None) -> None:
    """Read a model and its tokenizer, and write them as the best checkpoint of a run."""
    options = parse(arguments)
    folder = options.run

    from gptmini.checkpoint.file import header, write_checkpoint
    from gptmini.files import new_folder
    from gptmini.interop.folder import check_is_free
    from gptmini.interop.folder_settings import read_published

    started()
    check_is_free(folder)
    source = local_path(options.source)
    model, tokenizer = read_model(options.source, source, options.meta)
    state = {f"model.{name}": weight for name, weight in model.state_dict().items()}
    described = header(model.config, tokenizer.to_dict(), published=read_published(source))
    checkpoint = {"gptmini": described, "state_dict": state}
    with new_folder(folder) as temporary:
        (temporary / "checkpoints").mkdir()
        write_checkpoint(checkpoint, temporary / "checkpoints" / "best.ckpt")
        _describe(temporary, options.source, model.config)

    print(
        f"{folder}, {model.n_parameters:,} parameters, {tokenizer.n_vocab:,} ids, context "
        f"{model.config.context_length:,}"
    )
    say("next", command_line("sample", str(folder)))


def _describe(folder: Path, source: str, sizes: "GPTConfig") -> None:
    """Write what makes a folder a run for the other commands: one that has trained for no step.

    Args:
        folder: of the run.
        source: what the user has named.
        sizes: of the model.
    """
    import yaml

    from gptmini.report.tables import config_table
    from gptmini.runs import RunState, write_state
    from gptmini.runs.metrics import FILE, STEP, TIME, line_of
    from gptmini.runs.run_folder import write_config

    config = {"init_from": source, "model": asdict(sizes), "trainer": {"max_steps": 0}}
    write_config(yaml.safe_dump(config, sort_keys=False), folder, [f"init_from={source}"])
    write_state(folder, RunState(state="done", step=0))
    line = line_of({STEP: 0, TIME: time.time(), "setup/config": config_table(config)})
    (folder / FILE).write_bytes(line)


def read_model(source: str, path: Path, meta: Path | None) -> "tuple[GPT, Tokenizer]":
    """The model and the tokenizer of a folder, or of a checkpoint of nanoGPT.

    Args:
        source: what the user has named.
        path: where it is, as local_path says.
        meta: nanoGPT's meta.pkl; None for none.

    Raises UserError: nothing there, or nothing that GPT computes.
    """
    from gptmini.interop import read_folder, read_nanogpt
    from gptmini.interop.not_read import check_is_read

    check_is_read(path)
    if path.is_file() and path.suffix == ".safetensors":
        raise UserError(f"{path} is read with the files beside it; name its folder")
    if path.is_file():
        return read_nanogpt(path, meta)
    if meta is not None:
        raise UserError(f"--meta belongs to a ckpt.pt of nanoGPT, got {source}")
    if not path.exists():
        raise UserError(
            f"{source} must be a folder, a file, or a name on the hub, and does not exist"
        )
    if path.is_dir() and not (path / "config.json").exists():
        raise UserError(
            f"{source} must be a Hugging Face folder (config.json, model.safetensors, tokenizer.json), and has no "
            "config.json"
        )
    return read_folder(path)
