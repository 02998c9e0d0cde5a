"""What the process of a trial is told when it is started: its overrides, its folder and its variables."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini import processors
from gptmini.commands.announcements import as_argument, command_line
from gptmini.commands.configuration import key_typed
from gptmini.commands.multirun import label_of
from gptmini.commands.stored import RESUMABLE
from gptmini.commands.sweep_space import Space

if TYPE_CHECKING:
    from gptmini.search import LauncherSettings, Order

# Ends the overrides of a trial: its first start begins a run, and every later one goes on with it.
AUTO = "resume=auto"


class Orders:
    """Tells the process of a trial what to train.

    Args:
        space: what is varied, and what holds for every run.
        launcher: where runs are trained, and how many at once.
        config_dir: a folder of the user's own that adds options to the groups.
    """

    def __init__(self, space: Space, launcher: "LauncherSettings", config_dir: str | None) -> None:
        self._space = space
        self._launcher = launcher
        self._config_dir = config_dir

    def order_of(
        self,
        number: int,
        texts: dict[str, str],
        *,
        before: "Order | None",
        job: str,
        gpus: str | None,
    ) -> "Order":
        """What a trial is told at a start.

        Args:
            number: of the trial.
            texts: its values, by key.
            before: what the trial was told at its newest start; None where no run has begun.
            job: names the trial in all its starts.
            gpus: those that it may use, as CUDA_VISIBLE_DEVICES names them; None for all.
        """
        from gptmini.search import Order

        overrides = [*self._space.overrides(texts), *self._threads()]
        if before is not None:
            overrides = self._going_on(before.arguments)

        keys = [dimension.key for dimension in self._space.dimensions]
        label = label_of([f"{key}={text}" for key, text in texts.items()], keys)
        return Order(
            arguments=[*overrides, AUTO, *self._own_folder()],
            label=f"trial-{number}_{label}",
            job=job,
            folder=str(Path.cwd()),
            environment=self._environment(gpus),
        )

    def command_for(self, texts: dict[str, str]) -> str:
        """What a user types to train a run with the values of a trial, outside of the sweep."""
        return command_line("train", *self._space.overrides(texts), *self._own_folder())

    def _going_on(self, before: list[str]) -> list[str]:
        """The overrides of a run that goes on: those with which it began, as typed then, and new resumable ones."""
        n_typed = before.index(AUTO)
        newer = [line for line in self._space.fixed if key_typed(line) in RESUMABLE]
        newer += self._threads()
        kept = [line for line in before[:n_typed] if line not in newer]
        return [*kept, *newer]

    def _environment(self, gpus: str | None) -> dict[str, str | None]:
        """Variables for the process of a run. submitit hides every GPU from a local one."""
        if self._launcher.cluster != "local":
            return {}
        return {"CUDA_VISIBLE_DEVICES": gpus or os.environ.get("CUDA_VISIBLE_DEVICES")}

    def _threads(self) -> list[str]:
        """The threads of each run where several share this machine, unless the user says how many."""
        typed = [key_typed(line) for line in self._space.fixed]
        is_alone = self._launcher.cluster != "local" or self._launcher.jobs == 1
        if is_alone or "trainer.threads" in typed:
            return []
        return [f"trainer.threads={max(1, processors.n_processors() // self._launcher.jobs)}"]

    def _own_folder(self) -> list[str]:
        """The user's own folder of configurations, as arguments."""
        if self._config_dir is None:
            return []
        return ["--config-dir", as_argument(Path(self._config_dir).absolute())]
