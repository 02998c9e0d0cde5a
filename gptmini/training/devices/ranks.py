"""Let the ranks of a run connect, receive the plan of the first rank, start training, and exit together."""

from pathlib import Path
from typing import Any

from gptmini.system.world import World


class Ranks:
    """A context manager that connects the ranks of a run. It does nothing in a run with one rank.

    Raises torch.distributed.DistError if the ranks cannot connect.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        # Whether this rank waits for the other ranks at the end of the with block. If it must stop immediately, this is
        # False.
        self.leave_together = True
        self._rendezvous = None
        if world.size > 1:
            # This import takes seconds. gptmini reports wrong values of a run with one rank before it imports anything
            # slow.
            from gptmini.training.devices.rendezvous import Rendezvous

            self._rendezvous = Rendezvous(world)

    def __enter__(self) -> "Ranks":
        """On the first rank, wait until all other ranks have connected. Then they notice if the first rank fails."""
        if self._rendezvous is not None:
            self._rendezvous.arrive()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Leave together with the other ranks. Do nothing if an error ends this rank."""
        if self._rendezvous is not None and kind is None and self.leave_together:
            self._rendezvous.leave()

    def broadcast(self, plan: dict[str, Any] | None) -> None:
        """On the first rank, send the plan to the other ranks as JSON. The plan is None if nothing is left to train."""
        if self._rendezvous is not None:
            self._rendezvous.broadcast(plan)

    def receive(self) -> dict[str, Any] | None:
        """Wait for the plan of the first rank, and return the plan.

        There is no time limit, because preparing a text may take long.
        Raises SystemExit if the first rank has ended. The first rank has then printed the reason.
        """
        assert self._rendezvous is not None
        return self._rendezvous.receive()

    def join(self, device: str, *, seconds: float, folder: Path) -> None:
        """Join torch's process group, in which the ranks exchange gradients. Every rank must call this method.

        A rank waits at most this many seconds for another rank, here and in every collective. If a rank hangs, NCCL
        writes its dumps into the run folder.
        """
        if self._rendezvous is not None:
            self._rendezvous.join_process_group(device, seconds=seconds, folder=folder)
