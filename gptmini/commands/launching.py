"""Command lines for Hydra: Hydra's sweeper and launcher run the jobs, and a sweep ends with a table of them."""

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini import processors
from gptmini.commands.automatic import asks_for_auto, settle_auto
from gptmini.commands.configuration import CONFIGS, key_typed
from gptmini.commands.errors import (
    MISUSE,
    explain,
    naming_keys,
    one_line_errors,
    print_mistake,
)
from gptmini.commands.initial import remembering_sources, take_from_source
from gptmini.commands.jobs import Checked, check_jobs, compose_checked, parse_flags
from gptmini.commands.multirun import (
    Assignment,
    JobResult,
    Outcome,
    label_of,
    read_results,
    table,
    write_result,
)
from gptmini.commands.quoting import expand_home
from gptmini.commands.showing import show_help, show_stored
from gptmini.commands.signals import passing_signals_on
from gptmini.commands.start_up import starting_up
from gptmini.commands.stored import AUTO, run_to_resume, stored_config
from gptmini.launch import this_launch
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run_configured(
    command: str,
    task: Callable,
    *,
    check: Callable | None = None,
    arguments: list[str] | None = None,
) -> None:
    """Let Hydra compose a configuration and launch a task: once, or with -m for each job.

    The keys of every job are checked before the first job starts, and in a sweep check(config) is called on every job
    before that too. A sweep of training runs ends with a table of its jobs.

    Args:
        command: train or prepare, which is also the name of the root configuration.
        task: the function that does a job. It is called with the configuration, the overrides of the job, a label that
            tells the job from others of its sweep, and the user's own folder of configurations. It returns an Outcome,
            or None where there is nothing to compare; the loss of the Outcome goes to the sweeper. After its imports a
            task calls started.
        check: raises UserError for values that do not fit.
        arguments: flags and overrides; None for those of the command line.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    with one_line_errors():
        dispatch(command, task, check=check, arguments=arguments)


def dispatch(command: str, task: Callable, *, check: Callable | None, arguments: list[str]) -> None:
    """Do what run_configured does, but raise the mistake of a user instead of telling it."""
    with starting_up(), remembering_sources():
        # While Hydra is imported to read the flags, there is time to see what else runs.
        before = processors.usage()
        flags = parse_flags(arguments)
        processors.choose_waiting(before)
        if flags.help:
            show_help(command, flags.overrides, flags.config_dir)
            return
        if flags.cfg and run_to_resume(command, flags.overrides) is not None:
            show_stored(command, flags)
            return

        only_shows = flags.hydra_help or flags.info or flags.shell_completion
        checked = Checked()
        if not only_shows:
            _check_launch(flags)
            if command == "train" and asks_for_auto(flags.overrides):
                _settle_auto(flags)
            checked = check_jobs(command, flags, check)
        _launch(command, task, flags, arguments, checked)


def _check_launch(flags: argparse.Namespace) -> None:
    """Raise UserError for a sweep whose processes torchrun or srun has started: they are those of one run."""
    launch = this_launch()
    if flags.multirun and launch.starts_all:
        raise UserError(
            f"{launch.by} starts the processes of one run, and -m asks for several; start each run by itself, or the "
            f"sweep without {launch.by}"
        )


def _settle_auto(flags: argparse.Namespace) -> None:
    """Replace resume=auto by the run that this job has begun, if there is one; UserError as for settle_auto."""
    if flags.multirun:
        raise UserError("resume=auto goes on with one run, and -m asks for several")
    others = [override for override in flags.overrides if key_typed(override) != "resume"]
    config = compose_checked("train", others, flags.config_dir)
    flags.overrides = settle_auto(flags.overrides, Path(config.runs_dir) / config.name)


@dataclass(frozen=True)
class _Job:
    """The function that Hydra calls for each job, perhaps in another process than the program's own."""

    command: str
    task: Callable
    flags: argparse.Namespace
    argv: list[str]  # the program's, with which Lightning starts the further processes of a run
    process: int  # id of the process in which the program began
    checked: Checked
    failures: list[Exception]  # error of each job that failed in the program's own process
    # Folder of the results of a sweep's jobs; None where there is no table to make.
    results: Path | None

    def __call__(self, config: "DictConfig") -> float | None:
        """Run the job and note its result, and exit if a signal stopped the job.

        An error is kept in failures in the program's own process, and raised for Hydra in another. Returns the best
        validation loss, in nats per token, for a sweeper that minimises it; None if there is none.
        """
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf

        # As they were typed: an interpolation in them may lead nowhere.
        overrides = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
        assert isinstance(overrides, list)
        is_own_process = os.getpid() == self.process
        sys.argv[:] = self.argv
        began = time.monotonic()
        try:
            outcome = self._run(config, overrides)
        except Exception as error:
            self._note(overrides, began, failed=True)
            if not is_own_process:
                raise
            if self.flags.multirun:
                # Tell a mistake at once, because the other jobs of the sweep may take hours.
                mistake = explain(error)
                if mistake is not None:
                    print_mistake(f"the job {' '.join(overrides)} failed: {mistake}")
            self.failures.append(error)
            return None
        except (KeyboardInterrupt, SystemExit):
            self._note(overrides, began)
            raise

        self._note(overrides, began, outcome)
        if outcome is None:
            return None
        # A signal is meant for the whole sweep.
        if outcome.exit_code:
            sys.exit(outcome.exit_code)
        return outcome.loss

    def _run(self, config: "DictConfig", overrides: list[str]) -> Outcome | None:
        """Check the composed configuration, or read that of the run to resume, and do the task."""
        if self.checked.check_composed is not None:
            self.checked.check_composed(config)
        expand_home(config)
        # Of a job that has begun no run yet; its overrides keep what was typed.
        if self.command == "train" and config.resume == AUTO:
            config.resume = None
        if self.command == "train" and config.resume is not None:
            config = stored_config(str(config.resume), overrides, self.flags.config_dir)
        take_from_source(self.command, config, overrides, self.flags.config_dir)
        if not self.flags.multirun:
            return self._run_single(config, overrides)

        print(f"job {self._place()}: {' '.join(overrides)}", flush=True)
        label = label_of(overrides, self.checked.varied)
        takes_one_device = self.command != "train" or config.trainer.devices in (1, "auto")
        if takes_one_device:
            return self.task(config, overrides, label, self.flags.config_dir)
        return self._run_in_new_process(overrides, label)

    def _run_single(self, config: "DictConfig", overrides: list[str]) -> Outcome | None:
        """Do the task, and hand its outcome back if the task is a job of a sweep in another process."""
        assignment = Assignment.take()
        if assignment is None:
            return self.task(config, overrides, "", self.flags.config_dir)

        outcome = self.task(config, overrides, assignment.label, self.flags.config_dir)
        assignment.write(outcome)
        return outcome

    def _run_in_new_process(self, overrides: list[str], label: str) -> Outcome:
        """Run the command for one job of a sweep in a process of its own.

        Lightning and torch keep rank, port and process group of a run on several devices until their process ends, so
        two such runs cannot follow each other in one process.
        """
        program = [sys.executable, "-m", "gptmini", self.command]
        if self.flags.config_dir is not None:
            program += ["--config-dir", self.flags.config_dir]

        with tempfile.TemporaryDirectory() as folder, passing_signals_on() as signals:
            assignment = Assignment(label=label, outcome=str(Path(folder, "outcome.json")))
            process = subprocess.Popen([*program, *overrides], env=assignment.hand_over())
            signals.pass_on_to(process)
            code = process.wait()
            outcome = assignment.read()

        # A process that ended before a signal reached it ends the sweep all the same.
        if code == 0 and signals.first:
            code = 128 + signals.first
        if outcome is not None:
            return dataclasses.replace(outcome, exit_code=code)
        # A code below zero or above that of a mistake comes from a signal, which is meant for the whole sweep.
        if code > MISUSE or code < 0:
            sys.exit(code)
        raise UserError(f"its own process told why, and ended with exit code {code}")

    def _note(
        self,
        overrides: list[str],
        began: float,
        outcome: Outcome | None = None,
        *,
        failed: bool = False,
    ) -> None:
        """Write the result of this job for the table of its sweep; began is in seconds of time.monotonic."""
        from hydra.core.hydra_config import HydraConfig

        if self.results is None:
            return
        result = JobResult(
            number=int(HydraConfig.get().job.num),
            overrides=overrides,
            seconds=time.monotonic() - began,
            outcome=outcome,
            failed=failed,
        )
        try:
            write_result(result, self.results)
        except OSError as error:
            job = " ".join(overrides)
            print_mistake(f"the sweep is not told how the job {job} ended: {error.strerror}")

    def _place(self) -> str:
        """The number of this job in its sweep, from 1, and in a grid of values the number of all jobs."""
        from hydra.core.hydra_config import HydraConfig

        number = int(HydraConfig.get().job.num) + 1
        if self.checked.jobs:
            return f"{number} of {len(self.checked.jobs)}"
        return str(number)


def _launch(
    command: str,
    task: Callable,
    flags: argparse.Namespace,
    arguments: list[str],
    checked: Checked,
) -> None:
    """Hand the command line to hydra.main, and raise what went wrong in a job once all jobs have run.

    A sweep in which jobs failed by mistakes of the user ends with exit code 2; each mistake was printed when it
    happened. However a sweep ends, the table of its jobs is printed.

    Raises Exception: the error of a single run, or a bug that a job of a sweep met.
    """
    import hydra

    # Let Hydra raise the errors of a job, instead of printing them in several lines.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    argv = list(sys.argv)
    job = _Job(
        command=command,
        task=task,
        flags=flags,
        argv=argv,
        process=os.getpid(),
        checked=checked,
        failures=[],
        results=_new_folder_of_results(checked),
    )

    # hydra.main takes a function, and reads the name and the module of the function.
    def run_job(config: "DictConfig") -> Any:
        return job(config)

    # hydra.main reads sys.argv, and takes no override after a flag.
    own_flags = list(arguments)
    for override in flags.typed:
        own_flags.remove(override)
    sys.argv[:] = [argv[0], *flags.overrides, *own_flags]
    interrupted = True
    try:
        hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=command)(run_job)()
        interrupted = False
    finally:
        sys.argv[:] = argv
        _print_table(job, interrupted=interrupted)

    for error in job.failures:
        was_printed = flags.multirun and explain(error) is not None
        if not was_printed:
            raise error
    if job.failures:
        sys.exit(MISUSE)


def _new_folder_of_results(checked: Checked) -> Path | None:
    """Make a folder for the results of a sweep of runs, which processes on other machines see too; else None."""
    if checked.runs_dir is None:
        return None
    notes = Path(checked.runs_dir).absolute() / ".sweeps"
    with naming_keys(runs_dir=checked.runs_dir):
        notes.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="results-", dir=notes))


def _print_table(job: _Job, *, interrupted: bool) -> None:
    """Print what became of the jobs of a sweep, if any job has begun, and remove the folder of their results."""
    if job.results is None:
        return

    results = read_results(job.results)
    shutil.rmtree(job.results, ignore_errors=True)
    if results:
        lines = table(results, job.checked.varied, job.checked.jobs, interrupted=interrupted)
        for i, line in enumerate(lines):
            topic = "sweep" if i == 0 else ""
            print(f"{topic:8} {line}", flush=True)
