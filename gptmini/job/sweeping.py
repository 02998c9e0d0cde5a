"""Check the values of a sweep, prepare its text, and train its runs."""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path

from gptmini.configuration.compose import as_override, compose
from gptmini.configuration.init_from import fit_context
from gptmini.configuration.request import key_of
from gptmini.configuration.stored import settings_of
from gptmini.console.printing import print_topic
from gptmini.console.progress import Watcher
from gptmini.data import copied_stdin
from gptmini.job.sweep_loop import SweepLoop
from gptmini.job.sweep_table import print_ending
from gptmini.job.sweep_trials import Trials
from gptmini.job.tokens import open_corpus, open_tokens
from gptmini.key_table import keys_with
from gptmini.sweep import Space, SweepSettings
from gptmini.system.errors import UserError
from gptmini.system.process import restore_gc_and_sigint
from gptmini.system.world import cpu_cores
from gptmini.training import Settings

# The command that trains a run, without its overrides. -P keeps Python from importing from the working directory.
TRAIN = (sys.executable, "-P", "-m", "gptmini", "train")
UNFINISHED = 1  # exit code of a sweep in which a trial failed or was given up
# Environment variables that tell a process its rank under srun or torchrun.
OF_LAUNCHER = re.compile(
    r"(SLURM|TORCHELASTIC|MASTER|ROLE)_|(LOCAL_|NODE_|GROUP_)?(RANK|WORLD_SIZE)"
)


def detach_from_launcher() -> tuple[int, int]:
    """Return the number of this process among the tasks of srun, in total and on this machine.

    Remove the launcher's variables: a run with them would act as one rank of a run that all tasks train together.
    """
    task = int(os.environ.get("SLURM_PROCID", "0"))
    task_here = int(os.environ.get("SLURM_LOCALID", "0"))
    for name in list(os.environ):
        if OF_LAUNCHER.match(name):
            del os.environ[name]
    return task, task_here


def train_all(space: Space, settings: SweepSettings, config_dir: str | None, *, n_runs: int) -> int:
    """Train the open trials of a sweep, n_runs at a time. Return the exit code of the command.

    Raises UserError if a key or a value is wrong, the text cannot be read, or the folder belongs to another sweep.
    """
    task, task_here = detach_from_launcher()
    checked, text = check_and_prepare(space, config_dir)
    restore_gc_and_sigint()
    from gptmini.training import hardware_of

    # Replace a name such as runs/latest. This link points to a different run as soon as the first run starts.
    if any(key_of(line) == "init_from" for line in space.fixed):
        source = as_override("init_from", checked.plain["init_from"])
        others = [line for line in space.fixed if key_of(line) != "init_from"]
        space = replace(space, fixed=[*others, source])

    folder = Path(checked.root.runs_dir).expanduser() / str(checked.root.name)
    trials = Trials(folder, space, settings)
    described = [line for line in space.fixed if key_of(line) not in keys_with("sweep_resumable")]
    trials.describe(
        {
            **space.tried,
            "sweep.sampler": trials.sampler,
            "sweep.seed": settings.seed,
            **{line.partition("=")[0]: line.partition("=")[2] for line in described},
            "text": text,
        }
    )

    # Add overrides and options to the command of each run.
    arguments = [] if config_dir is None else ["--config-dir", str(Path(config_dir).absolute())]
    threads = []
    if n_runs > 1 and checked.trainer.threads is None:
        threads = [f"trainer.threads={max(1, cpu_cores() // n_runs)}"]
    device = hardware_of(checked).device
    n_devices = checked.trainer.devices_here
    loop = SweepLoop(
        trials=trials,
        command=[*TRAIN, *threads, *arguments],
        variables=[gpus_of(n_runs * task_here + i, device, n_devices) for i in range(n_runs)],
        stdin=copied_stdin() or Path(os.devnull),
        retries=settings.retries,
    )
    keys = ", ".join(space.dimensions)
    print_topic(
        "sweep",
        f"{folder}: {trials.n_trials} trials ({trials.sampler} over {keys}), {n_runs} at a time",
    )
    received = loop.run()
    if task == 0:
        print_ending(trials, loop.rows, arguments)
    if received:
        return 128 + received
    n_complete = sum(row.exit_code == 0 for row in loop.rows)
    return 0 if n_complete == trials.n_trials else UNFINISHED


def check_and_prepare(space: Space, config_dir: str | None) -> tuple[Settings, str]:
    """Check every value of a sweep, and prepare the text of its first run.

    Return the settings of the first run, and the digest of its tokens. With budget=, each run chooses its own
    vocabulary, so no text is prepared, and the digest is empty.
    """
    runs = [settings_of(compose("train", overrides, config_dir)) for overrides in space.examples()]
    if any(settings.plain["callbacks"].get("scalars") is None for settings, _ in runs):
        raise UserError(
            "callbacks.scalars must be on, because a sweep compares the losses that it logs"
        )

    # Importing torch takes seconds, so check all other values before.
    from gptmini.job.callbacks import build_callbacks

    for settings, _ in runs:
        build_callbacks(settings)
        open_corpus(settings)

    settings, typed = runs[0]
    if settings.root.budget is not None:
        return settings, ""
    watcher = Watcher(on_note=lambda note: print_topic("data", note))
    settings, store, _ = open_tokens(settings, typed, watcher=watcher)
    settings = fit_context(settings, typed, store, watcher)
    return settings, store.fingerprint


def gpus_of(place: int, device: str, n_devices: int) -> dict[str, str]:
    """Return the environment variable that gives GPUs to a run of this machine. Runs share GPUs if necessary."""
    import torch

    if device != "cuda":
        return {}
    all_gpus = map(str, range(torch.cuda.device_count()))
    gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(all_gpus)).split(",")
    share = [gpus[(place * n_devices + i) % len(gpus)] for i in range(n_devices)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(share)}
