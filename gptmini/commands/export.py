"""Write a trained model for other programs: gptmini export RUN OUT [options]."""

import argparse
import os

from gptmini import interop
from gptmini.commands.mistakes import one_line_errors
from gptmini.commands.options import parse_options
from gptmini.console.numbers import with_prefix
from gptmini.console.printing import print_lines, print_resolved_run
from gptmini.loading import checkpoint_source
from gptmini.runs import named_run
from gptmini.settings import SAMPLE_TEMPERATURE
from gptmini.system.errors import UserError
from gptmini.system.files import encodable
from gptmini.system.process import restore_gc_and_sigint

KINDS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "nanochat")
DTYPES = ("fp32", "bf16", "fp16", "q8_0")
GGUF = ".gguf"  # suffix of a GGUF file
# Suffixes of other files with models. A folder with such a name would look like a file.
OTHERS = (".bin", ".ckpt", ".onnx", ".pt", ".pth", ".safetensors")
# The default settings of gptmini sample, with the names that transformers uses. Without top_k=0, transformers would
# sample only from the 50 most probable tokens.
SAMPLING = {"do_sample": True, "temperature": SAMPLE_TEMPERATURE, "top_k": 0}


OPTIONS = f"""
run RUN  run folder such as runs/latest, or checkpoint file; runs/NAME means its latest run with a checkpoint
out FILE  new folder to write, or new GGUF file if the name ends in .gguf
--as {"|".join(KINDS)}  model type of the folder (default: the type of the imported model, or the most supported one)
--dtype {"|".join(DTYPES)}=fp32  dtype of the weights; q8_0 stores 8.5 bits per weight and requires a GGUF file
"""
DESCRIPTION = (
    "Write a trained model as a Hugging Face folder for transformers and programs based on it, or as a GGUF file for "
    "llama.cpp and programs based on it."
)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    options = parse_options("export", DESCRIPTION, OPTIONS, arguments)
    options.kind = vars(options)["as"]
    suffix = options.out.suffix.lower()
    if suffix in OTHERS:
        raise UserError(f"cannot write {suffix}; give a folder or a {GGUF} file, got {options.out}")
    options.is_gguf = suffix == GGUF
    if options.is_gguf and options.kind is not None:
        raise UserError("--as applies only to a folder, not to a GGUF file; leave out --as")
    if not options.is_gguf and options.dtype == "q8_0":
        raise UserError(f"--dtype q8_0 requires a file name that ends in {GGUF}, got {options.out}")
    return options


@one_line_errors()
def main(arguments: list[str]) -> None:
    """Load a model and write it as a folder or as a file. Print the name, the type and the size of what was written."""
    options = parse(arguments)
    run = named_run(options.run, saved=True)

    restore_gc_and_sigint()
    out = options.out
    if options.is_gguf and os.path.lexists(out):
        raise UserError(f"{out} already exists; delete it or choose a different name")
    if not options.is_gguf:
        interop.require_empty(out)

    source = checkpoint_source(run)
    model = source.model()
    if options.is_gguf:
        kind = interop.write_gguf(
            out,
            model,
            source.tokenizer,
            name=encodable(out.stem),
            dtype=options.dtype,
            published=source.published,
        )
        n_bytes = out.stat().st_size
    else:
        kind = interop.write_folder(
            out,
            model,
            source.tokenizer,
            kind=options.kind,
            dtype=options.dtype,
            sampling=SAMPLING,
            published=source.published,
        )
        n_bytes = sum(file.stat().st_size for file in out.iterdir())

    print_resolved_run(options.run, run)
    print_lines(
        f"{out}, {interop.ARCHITECTURES[kind].class_name} in {options.dtype}: {model.n_parameters:,} parameters, "
        f"{with_prefix(n_bytes, 'B')}"
    )
