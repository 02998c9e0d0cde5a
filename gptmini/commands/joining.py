"""The further processes of a run: what the first one tells them, and how they train with it."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.commands.errors import MISUSE, explain, one_line_errors
from gptmini.commands.fitting import (
    fit_and_announce,
    make_console,
    open_announcer,
    prepare_process,
)
from gptmini.commands.initial import initial_model, settle_origin
from gptmini.commands.plan import build, check_configuration, open_loggers
from gptmini.commands.start_up import started, starting_up
from gptmini.commands.tokens import open_tokens
from gptmini.launch import Launch

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gptmini.training.meeting import Orders
    from gptmini.training.processes import Group
    from gptmini.training.run import Run


@contextmanager
def dismissing_others(launch: Launch) -> Iterator[None]:
    """Let the processes that torchrun or srun has started end too, if the block ends before there is a run."""
    if not launch.starts_all:
        yield
        return

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
    with one_line_errors(), starting_up():
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
    began = time.monotonic()
    plan = check_configuration(config)
    started()
    prepare_process(plan)

    from gptmini.training.run import SharedRun

    checkpoint = None if orders.checkpoint is None else Path(orders.checkpoint)
    with SharedRun(Path(orders.folder), checkpoint, resumed=orders.resumed) as run:
        store, _ = open_tokens(config, run.state, orders.overrides)
        origin = settle_origin(config)
        initial = initial_model(origin) if run.state is None else None
        fitted = build(plan, store, run.state, initial=initial, origin=origin)
        run.begin(orders.config, orders.overrides)

        announcer = open_announcer(make_console("quiet"), run, plan, None)
        loggers = open_loggers(plan, run, announcer)
        result = fit_and_announce(
            group,
            plan,
            fitted,
            run,
            loggers,
            announcer,
            began=began,
        )
    return result.exit_code
