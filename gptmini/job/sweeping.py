"""Train the runs of a sweep that are not done."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.configuration.building import build_settings
from gptmini.configuration.compose import compose
from gptmini.configuration.init_from import fit_context
from gptmini.configuration.stored import resolve_configuration
from gptmini.job.epochs import steps_for_epochs
from gptmini.job.printing import print_topic
from gptmini.job.sweep_table import Table, config_dir_arguments, print_ending
from gptmini.job.tokens import open_tokens
from gptmini.key_table import keys_with
from gptmini.sweep import Space, SweepSettings
from gptmini.untrusted import nodes
from gptmini.user_error import UserError
from gptmini.world import cpu_cores

if TYPE_CHECKING:
    from gptmini.sweep.worker import SweepStop, Worker


# The command that trains a run, without its overrides. -P keeps Python from importing from the working directory.
TRAIN = (sys.executable, "-P", "-m", "gptmini", "train")
UNFINISHED = 1  # exit code of a sweep in which a trial failed or was given up
POLL = 0.2  # seconds between two checks for a signal
# Prefixes of the environment variables that tell a process its rank under srun or torchrun.
LAUNCHER_PREFIXES = (
    "SLURM_",
    "TORCHELASTIC_",
    "MASTER_",
    "RANK",
    "LOCAL_RANK",
    "NODE_RANK",
    "GROUP_RANK",
    "ROLE_",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
)


@dataclass(frozen=True)
class SlurmTask:
    """The task of srun that this process runs. Without srun, this process is the only task."""

    number: int
    on_machine: int  # number of this process among the tasks of srun on this machine


def detach_from_launcher() -> SlurmTask:
    """Return which task of srun this process is, and remove the launcher's variables from the environment.

    If a run inherited these variables, it would act as one rank of a run that all tasks train together.
    """
    task = SlurmTask(
        number=int(os.environ.get("SLURM_PROCID", "0")),
        on_machine=int(os.environ.get("SLURM_LOCALID", "0")),
    )
    for name in list(os.environ):
        if name.startswith(LAUNCHER_PREFIXES):
            del os.environ[name]
    return task


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Facts about the runs of a sweep that are known after the values are checked and the text is prepared."""

    tree: Mapping[str, Any]  # the resolved configuration of the first run, as plain values
    text: str  # the digest of the tokens of the first run
    # GPUs of this machine, with the names that CUDA_VISIBLE_DEVICES takes. Empty if the runs train on a CPU.
    gpus: Sequence[str]
    n_devices: int  # devices of each run on one machine


def check_and_prepare(space: Space, config_dir: str | None) -> Checked:
    """Check every value of a sweep, and prepare the text of its first run.

    Raises UserError if a key or a value is wrong, or if the text cannot be read.
    """
    from gptmini.data import Watcher

    parts = []
    for overrides in space.examples():
        plain, typed = resolve_configuration(compose("train", overrides, config_dir))
        settings = build_settings(plain)
        assert settings.text is not None
        settings.text()
        if not any(hasattr(callback, "best") for callback in settings.callbacks):
            raise UserError(
                "callbacks.checkpoints must be on, because gptmini sweep compares the best validations of the runs"
            )
        parts.append((settings, typed))

    settings, typed = parts[0]
    watcher = Watcher(on_note=lambda note: print_topic("data", note))
    store, _ = open_tokens(settings, typed, watcher=watcher)
    settings = fit_context(settings, typed, store, watcher)
    changes = steps_for_epochs(settings, store)
    if changes:
        settings = build_settings(settings.plain, changes)
    return Checked(
        tree=settings.plain,
        text=store.fingerprint,
        gpus=_gpus() if settings.hardware.device == "cuda" else (),
        n_devices=settings.trainer.devices_here,
    )


def train_all(
    space: Space,
    settings: SweepSettings,
    sampler: str,
    checked: Checked,
    task: SlurmTask,
    *,
    n_workers: int,
    config_dir: str | None,
) -> int:
    """Train the trials of a checked sweep that are not done yet. Return the exit code of the command."""
    from gptmini.data.paths import copied_stdin
    from gptmini.sweep.study import Sweep
    from gptmini.sweep.worker import SweepStop, Worker

    folder = Path(checked.tree["runs_dir"]).expanduser() / checked.tree["name"]
    folder.mkdir(parents=True, exist_ok=True)
    sweep = Sweep(folder, space, settings)
    sweep.describe(_description(space, settings, sampler, checked))

    stopping = SweepStop()
    table = Table()
    workers = [
        Worker(
            # Each thread has its own Sweep. With a shared Sweep, Optuna's lock and the journal's lock could deadlock.
            sweep=Sweep(folder, space, settings),
            stopping=stopping,
            print_topic=print_topic,
            on_end=table.show,
            extra=[
                *_own_overrides(settings, checked, n_workers),
                *config_dir_arguments(config_dir),
            ],
            variables=_gpus_of(place + n_workers * task.on_machine, checked),
            command=TRAIN,
            stdin=copied_stdin() or Path(os.devnull),
        )
        for place in range(n_workers)
    ]

    keys = ", ".join(space.keys)
    print_topic(
        "sweep", f"{folder}: {sweep.n_trials} trials ({sampler} over {keys}), {n_workers} at a time"
    )
    with stopping.catch_signals():
        _work(workers, stopping)
        received = stopping.signal
    rows = table.show(sweep)
    # Only the first srun task prints the result.
    if task.number == 0:
        print_ending(sweep, rows, config_dir)
    if received:
        return 128 + received
    return 0 if sweep.is_complete() else UNFINISHED


def _work(workers: Sequence["Worker"], stopping: "SweepStop") -> None:
    """Run each worker in a thread, until all workers have ended, a signal arrives, or a worker raises an error."""
    with ThreadPoolExecutor(len(workers)) as pool:
        futures = [pool.submit(worker.work) for worker in workers]
        left = set(futures)
        while left and not stopping.signal:
            done, left = wait(left, timeout=POLL, return_when=FIRST_EXCEPTION)
            if any(future.exception() for future in done):
                stopping.ask(signal.SIGTERM)
        if left:
            print_topic("stopped", "saving the runs; run the same command to resume the sweep")
    for future in futures:
        future.result()


def _description(
    space: Space, settings: SweepSettings, sampler: str, checked: Checked
) -> dict[str, Any]:
    """Return the values that are the same for all runs of a sweep, by key.

    If a user starts the sweep again with different values, an error names the first key that has a different value.
    """
    varied = {dimension.key: str(dimension) for dimension in space.dimensions}
    own = {
        f"sweep.{key}": value
        for key, value in asdict(settings).items()
        if f"sweep.{key}" not in keys_with("sweep_resumable")
    }
    own["sweep.sampler"] = sampler

    runs = {
        key: value
        for key, value in _leaves(checked.tree)
        if key not in keys_with("sweep_resumable") and key not in varied
    }

    # If the runs have different tokens, they have no common digest.
    text = {} if space.by_bits else {"text": checked.text}
    of_pruning = {"by_bits": space.by_bits, "max_steps": checked.tree["trainer"]["max_steps"]}
    return {**varied, **own, **runs, **text, **of_pruning}


def _leaves(tree: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the dotted key and the value of every setting of a configuration."""
    for names, value in nodes(tree):
        if not isinstance(value, dict | list):
            yield ".".join(map(str, names)), value


def _own_overrides(settings: SweepSettings, checked: Checked, n_workers: int) -> list[str]:
    """Return the overrides that a sweep adds to each run: the pruning callback and the number of CPU cores of a run."""
    overrides = []
    if settings.pruner is not None:
        overrides.append("+callbacks.pruning._target_=gptmini.training.Pruning")
    if n_workers > 1 and checked.tree["trainer"]["threads"] is None:
        overrides.append(f"trainer.threads={max(1, cpu_cores() // n_workers)}")
    return overrides


def _gpus() -> list[str]:
    """Return the usable GPUs of this machine, with the names that CUDA_VISIBLE_DEVICES takes."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return named.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]


def _gpus_of(place: int, checked: Checked) -> dict[str, str]:
    """Return the environment variable that gives GPUs to the runs of a worker.

    If there are too few GPUs, several workers share a GPU. The argument place is the number of the worker among the
    workers of this machine.
    """
    if not checked.gpus:
        return {}
    first = place * checked.n_devices
    share = [checked.gpus[(first + i) % len(checked.gpus)] for i in range(checked.n_devices)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(share)}
