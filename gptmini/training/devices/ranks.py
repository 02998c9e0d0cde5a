"""The ranks of a run: how they find each other, what the first one tells the others, and how they begin to train."""

import json
import os
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.user_error import UserError
from gptmini.world import World

# A run of one rank needs none of them, and a wrong value is told before they are imported, which takes seconds.
if TYPE_CHECKING:
    from lightning.fabric.plugins.environments import ClusterEnvironment
    from torch.distributed import Store

# What makes NCCL's flight recorder write down the newest collectives of each rank when one of them hangs. The names
# are those of torch 2.11; torchfrtrace reads the files.
FLIGHT_RECORDER = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
}
POLL = 0.1  # seconds between two looks for what the first rank tells
# Time that the store may take to answer, and a rank to come: one that reads its libraries from a slow disk comes late.
ANSWER = timedelta(minutes=5)
PLAN = "plan"  # the key in the store under which the first rank tells the others what is trained


def cluster_of(world: World) -> "ClusterEnvironment":
    """Return what tells Lightning which rank this process is.

    Lightning itself would look for SLURM in a run of one process too, and put its own handlers of signals in place.
    """
    from lightning.fabric.plugins.environments import (
        LightningEnvironment,
        SLURMEnvironment,
        TorchElasticEnvironment,
    )

    if world.launcher == "torchrun":
        return TorchElasticEnvironment()
    if world.launcher == "srun":
        return SLURMEnvironment(auto_requeue=False)
    return LightningEnvironment()


class Ranks:
    """The ranks of a run as one of them sees the others, in a with block; for a run of one rank nothing happens.

    Raises torch.distributed.DistError: whoever keeps the store in which the ranks find each other does not answer.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        # Whether this rank waits for the others at the end of the block; False where it was told to stop at once.
        self.leave_together = True
        # Seconds that this rank waits at the end of the block: trainer.timeout, once it has joined the others.
        self._patience = ANSWER.total_seconds()
        self._store = _open_store(world) if world.size > 1 else None

    def __enter__(self) -> "Ranks":
        """As the first rank, wait until all others are there, so that they notice if this one ends by a mistake.

        Raises UserError: a rank does not come.
        """
        if self._store is not None:
            self._meet(self._store, "here")
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Leave together with all others, and torch's process group, unless an error ends this rank.

        The launcher may end all ranks with the first that ends. So no rank leaves before the first one has saved, has
        written how the run ended, and has put its job into the queue again. The first one may keep the store, and stays
        until all others are here. A rank that waits longer for the first one than trainer.timeout leaves without it.

        Raises UserError: a rank does not come.
        """
        if self._store is None or kind is not None or not self.leave_together:
            return

        from torch import distributed

        # Whoever keeps the store is gone: the first rank has left already, or the launcher was killed.
        with suppress(distributed.DistError, RuntimeError):
            self._meet(self._store, "done")
            deadline = time.monotonic() + self._patience
            while not self._store.check(["done/0"]) and time.monotonic() < deadline:
                time.sleep(POLL)
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def _meet(self, store: "Store", place: str) -> None:
        """Tell the others that this rank is here; the first one waits for all. UserError: a rank does not come."""
        store.set(f"{place}/{self.world.rank}", "")
        names = [f"{place}/{rank}" for rank in range(self.world.size)]
        deadline = time.monotonic() + ANSWER.total_seconds()
        while self.world.rank == 0 and not store.check(names):
            if time.monotonic() > deadline:
                raise UserError(f"not all of {self.world.size} ranks came within {ANSWER}")
            time.sleep(POLL)

    def tell(self, plan: dict[str, Any] | None) -> None:
        """As the first rank, tell the others what is trained, in values of JSON; None where nothing is left."""
        if self._store is not None:
            self._store.set(PLAN, json.dumps(plan))

    def hear(self) -> dict[str, Any] | None:
        """Wait until the first rank has told what is trained, however long it prepares the text, and return that.

        Raises SystemExit: the first rank is gone, and has said why.
        """
        from torch.distributed import DistError

        assert self._store is not None
        try:
            while not self._store.check([PLAN]):
                time.sleep(POLL)
            return json.loads(self._store.get(PLAN))
        except (DistError, RuntimeError):
            raise SystemExit(1) from None

    def join(self, device: str, *, seconds: float, folder: Path) -> None:
        """Join torch's process group, in which the ranks exchange gradients, before Lightning would do it.

        Every rank must call this. torch by itself would look in torchrun's store under the names of an earlier start,
        and would call ranks that are dead (torch 2.13).

        Args:
            device: cpu or cuda.
            seconds: after which a rank that waits in vain for another one gives up, here and in every exchange.
            folder: the run's folder, for what NCCL writes down of a rank that hangs.
        """
        if self._store is None:
            return
        self._patience = seconds

        import torch
        from torch.distributed import PrefixStore

        own = None
        if device == "cuda":
            for name, value in FLIGHT_RECORDER.items():
                os.environ.setdefault(name, value)
            os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(folder / "nccl_"))
            own = torch.device("cuda", self.world.local_rank)
            torch.cuda.set_device(own)

        torch.distributed.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            store=PrefixStore("group", self._store),
            rank=self.world.rank,
            world_size=self.world.size,
            timeout=timedelta(seconds=seconds),
            device_id=own,
        )


def _open_store(world: World) -> "Store":
    """Open the store in which ranks find each other; torchrun keeps one, and under srun the first rank does."""
    from torch.distributed import PrefixStore, TCPStore

    cluster = cluster_of(world)
    torchrun_keeps_it = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        cluster.main_address,
        cluster.main_port,
        world_size=None,
        is_master=world.rank == 0 and not torchrun_keeps_it,
        wait_for_workers=False,
        timeout=ANSWER,
        multi_tenant=True,
    )
    # torchrun keeps its store when it starts the ranks again.
    return PrefixStore(f"gptmini/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
