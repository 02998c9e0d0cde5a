"""Write a trained model for other programs: gptmini export RUN OUT [options]."""

import argparse
import os
from itertools import chain

from gptmini import interop, page
from gptmini.commands.mistakes import one_line_errors
from gptmini.commands.options import parse_options
from gptmini.console.numbers import with_prefix
from gptmini.console.printable import printable
from gptmini.console.printing import print_lines, print_note, print_resolved_run
from gptmini.loading import checkpoint_source
from gptmini.runs import named_run
from gptmini.settings import SAMPLE_TEMPERATURE, SAMPLE_TOKENS
from gptmini.system.errors import UserError
from gptmini.system.files import encodable
from gptmini.system.process import restore_gc_and_sigint

KINDS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "nanochat")
GGUF = ".gguf"  # suffix of a GGUF file
PAGE = ".html"  # suffix of a web page with the model in it
# The dtypes of each kind of export, by the suffix of its name. The first is the default. A folder has no suffix.
DTYPES = {
    "": ("fp32", "bf16", "fp16"),
    GGUF: ("fp32", "bf16", "fp16", "q8_0"),
    PAGE: ("int8", "bf16", "fp32"),
}
ALL_DTYPES = dict.fromkeys(chain(*DTYPES.values()))
# Suffixes of other files with models. A folder with such a name would look like a file.
OTHERS = (".bin", ".ckpt", ".onnx", ".pt", ".pth", ".safetensors")
# The default settings of gptmini sample, with the names that transformers uses. Without top_k=0, transformers would
# sample only from the 50 most probable tokens.
SAMPLING = {"do_sample": True, "temperature": SAMPLE_TEMPERATURE, "top_k": 0}
# Above this number of parameters, a page is slow. Chromium multiplies about MULTIPLIED weights per second
# (docs/results/browser.json, SmolLM2-135M).
MANY_PARAMETERS = 60_000_000
MULTIPLIED = 8e8


OPTIONS = f"""
run RUN  run folder such as runs/latest, or checkpoint file; runs/NAME means its latest run with a checkpoint
out FILE  new folder to write; new GGUF file if the name ends in .gguf; new web page if it ends in .html
--as {"|".join(KINDS)}  model type of the folder (default: the type of the imported model, or the most supported one)
--dtype {"|".join(ALL_DTYPES)}  dtype of the weights; q8_0, 8.5 bits per weight, is for GGUF files and int8 for pages \
(default: int8 for a page, otherwise fp32)
"""
DESCRIPTION = (
    "Write a trained model as a Hugging Face folder for transformers and programs based on it, as a GGUF file for "
    "llama.cpp and programs based on it, or as a web page that any browser opens without a server."
)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    options = parse_options("export", DESCRIPTION, OPTIONS, arguments)
    options.kind = vars(options)["as"]
    suffix = options.out.suffix.lower()
    if suffix in OTHERS:
        raise UserError(
            f"cannot write {suffix}; give a folder, a {GGUF} or a {PAGE} file, got {options.out}"
        )
    options.suffix = suffix if suffix in DTYPES else ""
    if options.suffix and options.kind is not None:
        raise UserError(f"--as applies only to a folder, not to a {suffix} file; leave out --as")
    dtypes = DTYPES[options.suffix]
    options.dtype = options.dtype or dtypes[0]
    if options.dtype not in dtypes:
        fitting = " or ".join(
            f"a {kind} file" if kind else "a folder"
            for kind in DTYPES
            if options.dtype in DTYPES[kind]
        )
        raise UserError(f"--dtype {options.dtype} requires {fitting}, got {options.out}")
    return options


@one_line_errors()
def main(arguments: list[str]) -> None:
    """Load a model and write it as a folder or as a file. Print the name, the type and the size of what was written."""
    options = parse(arguments)
    run = named_run(options.run, saved=True)

    restore_gc_and_sigint()
    out = options.out
    if options.suffix and os.path.lexists(out):
        raise UserError(f"{out} already exists; delete it or choose a different name")
    if not options.suffix:
        interop.require_empty(out)

    source = checkpoint_source(run)
    model = source.model()
    kind = None
    if options.suffix == PAGE:
        page.write_page(
            out,
            model,
            source.tokenizer,
            name=printable(options.run.name or options.run.resolve().name),
            dtype=options.dtype,
            defaults={"temperature": SAMPLE_TEMPERATURE, "max_tokens": SAMPLE_TOKENS},
        )
    elif options.suffix == GGUF:
        kind = interop.write_gguf(
            out,
            model,
            source.tokenizer,
            name=encodable(out.stem),
            dtype=options.dtype,
            published=source.published,
        )
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

    form = "a page" if kind is None else interop.ARCHITECTURES[kind].class_name
    print_resolved_run(options.run, run)
    files = out.iterdir() if out.is_dir() else [out]
    n_bytes = sum(file.stat().st_size for file in files)
    print_lines(
        f"{out}, {form} in {options.dtype}: {model.n_parameters:,} parameters, "
        f"{with_prefix(n_bytes, 'B')}"
    )
    if options.suffix == PAGE and model.n_parameters > MANY_PARAMETERS:
        rate = MULTIPLIED / model.n_parameters
        print_note(f"note: a browser will write about {rate:.2g} tokens per second")
