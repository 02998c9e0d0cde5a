"""What a GPU is to show: checks, two whole runs, the speed ladder at 124 M parameters, a peer, kernels, sampling.

Prints a table, and writes it as JSON, row by row. Starts no row for which its minutes will probably not do. Exits 1 if
a check failed. --dry-run does every part on the CPU, at toy sizes, so that no line of it meets a GPU untried.
"""

import argparse
import gc
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import lightning as L
import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gptmini.checks import UserError
from gptmini.commands.configuration import quoted
from gptmini.commands.errors import Parser
from gptmini.commands.launching import compose_checked
from gptmini.commands.plan import check_configuration
from gptmini.files import replacing
from gptmini.hardware import choose_hardware, clock, keep_freed_memory, memory, peak_flops, peak_memory, use_tf32
from gptmini.model.loss import PiecewiseLoss
from gptmini.training import GPTModule, Stopping, build_trainer
from gptmini.training.trainer import assemble

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = ("machine", "checks", "runs", "ladder_gpt2", "ladder_modern", "peer", "kernels", "sampling")
KERNELS = 10  # of a profile that are shown
RUNG_SECONDS = 75.0  # that a fit is expected to take before one was measured: compiling, and 60 steps
CHECKS_SHARE = 0.5  # of the time left that the checks may take when other parts follow
ON_THE_CPU = {"default": 3.5222, "shakespeare_char": 1.4335}  # validation losses, as docs/results.md has them


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is: for a GPU, or for a dry run."""

    sizes: tuple[str, ...]  # overrides of both presets
    n_vocab: int  # of the synthetic tokens
    gain: float  # of the speed, from which on a lever is said to help
    steps: int  # of a rung of the ladder
    first: int  # step from which on a rung is timed
    sequences: int  # in the global batch of a rung
    batch_sizes: tuple[int, ...]  # micro-batches that are tried
    product: int  # rows and columns of the product that gives the machine's own peak
    runs: tuple[str, ...]  # overrides of the whole runs
    sampling: tuple[str, ...]  # arguments of benchmark.py sampling


FULL = Scale(
    sizes=(),
    n_vocab=50257,
    gain=1.01,
    steps=60,
    first=20,
    sequences=128,  # 131,072 tokens, a quarter of the experiments', so that a rung is over in a minute
    batch_sizes=(16, 32, 64),
    product=8192,
    runs=(),
    sampling=("--sizes", "gpt2", "--batch-sizes", "1", "64", "--new-tokens", "512", "--dtype", "bf16", "--compile"),
)
TOY = Scale(
    sizes=("model.context_length=32", "model.d_model=32", "model.n_layers=2", "model.n_heads=2"),
    n_vocab=300,
    gain=0.0,  # toys are timed by chance: all levers are pulled together
    steps=6,
    first=2,
    sequences=8,
    batch_sizes=(2, 4),
    product=64,
    runs=(
        "trainer.max_steps=2",
        "trainer.val_every_steps=2",
        "trainer.val_tokens=64",
        "trainer.global_batch_size=2",
        "callbacks.pictures=null",
        "callbacks.samples=null",
    ),
    sampling=("--sizes", "char", "--batch-sizes", "1", "2", "--new-tokens", "4", "--turns", "1"),
)


@dataclass
class Table:
    """Rows, printed and saved as they come, until the deadline."""

    path: Path
    deadline: float  # of time.monotonic
    rows: list[dict] = field(default_factory=list)
    longest: dict[str, float] = field(default_factory=dict)  # seconds of a part's longest row so far

    def measure(self, part: str, row: str, function: Callable[[], dict], *, expected: float = 0.0) -> dict | None:
        """Add a row of what the function returns; one that fails is a row too, and returns None.

        It is not begun where less time is left than the part's longest row took, or than is expected of its first.
        """
        if self.left() < self.longest.get(part, expected):
            self.add(part, row, "no time left")
            return None

        start = time.monotonic()
        try:
            figures = function()
        except Exception as error:  # of whatever class: the other rows are worth having
            reason = " ".join(str(error).split())[:300]
            self.add(part, row, "failed", error=f"{type(error).__name__}: {reason}")
            figures = None
        else:
            self.add(part, row, "measured", **figures)
        self.longest[part] = max(self.longest.get(part, 0.0), time.monotonic() - start)
        return figures

    def add(self, part: str, row: str, status: str, **figures: float | str) -> None:
        """Print a row, and save all of them."""
        self.rows.append({"part": part, "row": row, "status": status, **figures})
        shown = ", ".join(f"{name} {_shown(figure)}" for name, figure in figures.items())
        print(f"{part:14} {row:36} {status:10} {shown}", flush=True)
        with replacing(self.path) as file:
            file.write(json.dumps(self.rows, indent=1).encode())

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()


@dataclass(frozen=True)
class Setting:
    """What all parts share."""

    table: Table
    scale: Scale
    device: str
    nanogpt: Path | None
    shakespeare: Path | None
    folder: Path  # for whatever is written meanwhile
    checks_share: float  # of the time left that the checks may take

    def expected(self) -> float:
        """Seconds that a fit is expected to take before one was measured."""
        return 0.0 if self.dry else RUNG_SECONDS

    @property
    def dry(self) -> bool:
        """Whether nothing is measured, only tried."""
        return self.scale is TOY


def parse() -> argparse.Namespace:
    """The command line, checked."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no row begins (default: %(default)s)")
    parser.add_argument("--peer-nanogpt", type=Path, metavar="FOLDER", help="a checkout of nanoGPT to measure beside")
    parser.add_argument("--shakespeare", type=Path, metavar="FILE", help="tinyshakespeare's text, where no network is")
    parser.add_argument("--out", type=Path, help="the table as JSON (default: gpu.json; of a dry run gpu-dry-run.json)")
    parser.add_argument("--dry-run", action="store_true", help="try every part on the CPU, at toy sizes")
    arguments = parser.parse_args()
    if arguments.out is None:
        arguments.out = Path("gpu-dry-run.json" if arguments.dry_run else "gpu.json")
    if not arguments.minutes > 0:
        parser.error("--minutes must be above 0")
    if arguments.peer_nanogpt is not None and not (arguments.peer_nanogpt / "train.py").is_file():
        parser.error(f"--peer-nanogpt must be a checkout of nanoGPT with its train.py, got {arguments.peer_nanogpt}")
    if arguments.shakespeare is not None and not arguments.shakespeare.is_file():
        parser.error(f"--shakespeare must be a file, got {arguments.shakespeare}")
    if arguments.out.is_dir() or not arguments.out.parent.is_dir():
        parser.error(f"--out must be a file in a folder that is there, got {arguments.out}")
    if not arguments.dry_run and not torch.cuda.is_available():
        raise UserError("this measures a CUDA GPU, and none is here; --dry-run tries every part on the CPU")
    return arguments


def earlier_rows(path: Path, parts: Sequence[str]) -> list[dict]:
    """Rows of a table that was saved before, but for those of some parts; UserError if the file holds no table."""
    if not path.is_file():
        return []
    try:
        return [row for row in json.loads(path.read_text(encoding="utf-8")) if row["part"] not in parts]
    except (ValueError, TypeError, KeyError):
        raise UserError(f"--out must be a table of this command or a new file, got {path}") from None


def main() -> None:
    """Do the parts that were asked for, and say whether a check failed."""
    arguments = parse()
    table = Table(
        arguments.out,
        deadline=time.monotonic() + 60 * arguments.minutes,
        rows=earlier_rows(arguments.out, arguments.only),
    )
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(
            table=table,
            scale=TOY if arguments.dry_run else FULL,
            device="cpu" if arguments.dry_run else "cuda",
            nanogpt=arguments.peer_nanogpt,
            shakespeare=arguments.shakespeare,
            folder=Path(folder),
            checks_share=1.0 if list(arguments.only) == ["checks"] else CHECKS_SHARE,
        )
        # Inductor takes half a minute a graph on a CPU, and proves nothing there.
        compiler = patch("torch.compile", partial(torch.compile, backend="eager")) if setting.dry else nullcontext()
        with compiler:
            for part in arguments.only:
                DO[part](setting)

    failed = [row for row in table.rows if row["part"] == "checks" and row["status"] == "failed"]
    print(f"{len(table.rows)} rows in {arguments.out}; {len(failed)} checks failed")
    if failed:
        sys.exit(1)


def do_machine(setting: Setting) -> None:
    """What the machine is, and the most that its matrix products and its memory reach."""
    setting.table.measure("machine", "device", partial(describe, setting))
    setting.table.measure("machine", "bf16 product", partial(product, setting))
    setting.table.measure("machine", "copy", partial(copy_speed, setting))


def describe(setting: Setting) -> dict:
    """Names and versions."""
    device = torch.device(setting.device)
    hardware = choose_hardware(setting.device, "auto", "auto")
    name = torch.cuda.get_device_name() if setting.device == "cuda" else "CPU"
    size = memory(device)
    return {
        "name": name,
        "used_as": f"{hardware.device} {hardware.precision} {'compiled' if hardware.compile else 'eager'}",
        "memory_gb": 0.0 if size is None else size / 1e9,
        "peak_tflops": (peak_flops(device, "bf16") or 0.0) / 1e12,
        "torch": torch.__version__,
    }


def product(setting: Setting) -> dict:
    """The best of ten square products of random numbers in bf16."""
    n = setting.scale.product
    a = torch.randn(n, n, device=setting.device).bfloat16()
    b = torch.randn(n, n, device=setting.device).bfloat16()
    return {"tflops": 2 * n**3 / best_seconds(setting.device, lambda: a @ b) / 1e12}


def copy_speed(setting: Setting) -> dict:
    """Bytes read and written a second by a copy of a large tensor."""
    source = torch.empty(setting.scale.product**2 * 16, dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    return {"gb_per_second": 2 * source.numel() / best_seconds(setting.device, lambda: target.copy_(source)) / 1e9}


def best_seconds(device: str, function: Callable[[], object]) -> float:
    """Seconds of the fastest of ten calls, after two that warm up."""
    times = []
    for _ in range(12):
        start = clock(device)
        function()
        times.append(clock(device) - start)
    return min(times[2:])


def do_checks(setting: Setting) -> None:
    """The tests that need a GPU: a row each, with what they print."""
    table = setting.table
    if table.left() <= 0:
        table.add("checks", "all of them", "no time left")
        return
    report = setting.folder / "checks.xml"
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", "tests/gpu", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", "-o", "junit_logging=system-out"]

    environment = dict(os.environ)
    if setting.dry:
        environment["GPTMINI_GPU_CHECKS"] = "cpu"
    try:
        result = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=table.left() * setting.checks_share,
        )
    except subprocess.TimeoutExpired as error:
        done = re.findall(r"::test_(\S+) (PASSED|FAILED|SKIPPED|ERROR)", (error.stdout or b"").decode())
        for name, status in done:
            table.add("checks", name, "failed" if status == "ERROR" else status.lower())
        table.add("checks", "those that are left", "no time left")
        return
    if not report.is_file():
        lines = (result.stderr or result.stdout).splitlines() or ["nothing said"]
        table.add("checks", "all of them", "failed", error=lines[-1])
        return
    add_checks(table, report)


def add_checks(table: Table, report: Path) -> None:
    """Add a row for each test of pytest's report, with its time, its last line, and why it failed or was skipped."""
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("name", "").removeprefix("test_")
        problem = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        said = (case.findtext("system-out") or "").strip().splitlines()
        own_lines = [line for line in said if line and not line.startswith(("---", "INFO", "GPU avail", "TPU avail"))]
        figures = {"seconds": float(case.get("time", "0"))}
        if own_lines:
            figures["said"] = own_lines[-1]
        if problem is None:
            table.add("checks", name, "passed", **figures)
            continue
        status = "skipped" if problem.tag == "skipped" else "failed"
        reason = " ".join((problem.get("message") or "").split())[:300]
        table.add("checks", name, status, **figures, error=reason)


def do_runs(setting: Setting) -> None:
    """The default run and the baby GPT to their ends, as a user starts them."""
    shakespeare = ["experiment=shakespeare_char"]
    if setting.shakespeare is not None:
        shakespeare.append(f"data.path={quoted(str(setting.shakespeare.resolve()))}")
    if setting.dry:
        shakespeare.append("data=text")  # in a dry run any text will do
    for name, overrides in (("default", []), ("shakespeare_char", shakespeare)):
        setting.table.measure("runs", name, partial(whole_run, setting, name, overrides))


def whole_run(setting: Setting, name: str, overrides: Sequence[str]) -> dict:
    """Time of the command, and its best validation loss beside the one that a CPU reached."""
    places = [f"{key}={quoted(str(setting.folder / key))}" for key in ("runs_dir", "data_dir")]
    more = [*places, "console=lines", *setting.scale.runs]
    if setting.dry:
        more.append("trainer.device=cpu")
    command = [sys.executable, "-m", "gptmini", "train", *overrides, *more]
    start = time.monotonic()
    said = finished(command, timeout=setting.table.left())
    seconds = time.monotonic() - start
    best = re.search(r"^best +val loss ([\d.]+), ([\d.]+) bits per byte", said, flags=re.MULTILINE)
    speed = re.findall(r"([\d,]+) tokens/s", said)
    loss = float(best[1])
    return {
        "seconds": seconds,
        "val_loss": loss,
        "bits_per_byte": float(best[2]),
        "above_the_cpus": loss - ON_THE_CPU[name],
        "tokens_per_second": float(speed[-1].replace(",", "")) if speed else 0.0,
    }


def finished(command: Sequence[str], *, timeout: float, cwd: Path = ROOT) -> str:
    """What a command printed; RuntimeError with its last line if it failed."""
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=max(1.0, timeout))
    if result.returncode:
        lines = (result.stderr or result.stdout).splitlines() or ["nothing said"]
        raise RuntimeError(f"exit code {result.returncode}: {lines[-1]}")
    return result.stdout


class SyntheticTokens:
    """Stands for a prepared text: ids that Zipf's law draws, so that there is something to learn."""

    tokenizer: dict = {}  # noqa: RUF012
    fingerprint = "synthetic"
    folder = Path("synthetic")

    def __init__(self, n_vocab: int, n_tokens: int) -> None:
        draws = np.random.default_rng(1).zipf(1.2, n_tokens)
        self._tokens = (draws % n_vocab).astype(np.uint16)

    def n_tokens(self, split: str) -> int:
        """Tokens of either split, which are the same."""
        return len(self._tokens)

    def tokens(self, split: str) -> np.ndarray:
        """The ids."""
        return self._tokens

    def tokens_per_byte(self, split: str) -> float:
        """Nothing is known of bytes."""
        return 1.0


class StepClock(L.Callback):
    """When each step ended, by the device's own clock, without keeping it waiting."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.ends: list = []

    def on_train_batch_end(self, trainer: L.Trainer, module: GPTModule, outputs: object, batch: object, number: int):
        """Note the end of a step."""
        if (number + 1) % trainer.accumulate_grad_batches:
            return
        if self.device == "cuda":
            end = torch.cuda.Event(enable_timing=True)
            end.record()
        else:
            end = time.perf_counter()
        self.ends.append(end)

    def seconds(self) -> list[float]:
        """Time of every step but the first."""
        if self.device == "cuda":
            torch.cuda.synchronize()
            return [start.elapsed_time(end) / 1000 for start, end in pairwise(self.ends)]
        return [end - start for start, end in pairwise(self.ends)]


def fit(
    setting: Setting,
    preset: str,
    overrides: Sequence[str] = (),
    *,
    adapt: Callable[[GPTModule], None] | None = None,
    callbacks: Sequence[L.Callback] = (),
    steps: int | None = None,
) -> dict:
    """Train an experiment's model on synthetic tokens through Lightning's Trainer, and say how fast."""
    scale = setting.scale
    steps = scale.steps if steps is None else steps
    config = compose_checked(
        "train",
        [
            f"experiment={preset}_124m",
            "data.path=synthetic",
            "schedule.warmup_steps=0",
            f"trainer.max_steps={steps}",
            f"trainer.val_every_steps={steps}",
            "trainer.val_tokens=1",
            f"trainer.device={setting.device}",
            f"trainer.global_batch_size={scale.sequences}",  # unless the overrides say otherwise
            f"trainer.compile={'true' if setting.dry else 'auto'}",
            f"trainer.precision={'bf16' if setting.dry else 'auto'}",
            *scale.sizes,
            *overrides,
        ],
    )
    plan = check_configuration(config)
    if plan.hardware.tf32:
        use_tf32()
    give_back_memory(setting.device)
    sizes = plan.model(vocab_size=scale.n_vocab)
    store = SyntheticTokens(scale.n_vocab, n_tokens=64 * scale.sequences * sizes.context_length)
    begun = time.monotonic()
    module, data = assemble(
        store,
        sizes,
        plan.settings,
        optimizer=plan.optimizer,
        schedule=plan.schedule,
        seed=config.seed,
        compile=plan.hardware.compile,
        device=plan.hardware.device,
        precision=plan.hardware.precision,
    )
    if adapt is not None:
        adapt(module)
    steps_clock = StepClock(setting.device)
    stopping = Stopping(None, plan.settings.max_bad_steps)
    trainer = build_trainer(
        module.settings,
        setting.folder,
        device=plan.hardware.device,
        precision=plan.hardware.precision,
        callbacks=[steps_clock, stopping, *callbacks],
        loggers=[],
    )
    if stopping.fit_until_stopped(trainer, module, data).reason is not None:
        raise KeyboardInterrupt

    seconds = statistics.median(steps_clock.seconds()[scale.first - 1 :])
    speed = module.settings.global_batch_size * sizes.context_length / seconds
    flops = speed * module.model.flops_per_token
    peak = peak_flops(torch.device(setting.device), "bf16")
    return {
        "tokens_per_second": speed,
        "share_of_peak": 0.0 if peak is None else flops / peak,
        "memory_gb": (peak_memory(torch.device(setting.device)) or 0) / 1e9,
        "ms_a_step": 1000 * seconds,
        "sequences": module.settings.global_batch_size,
        "batch_size": module.settings.batch_size,
        "loss": float(module.step_loss),
        "seconds_in_all": time.monotonic() - begun,
    }


def give_back_memory(device: str) -> None:
    """Give back what earlier rungs took of a GPU, and count its peak anew."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


@dataclass(frozen=True)
class Lever:
    """One thing that a rung does otherwise."""

    name: str
    overrides: tuple[str, ...] = ()
    kind: str | None = None  # of levers of one kind only one can be pulled; None: it goes with all others
    around: Callable[[], AbstractContextManager] = nullcontext  # what holds while the rung trains
    adapt: Callable[[GPTModule], None] | None = None  # what is changed of the module


def compiled_orthogonalization() -> AbstractContextManager:
    """Muon's Newton-Schulz steps, a stack of equal matrices at a time, compiled."""
    muon = import_module("gptmini.optim.muon")  # the name gptmini.optim.muon is also that of a function
    return patch.object(muon, "orthogonalize", torch.compile(muon.orthogonalize, dynamic=False))


def loss_in_pieces(module: GPTModule) -> None:
    """Compile all but the loss, and compute that piece by piece, so that not all logits are held."""
    model = module.model
    hidden = torch.compile(model.hidden, dynamic=False, fullgraph=True)

    def compute(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return PiecewiseLoss.apply(hidden(tokens), model.unembedding_weight, targets, model)

    module.compute_loss = compute


def levers(scale: Scale, preset: str) -> list[Lever]:
    """The levers of a preset, each of which makes a rung of its ladder."""
    inductor = torch._inductor.config
    rungs = [
        Lever(f"micro-batch {size}", (f"trainer.batch_size={size}",), kind="micro-batch") for size in scale.batch_sizes
    ]
    rungs += [
        Lever("bf16 stream", ("trainer.precision=bf16_stream",), kind="loss"),
        Lever("batches cut when needed", around=lambda: patch("gptmini.training.datamodule.CUT_AHEAD_FOR", ())),
        Lever(
            "flash attention",
            kind="attention",
            around=lambda: sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]),
        ),
        Lever(
            "cuDNN attention",
            kind="attention",
            around=lambda: sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]),
        ),
        Lever("coordinate descent tuning", around=lambda: inductor.patch(coordinate_descent_tuning=True)),
        Lever("loss in pieces", kind="loss", adapt=loss_in_pieces),  # under autocast, whatever the precision
        Lever("not compiled", ("trainer.compile=false",)),
    ]
    if preset == "modern":
        rungs.insert(len(scale.batch_sizes), Lever("Muon compiled", around=compiled_orthogonalization))
    return rungs


def do_ladder(setting: Setting, preset: str) -> None:
    """Speed of a base with a quarter of the experiment's batch, of the experiment itself, and of one lever at a time.

    The last rung pulls all levers together that made the base faster and left its loss within what seeds differ.
    """
    part = f"ladder_{preset}"
    table = setting.table
    sequences = compose_checked("train", [f"experiment={preset}_124m", "data.path=synthetic"]).trainer.global_batch_size
    whole = (f"trainer.global_batch_size={sequences}",) if not setting.dry else ()
    base = table.measure(part, "base", partial(fit, setting, preset), expected=setting.expected())
    if base is None:
        return
    table.measure(part, "as configured", partial(fit, setting, preset, whole))

    losses = [base["loss"]]
    for seed in (2, 3):
        figures = table.measure(part, f"base, seed {seed}", partial(fit, setting, preset, (f"seed={seed}",)))
        if figures:
            losses.append(figures["loss"])
    noise = max(losses) - min(losses)

    helped: list[tuple[float, Lever]] = []
    for lever in levers(setting.scale, preset):
        figures = table.measure(part, lever.name, partial(rung, setting, preset, [lever], base))
        if figures and figures["times_base"] >= setting.scale.gain and abs(figures["loss"] - base["loss"]) <= noise:
            helped.append((figures["times_base"], lever))

    chosen = best_of_each_kind(helped)
    if chosen:
        names = " + ".join(lever.name for lever in chosen)
        table.measure(part, names, partial(rung, setting, preset, chosen, base))
    else:
        table.add(
            part, "all that helped together", "measured", said=f"no lever gave {setting.scale.gain} times the speed"
        )


def best_of_each_kind(helped: Sequence[tuple[float, Lever]]) -> list[Lever]:
    """Levers that can be pulled together: of each kind the one that gained most."""
    fastest: dict[str, tuple[float, Lever]] = {}
    for gain, lever in helped:
        kind = lever.kind or lever.name
        if kind not in fastest or gain > fastest[kind][0]:
            fastest[kind] = (gain, lever)
    return [lever for _, lever in fastest.values()]


def rung(setting: Setting, preset: str, chosen: Sequence[Lever], base: dict) -> dict:
    """Figures of a fit with some levers pulled, and how many times as fast as the base it is."""
    overrides = [override for lever in chosen for override in lever.overrides]
    adapts = [lever.adapt for lever in chosen if lever.adapt is not None]

    def adapt(module: GPTModule) -> None:
        for change in adapts:
            change(module)

    names = "+".join(lever.name for lever in chosen)
    with ExitStack() as pulled:
        # The cache of compiled code does not know which attention was asked for: each rung has its own part of it.
        pulled.enter_context(torch.compiler.config.patch(cache_key_tag=names))
        for lever in chosen:
            pulled.enter_context(lever.around())
        figures = fit(setting, preset, overrides, adapt=adapt)
    return {"times_base": figures["tokens_per_second"] / base["tokens_per_second"], **figures}


def do_peer(setting: Setting) -> None:
    """nanoGPT's train.py at the same sizes and batch, in turns with the gpt2 preset."""
    if setting.nanogpt is None:
        setting.table.add("peer", "nanoGPT", "not asked", said="--peer-nanogpt FOLDER names a checkout")
        return
    ratios = []
    for turn in (1, 2):
        ours = setting.table.measure(
            "peer", f"ours, turn {turn}", partial(fit, setting, "gpt2"), expected=setting.expected()
        )
        theirs = setting.table.measure("peer", f"nanoGPT, turn {turn}", partial(nanogpt, setting, ours))
        if ours and theirs:
            ratios.append(ours["tokens_per_second"] / theirs["tokens_per_second"])
    if ratios:
        setting.table.add("peer", "ours to nanoGPT", "measured", times=statistics.median(ratios))


def nanogpt(setting: Setting, ours: dict | None) -> dict:
    """Speed of nanoGPT's own loop over the steps that ours is timed on, in micro-batches of the same size."""
    give_back_memory(setting.device)
    scale = setting.scale
    work = setting.folder / "nanogpt"
    if not work.exists():
        work.mkdir()
        for name in ("train.py", "model.py", "configurator.py"):
            shutil.copy(setting.nanogpt / name, work / name)
    config = compose_checked("train", ["experiment=gpt2_124m", "data.path=synthetic", *scale.sizes]).model
    tokens = SyntheticTokens(scale.n_vocab, n_tokens=64 * scale.sequences * config.context_length).tokens("train")
    data = work / "data" / "synthetic"
    data.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val"):
        tokens.tofile(data / f"{split}.bin")

    batch_size = min(ours["batch_size"] if ours else scale.sequences, scale.batch_sizes[-1])  # it holds more logits
    options = {
        "dataset": "synthetic",
        "batch_size": batch_size,
        "gradient_accumulation_steps": scale.sequences // batch_size,
        "block_size": config.context_length,
        "n_layer": config.n_layers,
        "n_head": config.n_heads,
        "n_embd": config.d_model,
        "bias": True,
        "max_iters": scale.steps,
        "eval_iters": 1,
        "eval_interval": 10**6,
        "log_interval": 1,
        "device": setting.device,
        "compile": not setting.dry,
        "dtype": "float32" if setting.dry else "bfloat16",
        "out_dir": str(work / "out"),
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    said = finished([sys.executable, "train.py", *flags], timeout=setting.table.left(), cwd=work)
    times = [float(found) for found in re.findall(r"^iter \d+: .* time ([\d.]+)ms", said, flags=re.MULTILINE)]
    seconds = statistics.median(times[scale.first :]) / 1000
    return {
        "tokens_per_second": scale.sequences * config.context_length / seconds,
        "ms_a_step": 1000 * seconds,
        "batch_size": batch_size,
    }


class Profile(L.Callback):
    """Profiles the kernels of three steps, when compiling and warming up are over."""

    def __init__(self, first: int) -> None:
        """Profile three steps after so many."""
        self.first = first
        self.done = False
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.profile = torch.profiler.profile(activities=activities)

    def on_train_batch_start(self, trainer: L.Trainer, module: GPTModule, batch: object, number: int) -> None:
        """Start the profiler with the step that follows the first ones."""
        if trainer.global_step == self.first and number % trainer.accumulate_grad_batches == 0:
            self.profile.start()

    def on_train_batch_end(self, trainer: L.Trainer, *batch: object) -> None:
        """Stop the profiler after three steps."""
        if trainer.global_step == self.first + 3 and not self.done:
            self.done = True
            self.profile.stop()


def do_kernels(setting: Setting) -> None:
    """The kernels that take the most time of three steps of modern_124m."""
    first = setting.scale.first
    profile = Profile(first=first)
    figures = setting.table.measure(
        "kernels",
        "profiled run",
        partial(fit, setting, "modern", callbacks=[profile], steps=first + 5),
        expected=setting.expected(),
    )
    if figures is None:
        return

    def spent(event: object) -> float:
        return event.self_device_time_total if setting.device == "cuda" else event.self_cpu_time_total

    events = list(profile.profile.key_averages())
    if setting.device == "cuda":  # the processor's operations have their kernels' times too
        on_gpu = torch.autograd.DeviceType.CUDA
        events = [event for event in events if event.device_type == on_gpu and not event.is_user_annotation]
    events.sort(key=spent, reverse=True)
    total = sum(map(spent, events))
    for event in events[:KERNELS]:
        setting.table.add("kernels", event.key[:36], "measured", share=spent(event) / total, calls=event.count)


def do_sampling(setting: Setting) -> None:
    """benchmark.py sampling: ours beside Hugging Face's static cache and compiled step, and the bandwidth limit."""
    setting.table.measure("sampling", "benchmark.py sampling", partial(sample, setting))


def sample(setting: Setting) -> dict:
    """Add a row for each size and batch size; returns how many."""
    give_back_memory(setting.device)
    path = setting.folder / "sampling.json"
    script = ROOT / "scripts" / "benchmark.py"
    arguments = [*setting.scale.sampling, "--device", setting.device, "--json", str(path)]
    if setting.nanogpt is not None and not setting.dry:
        arguments += ["--nanogpt", str(setting.nanogpt.resolve())]
    try:
        finished([sys.executable, str(script), "sampling", *arguments], timeout=setting.table.left())
    finally:  # a row that was measured before time was over is worth having
        rows = json.loads(path.read_text()) if path.is_file() else []
        for row in rows:
            figures = {name: value for name, value in row.items() if name not in ("size", "batch_size")}
            setting.table.add("sampling", f"{row['size']}, batch {row['batch_size']}, tokens/s", "measured", **figures)
    return {"rows": len(rows)}


def _shown(figure: float | str) -> str:
    """A figure of any size, short."""
    if isinstance(figure, str):
        return figure
    return f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.4g}"


DO = {
    "machine": do_machine,
    "checks": do_checks,
    "runs": do_runs,
    "ladder_gpt2": partial(do_ladder, preset="gpt2"),
    "ladder_modern": partial(do_ladder, preset="modern"),
    "peer": do_peer,
    "kernels": do_kernels,
    "sampling": do_sampling,
}

if __name__ == "__main__":
    main()
