"""Measure the rule behind budget=: the runs that its law was fitted to, a new fit, and the default sizes.

The part grid trains 90 runs, which takes hours. If you run it again with the same --out, it continues where it stopped.
The part law reads the rows of grid. The part compare trains the default sizes for the same time. The machine must not
run anything else.
"""

import argparse
import math
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch

from gptmini.model import preset
from gptmini.training.budget import law, timing

from .fits import subject_of
from .harness import UNWATCHED, Table, given, read_results, train

# Values of the grid: seconds, widths, numbers of blocks and numbers of ids.
SECONDS = (20, 60, 180)
WIDTHS = (64, 96, 128, 192, 256)
BLOCKS = (2, 4)
IDS = (2000, 4000, 8000)
TOKENS_A_STEP = 2048
STARTS = 40  # random starts of the fit; the best result is kept

# Seconds of a command outside its steps and validations, if the text is already prepared.
AROUND = 5.5


class Cell(NamedTuple):
    """A text file of --texts that the law was not fitted to, and the time of a run."""

    name: str
    val_fraction: float
    seconds: int

    def __str__(self) -> str:
        """Return a label such as "prose, 60 s"."""
        return f"{self.name}, {self.seconds} s"

    def overrides(self, arguments: argparse.Namespace) -> list[str]:
        """Return the overrides that choose the text."""
        path = given(arguments, "texts") / f"{self.name}.txt"
        return text_of(path, self.val_fraction, arguments)


CELLS = (
    *(Cell("prose", 0.1, seconds) for seconds in (60, 180)),  # 200 KB
    *(Cell("code", 0.04, seconds) for seconds in (60, 180)),  # 2 MB
    *(Cell("german", 0.01, seconds) for seconds in (60, 180, 600)),  # 20 MB
)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    add("--grid-text", type=Path, help="text file for the grid, at least 20 MB")
    add("--texts", type=Path, help="folder with prose.txt, code.txt and german.txt")
    add("--data", default="data", help="folder for prepared texts (default: %(default)s)")


def text_of(path: Path, val_fraction: float, arguments: argparse.Namespace) -> list[str]:
    """Return overrides that choose a text and validate on all of its held-out part."""
    return [
        "data=text",
        f"data.path={path}",
        f"data.val_fraction={val_fraction}",
        f"data_dir={arguments.data}",
        "trainer.val_tokens=null",
        *UNWATCHED,
    ]


def measured_before(table: Table, arguments: argparse.Namespace) -> set[str]:
    """Restore the rows that earlier calls measured for this part; return their names."""
    if not arguments.out.is_file():
        return set()
    rows = [row for row in read_results(arguments.out)["rows"] if row["part"] == table.part]
    table.rows += rows
    return {row["what"] for row in rows}


# The law


def measure_grid(table: Table, arguments: argparse.Namespace) -> None:
    """Train a model for each combination of time, vocabulary, width and number of blocks."""
    text = text_of(given(arguments, "grid_text"), 0.02, arguments)
    known = measured_before(table, arguments)
    for seconds, n_vocab, width, n_layers in product(SECONDS, IDS, WIDTHS, BLOCKS):
        what = f"{seconds} s, {n_layers} blocks of {width}, {n_vocab:,} ids"
        if what in known:
            continue
        with_ids = [*text, f"tokenizer.vocab_size={n_vocab}"]
        ended = train(
            *with_ids,
            f"model.d_model={width}",
            f"model.n_layers={n_layers}",
            f"trainer.global_batch_size={TOKENS_A_STEP // 128}",
            "model.context_length=128",
            f"budget={seconds}",
        )

        sizes = law.sizes_for_width(width) | {"n_layers": n_layers}
        tokens_per_byte = subject_of(with_ids).store.tokens_per_byte("train")
        table.add(
            what,
            ended.of("val/bits_per_byte")[-1],
            n_weights=law.n_block_weights(preset("qwen_tiny", vocab_size=n_vocab, **sizes)),
            n_bytes=ended.lines[-1]["step"] * TOKENS_A_STEP / tokens_per_byte,
            n_vocab=n_vocab,
        )


def measure_law(table: Table, arguments: argparse.Namespace) -> None:
    """Measure the error of the law on the grid, with the constants of the rule and with newly fitted constants."""
    rows = [row for row in table.rows if row["part"] == "grid"]
    sizes = [(row["n_weights"], row["n_bytes"], row["n_vocab"]) for row in rows]
    bits = torch.tensor([row["figure"] for row in rows], dtype=torch.float64)  # (runs,)
    ruled = torch.tensor([law.predicted_loss(*of_run) for of_run in sizes]) / bits - 1
    fitted = errors_of_fit(torch.tensor(sizes, dtype=torch.float64), bits)
    for name, errors in (("of the rule", ruled), ("of a new fit", fitted)):
        square = errors.square().mean().item()
        method = f"{len(rows)} runs"
        table.add(f"relative error {name}: root of the mean square", square**0.5, method=method)
        table.add(f"relative error {name}: largest", errors.abs().max().item(), method=method)


def errors_of_fit(sizes: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Fit the constants of the law by least squares; return the relative errors, (runs,).

    Args:
        sizes: weights, bytes and ids of each run, (runs, 3).
        bits: bits per byte of each run, (runs,).
    """
    logs = (sizes / torch.tensor([1e6, 1e6, 4000.0])).log()  # (runs, 3)

    def errors_with(constants: torch.Tensor) -> torch.Tensor:
        terms = (constants[1:4] - constants[4:] * logs).exp()  # (runs, 3)
        return (constants[0] + terms.sum(dim=1)) / bits - 1

    best = torch.full_like(bits, torch.inf)
    for seed in range(STARTS):
        generator = torch.Generator().manual_seed(seed)
        constants = torch.randn(7, generator=generator, dtype=torch.float64) / 2
        constants.requires_grad_()
        optimizer = torch.optim.LBFGS([constants], max_iter=2000, line_search_fn="strong_wolfe")

        def closure(optimizer=optimizer, constants=constants) -> torch.Tensor:
            optimizer.zero_grad()
            loss = errors_with(constants).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        found = errors_with(constants).detach()
        if found.square().sum() < best.square().sum():
            best = found
            factors = [*constants[:1].tolist(), *constants[1:4].exp().tolist()]
            print(f"  constant, factors: {factors}; powers: {constants[4:].tolist()}")
    return best


# The rule


def steps_of(cell: Cell, overrides: list[str]) -> list[str]:
    """Return overrides for the steps and validations that fit into the time of a cell, over any number of epochs."""
    subject = subject_of(overrides)
    module, _ = subject.assemble()
    seconds_a_step, _ = timing.measure_module(module, seconds=0.03 * cell.seconds)
    n_steps, val_every = timing.steps_that_fit(
        cell.seconds - AROUND,
        seconds_a_step,
        timing.seconds_of_validation(seconds_a_step, module),
        most=math.inf,
    )
    return [f"trainer.max_steps={n_steps}", f"trainer.val_every_steps={val_every}"]


def measure_compare(table: Table, arguments: argparse.Namespace) -> None:
    """Train for the time of each cell, first with the default sizes and then with budget=."""
    for cell in CELLS:
        text = cell.overrides(arguments)
        default = train(*text, *steps_of(cell, text))
        chosen = train(*text, f"budget={cell.seconds}")
        bits, of_default = (min(run.of("val/bits_per_byte")) for run in (chosen, default))
        table.add(
            f"{cell}: bits per byte",
            bits,
            of_default=of_default,
            seconds_of_default=default.seconds,
        )
        table.add(f"{cell}: divided by the default sizes", bits / of_default, goal="below 1")
        spent = chosen.seconds / cell.seconds
        table.add(
            f"{cell}: seconds of the command, divided by the budget", spent, goal="at most 1.1"
        )


PARTS = {
    "grid": measure_grid,
    "law": measure_law,
    "compare": measure_compare,
}
