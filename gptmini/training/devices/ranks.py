"""Let the ranks of a run connect, receive the plan of the first rank, start training, and exit together."""

import json
import os
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.system.errors import UserError
from gptmini.system.world import World

# These imports take seconds. A run with one rank does not need the imports, and gptmini reports wrong values before it
# imports anything slow.
if TYPE_CHECKING:
    from lightning.fabric.plugins.environments import ClusterEnvironment
    from torch.distributed import Store

# Environment variables for the flight recorder of NCCL. If a collective hangs, the flight recorder writes the latest
# collectives of each rank into files. The tool torchfrtrace reads these files. The names are from torch 2.11.
FLIGHT_RECORDER = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
}
POLL = 0.1  # seconds between two checks of the store
# Maximum time until the store answers, and maximum time until a rank connects. The time is long, because importing
# libraries from a slow disk takes long.
ANSWER = timedelta(minutes=5)
PLAN = "plan"  # key in the store; its value is the plan of the first rank


def cluster_of(world: World) -> "ClusterEnvironment":
    """Return the cluster environment from which Lightning gets the rank of this process.

    Without this environment, Lightning would detect Slurm even in a run with one process. It would then install its own
    signal handlers.
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
    """A context manager that connects the ranks of a run. It does nothing in a run with one rank.

    The ranks exchange data through a store. Under torchrun, the process of torchrun keeps the store. Under srun, the
    first rank keeps the store.

    Raises torch.distributed.DistError if the store does not answer.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        # Whether this rank waits for the other ranks at the end of the with block. If it must stop immediately, this is
        # False.
        self.leave_together = True
        # Maximum seconds that this rank waits for rank 0 at the end of the with block. join() sets this to
        # trainer.timeout.
        self._patience = ANSWER.total_seconds()
        self._store = _open_store(world) if world.size > 1 else None

    def __enter__(self) -> "Ranks":
        """On the first rank, wait until all other ranks have connected. Then they notice if the first rank fails."""
        if self._store is not None:
            self._meet(self._store, "here")
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Wait for the other ranks, and leave torch's process group. Do nothing if an error ends this rank.

        The launcher may end all ranks when any rank exits. So all ranks wait until rank 0 has saved its checkpoint,
        written how the run ended, and requeued its job, but at most trainer.timeout seconds. Rank 0 may keep the store,
        so it waits for all other ranks.
        """
        if self._store is None or kind is not None or not self.leave_together:
            return

        from torch import distributed

        # The store no longer exists if the first rank has already exited, or if the launcher was killed.
        with suppress(distributed.DistError, RuntimeError):
            self._meet(self._store, "done")
            deadline = time.monotonic() + self._patience
            while not self._store.check(["done/0"]) and time.monotonic() < deadline:
                time.sleep(POLL)
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def _meet(self, store: "Store", place: str) -> None:
        # Every rank writes that it is at this place. The first rank waits for all ranks.
        store.set(f"{place}/{self.world.rank}", "")
        names = [f"{place}/{rank}" for rank in range(self.world.size)]
        deadline = time.monotonic() + ANSWER.total_seconds()
        while self.world.rank == 0 and not store.check(names):
            if time.monotonic() > deadline:
                raise UserError(
                    f"some of the {self.world.size} ranks did not connect within {ANSWER}"
                )
            time.sleep(POLL)

    def broadcast(self, plan: dict[str, Any] | None) -> None:
        """On the first rank, send the plan to the other ranks as JSON. The plan is None if nothing is left to train."""
        if self._store is not None:
            self._store.set(PLAN, json.dumps(plan))

    def receive(self) -> dict[str, Any] | None:
        """Wait for the plan of the first rank, and return the plan.

        There is no time limit, because preparing a text may take long.
        Raises SystemExit if the first rank has ended. The first rank has then printed the reason.
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
        """Join torch's process group, in which the ranks exchange gradients.

        Every rank must call this method. gptmini joins the group itself, because Lightning would use torch's default.
        After torchrun has restarted the ranks, the default would read the addresses of dead ranks from the store of
        torchrun (torch 2.13). A rank waits at most this many seconds for another rank, here and in every collective. If
        a rank hangs, NCCL writes its dumps into the run folder.
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
    # torchrun keeps its store when it restarts the ranks, so use a new prefix after each restart.
    return PrefixStore(f"gptmini/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
