"""Train every run of a sweep, or those that are left of it."""

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
from gptmini.configuration.stored import resolved
from gptmini.job.sweep_table import Table, own_folder, say_ending, tell
from gptmini.job.tokens import open_tokens
from gptmini.key_table import keys_with
from gptmini.sweep import Space, SweepSettings
from gptmini.untrusted import nodes
from gptmini.user_error import UserError
from gptmini.world import usable_processors

if TYPE_CHECKING:
    from gptmini.sweep.worker import SweepEnd, Worker


# What trains a run, before its overrides. By -P Python looks for no library in the working folder.
TRAIN = (sys.executable, "-P", "-m", "gptmini", "train")
UNFINISHED = 1  # exit code of a sweep of which a trial has failed or was given up
POLL = 0.2  # seconds until a signal is told
# Beginnings of variables by which srun and torchrun tell a process which one of a run it is.
OF_LAUNCHERS = (
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
    """Which task of srun this process is; without srun the only one."""

    number: int
    on_machine: int  # number among those of this machine


def leave_launcher() -> SlurmTask:
    """Say which task of srun this process is, and let it and its runs be programs of their own from now on.

    Otherwise each would take itself for a part of one run that all tasks train together.
    """
    task = SlurmTask(
        number=int(os.environ.get("SLURM_PROCID", "0")),
        on_machine=int(os.environ.get("SLURM_LOCALID", "0")),
    )
    for name in list(os.environ):
        if name.startswith(OF_LAUNCHERS):
            del os.environ[name]
    return task


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What is known of the runs of a sweep once all their values are checked and their text is prepared."""

    tree: Mapping[str, Any]  # the first run's resolved configuration, as plain values
    text: str  # the digest of its tokens
    # Those of this machine, as CUDA_VISIBLE_DEVICES names them; none for runs on a CPU.
    gpus: Sequence[str]
    n_devices: int  # of each run on one machine


def check_and_prepare(space: Space, config_dir: str | None) -> Checked:
    """Check every value of a sweep, and prepare the text of its first run.

    Raises UserError: a key or a value that does not fit, or a text that cannot be read.
    """
    from gptmini.data import Watcher

    parts = []
    for overrides in space.examples():
        plain, typed = resolved(compose("train", overrides, config_dir))
        settings = build_settings(plain)
        assert settings.text is not None
        settings.text()
        if not any(hasattr(callback, "best") for callback in settings.callbacks):
            raise UserError(
                "a sweep compares the best validations of its runs, which callbacks.checkpoints keeps"
            )
        parts.append((settings, typed))

    settings, typed = parts[0]
    watcher = Watcher(on_note=lambda note: tell("data", note))
    store, _ = open_tokens(settings, typed, watcher=watcher)
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
    """Train what is left of a sweep whose values are checked; return the exit code."""
    from gptmini.sweep.study import Sweep
    from gptmini.sweep.worker import SweepEnd, Worker

    folder = Path(checked.tree["runs_dir"]).expanduser() / checked.tree["name"]
    folder.mkdir(parents=True, exist_ok=True)
    sweep = Sweep(folder, space, settings)
    sweep.describe(_description(space, settings, sampler, checked))

    stopping = SweepEnd()
    table = Table()
    workers = [
        Worker(
            sweep=Sweep(folder, space, settings),  # a thread has its own, because Optuna locks both
            stopping=stopping,
            say=tell,
            on_end=table.show,
            extra=[*_own_overrides(settings, checked, n_workers), *own_folder(config_dir)],
            variables=_gpus_of(place + n_workers * task.on_machine, checked),
            command=TRAIN,
        )
        for place in range(n_workers)
    ]

    keys = ", ".join(space.keys)
    tell("sweep", f"{folder}: {sweep.n_trials} trials ({sampler} of {keys}), {n_workers} at once")
    with stopping.listening():
        _work(workers, stopping)
        came = stopping.signal
    rows = table.show(sweep)
    # Of the tasks of srun the first one speaks for all.
    if task.number == 0:
        say_ending(sweep, rows, config_dir)
    if came:
        return 128 + came
    return 0 if sweep.is_whole() else UNFINISHED


def _work(workers: Sequence["Worker"], stopping: "SweepEnd") -> None:
    """Let workers train in a thread each until all have ended, a signal has come, or one of them meets an error."""
    with ThreadPoolExecutor(len(workers)) as pool:
        futures = [pool.submit(worker.work) for worker in workers]
        left = set(futures)
        while left and not stopping.signal:
            done, left = wait(left, timeout=POLL, return_when=FIRST_EXCEPTION)
            if any(future.exception() for future in done):
                stopping.ask(signal.SIGTERM)
        if left:
            tell("stopped", "its runs are told to save and end; the same command goes on")
    for future in futures:
        future.result()


def _description(
    space: Space, settings: SweepSettings, sampler: str, checked: Checked
) -> dict[str, Any]:
    """What holds for all runs of a sweep, by key, in the order in which a difference is told."""
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

    # Runs in which the tokens differ have a text each.
    text = {} if space.by_bits else {"text": checked.text}
    of_pruning = {"by_bits": space.by_bits, "max_steps": checked.tree["trainer"]["max_steps"]}
    return {**varied, **own, **runs, **text, **of_pruning}


def _leaves(tree: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The dotted key and the value of every setting of a configuration."""
    for names, value in nodes(tree):
        if not isinstance(value, dict | list):
            yield ".".join(map(str, names)), value


def _own_overrides(settings: SweepSettings, checked: Checked, n_workers: int) -> list[str]:
    """What a run is told beside its values: to be pruned, and its share of the processors."""
    overrides = []
    if settings.pruner is not None:
        overrides.append("+callbacks.pruning._target_=gptmini.training.Pruning")
    if n_workers > 1 and checked.tree["trainer"]["threads"] is None:
        overrides.append(f"trainer.threads={max(1, usable_processors() // n_workers)}")
    return overrides


def _gpus() -> list[str]:
    """The GPUs of this machine that may be used, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return named.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]


def _gpus_of(place: int, checked: Checked) -> dict[str, str]:
    """The variable that gives the runs of a worker their GPUs, in turn where there are fewer than the workers need.

    place is the number of the worker among those of this machine.
    """
    if not checked.gpus:
        return {}
    begin = place * checked.n_devices
    share = [checked.gpus[(begin + i) % len(checked.gpus)] for i in range(checked.n_devices)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(share)}
