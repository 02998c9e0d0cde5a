"""Create a run from a model that another program trained: gptmini import SOURCE RUN [options]."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from gptmini import checkpoint, interop
from gptmini.commands.mistakes import one_line_errors
from gptmini.commands.options import parse_options
from gptmini.console.printing import print_lines, print_topic, sampling_command
from gptmini.loading import local_path, source_of
from gptmini.model import GPTConfig
from gptmini.report import config_table
from gptmini.runs import METRICS, STEP, TIME, RunStatus, line_of, write_config, write_status
from gptmini.system.errors import UserError
from gptmini.system.files import new_folder
from gptmini.system.process import restore_gc_and_sigint
from gptmini.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gptmini.model import GPT


OPTIONS = """
source SOURCE  Hugging Face folder, nanoGPT's ckpt.pt, or name of a model on the hub, such as openai-community/gpt2
run RUN  new run folder, such as runs/gpt2
--meta FILE  nanoGPT's meta.pkl, if the vocabulary of ckpt.pt consists of characters (default: GPT-2's tokenizer)
"""
DESCRIPTION = (
    "Create a run from a model that another program trained, to sample, evaluate or fine-tune it. A Hugging Face "
    "folder must contain a GPT-2, Llama, Mistral or Qwen model with safetensors files and tokenizer.json."
)


@one_line_errors()
def main(arguments: list[str]) -> None:
    """Read a model and its tokenizer, and write them as the best checkpoint of a run."""
    options = parse_options("import", DESCRIPTION, OPTIONS, arguments)
    folder = options.run

    restore_gc_and_sigint()
    interop.require_empty(folder)
    source = local_path(options.source)
    model, tokenizer = read_model(options.source, source, options.meta)
    state = {f"model.{name}": weight for name, weight in model.state_dict().items()}
    described = checkpoint.header(
        model.config, tokenizer.to_dict(), published=interop.read_source_settings(source)
    )
    contents = {"gptmini": described, "state_dict": state}
    with new_folder(folder) as temporary:
        (temporary / "checkpoints").mkdir()
        checkpoint.write_checkpoint(contents, temporary / "checkpoints" / "best.ckpt")
        _describe(temporary, options.source, model.config)

    print_lines(
        f"{folder}, {model.n_parameters:,} parameters, {tokenizer.n_vocab:,} ids, context "
        f"{model.config.context_length:,}"
    )
    print_topic("next", sampling_command(folder, tokenizer.chat_template))


def _describe(folder: Path, source: str, sizes: GPTConfig) -> None:
    """Write what the other commands require, so that they read the folder as a run of zero steps."""
    config = {"init_from": source, "model": asdict(sizes), "trainer": {"max_steps": 0}}
    write_config(yaml.safe_dump(config, sort_keys=False), folder, [f"init_from={source}"])
    write_status(folder, RunStatus(state="done", step=0))
    line = line_of({STEP: 0, TIME: time.time(), "setup/config": config_table(config)})
    (folder / METRICS).write_bytes(line)


def read_model(source: str, path: Path, meta: Path | None) -> "tuple[GPT, Tokenizer]":
    """Read the model and the tokenizer of SOURCE: a folder, or nanoGPT's checkpoint with its meta.pkl."""
    is_of_nanogpt = path.is_file() and path.suffix not in (".gguf", ".safetensors")
    if is_of_nanogpt:
        return interop.read_nanogpt(path, meta)
    if meta is not None:
        raise UserError(f"--meta applies only to nanoGPT's ckpt.pt, got {source}")
    if not (path / "config.json").exists():
        raise UserError(
            f"cannot import {source}; give a Hugging Face folder (config.json, model.safetensors, tokenizer.json), "
            "nanoGPT's ckpt.pt, or the name of a model on the hub; GGUF files and adapters cannot be imported"
        )
    model_source = source_of(path)
    return model_source.model(), model_source.tokenizer
