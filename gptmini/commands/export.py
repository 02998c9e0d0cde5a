"""Write a trained model for other programs: gptmini export RUN OUT [options]."""

import argparse
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.commands.errors import Parser, one_line_errors, path_argument
from gptmini.commands.named import say_which
from gptmini.commands.sample import TEMPERATURE
from gptmini.commands.start_up import started, starting_up
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.interop import Training

KINDS = ("gpt2", "apertus", "nanochat")
DTYPES = ("fp32", "bf16", "fp16", "q8_0")
GGUF = ".gguf"  # ends the name of a GGUF file
# How gptmini sample draws where nothing else is asked for, in the names of transformers, which draws from the 50 most
# probable tokens unless top_k is 0.
SAMPLING = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; argparse refuses an unknown option or a value of the wrong type."""
    parser = Parser(
        prog="gptmini export",
        description="Write a trained model as a Hugging Face folder, which transformers and what builds on it reads, "
        "or as a GGUF file, which llama.cpp and what builds on it reads.",
    )

    parser.add_argument(
        "run",
        help="run folder (its best checkpoint) or checkpoint file, as in runs/latest; "
        "runs/NAME for its newest run",
    )

    parser.add_argument(
        "out",
        type=path_argument,
        help="folder to write, which must not be there yet; or, with a name that ends in .gguf, file to write",
    )

    parser.add_argument(
        "--as",
        dest="kind",
        choices=KINDS,
        help="model type of a folder (default: the most widely known that computes what the model does)",
    )

    parser.add_argument(
        "--dtype",
        default="fp32",
        choices=DTYPES,
        help="of the weights; q8_0, 8.5 bits a weight, for a GGUF file (default: %(default)s)",
    )

    return parser.parse_args(arguments)


@one_line_errors()
@starting_up()
def main(arguments: list[str] | None = None) -> None:
    """Load a model, write the folder or the file, and say what it is."""
    options = parse(arguments)
    out = Path(options.out)
    is_gguf = out.name.lower().endswith(GGUF)
    if is_gguf and os.path.lexists(out):
        raise UserError(f"{out} must not exist yet; delete it, or name another")
    if is_gguf and options.kind is not None:
        raise UserError("--as chooses the form of a folder; a GGUF file has one form")
    if not is_gguf and options.dtype == "q8_0":
        raise UserError(f"--dtype q8_0 needs a name that ends in {GGUF}, got {out}")
    if not _is_unicode(str(out)):
        raise UserError(f"{str(out)!r} must be a name in UTF-8, which the exported files hold")

    from rich.console import Console

    from gptmini.interop import ARCHITECTURES, write_folder, write_gguf
    from gptmini.interop.folder import check_is_free
    from gptmini.loading import model_and_tokenizer
    from gptmini.model.checkpoint import read_checkpoint
    from gptmini.run_folder import find_checkpoint, named_run

    started()
    if not is_gguf:
        check_is_free(out)
    run = named_run(options.run)
    checkpoint = find_checkpoint(run)
    contents = read_checkpoint(checkpoint)
    model, tokenizer = model_and_tokenizer(contents, checkpoint)

    if is_gguf:
        kind = write_gguf(out, model, tokenizer, name=out.stem, dtype=options.dtype)
        n_bytes = out.stat().st_size
        checked = "every weight read back"
    else:
        written = write_folder(
            out,
            model,
            tokenizer,
            training_of(checkpoint, contents),
            kind=options.kind,
            dtype=options.dtype,
            sampling=SAMPLING,
        )
        n_bytes = sum(file.stat().st_size for file in out.iterdir())
        kind = written.kind
        checked = f"read back, {_said(written.difference)}"

    say_which(options.run, run)
    console = Console(soft_wrap=True, highlight=False)
    console.print(
        f"{out}, {ARCHITECTURES[kind].class_name} in {options.dtype}: {model.n_parameters:,} parameters, "
        f"{n_bytes / 1e6:,.1f} MB; {checked}",
        markup=False,
    )


def _is_unicode(text: str) -> bool:
    """Whether a text has no bytes that are no character, which Python keeps as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _said(difference: float) -> str:
    """A clause on how far the logits of a folder are from the model's."""
    if not difference:
        return "its logits equal the model's"
    return f"its logits differ from the model's by at most {difference:.1e} of the largest"


def training_of(checkpoint: Path, contents: dict) -> "Training":
    """What the folder of a run tells of the training of a checkpoint, whose contents read_checkpoint has read."""
    from gptmini.interop import Training
    from gptmini.report.scalar_table import FILE

    step = contents.get("global_step")
    header = contents["gptmini"]
    data = header.get("data")
    text = None
    if isinstance(data, dict):
        # The name of a prepared folder is that of the text, of the tokenizer, and a digest.
        text = Path(str(data.get("folder", ""))).name.rsplit("-", 2)[0] or None

    # Resolved, because the folder of runs/latest is a link.
    scalars = _scalars_of_step(checkpoint.resolve().parent.parent / FILE, step)
    n_tokens = scalars.get("train/tokens")
    return Training(
        text=text,
        version=header.get("version"),
        step=step,
        n_tokens=None if n_tokens is None else round(n_tokens),
        val_loss=scalars.get("val/loss"),
        bits_per_byte=scalars.get("val/bits_per_byte"),
        init_from=_origin_in(header),
    )


def _origin_in(header: dict) -> dict[str, str] | None:
    """Path and digest of the weights that a run began with, if its checkpoint names them."""
    from gptmini.loading import is_digest

    origin = header.get("init_from")
    if not isinstance(origin, dict):
        return None

    path = origin.get("path")
    digest = origin.get("digest")
    if type(path) is not str or not is_digest(digest):
        return None
    # A stranger may have written the checkpoint, and the name goes into a table of Markdown.
    name = re.sub(r"[^\w.-]", "-", Path(path).name)
    return {"path": name, "digest": digest}


def _scalars_of_step(path: Path, step: int | None) -> dict[str, float]:
    """The finite scalars that a run logged at a step; empty where its metrics.csv does not have them.

    Raises UserError: the file is not one that a run has written.
    """
    from gptmini.report.scalar_table import read_rows

    if step is None or not path.is_file():
        return {}

    _, rows = read_rows(path)
    scalars = {}
    for tag, text in rows.get(step, {}).items():
        value = _number_in(text)
        if value is not None and math.isfinite(value):
            scalars[tag] = value
    return scalars


def _number_in(text: str) -> float | None:
    """The number in a cell of metrics.csv; None where there is none."""
    try:
        return float(text)
    except ValueError:
        return None
