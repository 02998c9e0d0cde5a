"""The further processes of a run: what the first one tells them, and how they train with it."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.commands.errors import MISUSE, explain, one_line_errors
from gptmini.commands.settings import build_loggers, build_settings
from gptmini.commands.start_up import started
from gptmini.launch import Launch

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gptmini.training.meeting import Orders
    from gptmini.training.processes import Group
    from gptmini.training.run import Run


@contextmanager
def dismissing_others(launch: Launch) -> Iterator[None]:
    """Let the processes that torchrun or srun has started end too, if the block ends before there is a run."""
    from gptmini.training.processes import meet

    meeting = meet(launch)
    try:
        yield
    finally:
        meeting.dismiss()


def orders_of(run: "Run", config: "DictConfig") -> "Orders":
    """What the further processes of a run must know of it once its folder is made."""
    from omegaconf import OmegaConf

    from gptmini.training.meeting import Orders

    return Orders(
        config=OmegaConf.to_yaml(config),
        overrides=list(run.overrides),
        folder=str(run.folder),
        checkpoint=None if run.state is None else str(run.state.path),
        resumed=run.resumed,
        path=list(sys.path),
    )


def train_further(launch: Launch) -> None:
    """Train as a further process of a run, which the first process has checked, named and written down.

    This process prints nothing, unless it has a bug: the first process tells the user what goes wrong here.
    """
    with one_line_errors():
        from omegaconf import DictConfig, OmegaConf

        from gptmini.training.meeting import LostStore, join_meeting
        from gptmini.training.processes import Group, leave_group
        from gptmini.training.stopping import LOSS

        try:
            meeting = join_meeting(launch)
            orders = meeting.hear_orders()
        except LostStore:
            sys.exit(LOSS)
        if orders is None:
            return

        sys.path.extend(folder for folder in orders.path if folder not in sys.path)
        try:
            config = OmegaConf.create(orders.config)
            assert isinstance(config, DictConfig)
            code = _follow(Group(launch, meeting), orders, config)
        except BaseException as error:
            meeting.tell_failure(error)
            if explain(error) is not None:
                sys.exit(MISUSE)
            raise
        finally:
            leave_group()
    sys.exit(code)


def _follow(group: "Group", orders: "Orders", config: "DictConfig") -> int:
    """Train with the configuration, the folder and the checkpoint of the first process; return the exit code."""
    from gptmini.commands import fitting, train
    from gptmini.commands.compose import Typed
    from gptmini.commands.tokens import open_tokens
    from gptmini.training.run import SharedRun

    began = time.monotonic()
    settings = build_settings(config)
    started()
    train.prepare_process(settings)

    checkpoint = None if orders.checkpoint is None else Path(orders.checkpoint)
    run = SharedRun(Path(orders.folder), checkpoint, resumed=orders.resumed)
    typed = Typed(overrides=orders.overrides, choices={})
    store, _ = open_tokens(config, typed, settings, run.state)
    module, data = train.assemble(settings, store, run.state)
    run.begin(orders.config, orders.overrides)

    loggers = build_loggers(config.logger, run)
    announcer = fitting.open_announcer(fitting.make_console("quiet"), run, settings, loggers, typed)
    result = fitting.fit(group, settings, module, data, run, loggers, announcer, began=began)
    return result.exit_code
