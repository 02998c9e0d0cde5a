"""Let the ranks of a run connect, receive the plan of the first rank, start training, and exit together."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gptmini.system.errors import UserError
from gptmini.system.world import World

POLL = 0.1  # seconds between two checks of the store
# Maximum number of seconds until the store answers, and until a rank connects. It is long, because importing libraries
# from a slow disk takes long.
ANSWER = 300.0
PLAN = "plan"  # key in the store; its value is the plan of the first rank


class Ranks:
    """A context manager that connects the ranks of a run through a store. It does nothing in a run with one rank.

    If the store does not answer, torch raises torch.distributed.DistError, which is a RuntimeError.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        # Whether this rank waits for the other ranks at the end of the with block. If it must stop immediately, this is
        # False.
        self.leave_together = True
        # Maximum seconds that this rank waits for rank 0 when it leaves.
        self._patience = ANSWER
        self._store = None
        if world.size > 1:
            # This import takes seconds. gptmini reports wrong values of a run with one rank before it imports anything
            # slow.
            from gptmini.training.devices.process_group import open_store

            self._store = open_store(world, seconds=ANSWER)

    def __enter__(self) -> "Ranks":
        """On the first rank, wait until all other ranks have connected. Then they notice if the first rank fails."""
        if self._store is not None:
            self._reach("here")
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Leave together with the other ranks. Do nothing if an error ends this rank.

        The launcher may end all ranks when any rank exits. So all ranks wait until rank 0 has saved its checkpoint,
        written how the run ended, and requeued its job, but at most trainer.timeout seconds. Rank 0 may keep the store,
        so it waits for all other ranks.
        """
        if self._store is None or kind is not None or not self.leave_together:
            return
        from torch import distributed

        # The store no longer exists if the first rank has already exited, or if the launcher was killed.
        with suppress(RuntimeError):
            self._reach("done")
            deadline = time.monotonic() + self._patience
            while not self._store.check(["done/0"]) and time.monotonic() < deadline:
                time.sleep(POLL)
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def broadcast(self, plan: dict[str, Any] | None) -> None:
        """On the first rank, send the plan to the other ranks as JSON. The plan is None if nothing is left to train."""
        if self._store is not None:
            self._store.set(PLAN, json.dumps(plan))

    def receive(self) -> dict[str, Any] | None:
        """Wait for the plan of the first rank, and return the plan.

        There is no time limit, because preparing a text may take long.
        Raises SystemExit if the first rank has ended. The first rank has then printed the reason.
        """
        assert self._store is not None
        try:
            while not self._store.check([PLAN]):
                time.sleep(POLL)
            return json.loads(self._store.get(PLAN))
        except RuntimeError:
            raise SystemExit(1) from None

    def join(self, device: str, *, seconds: float, folder: Path) -> None:
        """Join torch's process group, in which the ranks exchange gradients. Every rank must call this method.

        A rank waits at most this many seconds for another rank, here and in every collective. If a rank hangs, NCCL
        writes its dumps into the run folder.
        """
        if self._store is None:
            return
        from gptmini.training.devices.process_group import join_process_group

        self._patience = seconds
        join_process_group(self.world, self._store, device, seconds=seconds, folder=folder)

    def _reach(self, place: str) -> None:
        # Every rank writes that it is at this place. The first rank waits for all ranks.
        assert self._store is not None
        self._store.set(f"{place}/{self.world.rank}", "")
        names = [f"{place}/{rank}" for rank in range(self.world.size)]
        deadline = time.monotonic() + ANSWER
        while self.world.rank == 0 and not self._store.check(names):
            if time.monotonic() > deadline:
                raise UserError(
                    f"some of the {self.world.size} ranks did not connect within {ANSWER:g} s"
                )
            time.sleep(POLL)
