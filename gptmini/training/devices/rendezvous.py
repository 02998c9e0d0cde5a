"""The store through which the ranks of a run exchange data, and torch's process group."""

import json
import os
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from torch import distributed
from torch.distributed import PrefixStore, Store, TCPStore

from gptmini.system.errors import UserError
from gptmini.system.world import World

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


class Rendezvous:
    """The ranks of a run, connected through a store. Ranks documents the methods.

    Under torchrun, the process of torchrun keeps the store. Under srun, the first rank keeps the store. If the store no
    longer answers, torch raises DistError, which is a RuntimeError.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._store = open_store(world)
        # Maximum seconds that this rank waits for rank 0 when it leaves.
        self._patience = ANSWER.total_seconds()

    def arrive(self) -> None:
        """On the first rank, wait until all other ranks have arrived."""
        self._reach("here")

    def leave(self) -> None:
        """Wait for the other ranks, and leave torch's process group.

        The launcher may end all ranks when any rank exits. So all ranks wait until rank 0 has saved its checkpoint,
        written how the run ended, and requeued its job, but at most trainer.timeout seconds. Rank 0 may keep the store,
        so it waits for all other ranks.
        """
        # The store no longer exists if the first rank has already exited, or if the launcher was killed.
        with suppress(RuntimeError):
            self._reach("done")
            deadline = time.monotonic() + self._patience
            while not self._store.check(["done/0"]) and time.monotonic() < deadline:
                time.sleep(POLL)
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def _reach(self, place: str) -> None:
        # Every rank writes that it is at this place. The first rank waits for all ranks.
        self._store.set(f"{place}/{self._world.rank}", "")
        names = [f"{place}/{rank}" for rank in range(self._world.size)]
        deadline = time.monotonic() + ANSWER.total_seconds()
        while self._world.rank == 0 and not self._store.check(names):
            if time.monotonic() > deadline:
                raise UserError(
                    f"some of the {self._world.size} ranks did not connect within {ANSWER}"
                )
            time.sleep(POLL)

    def broadcast(self, plan: dict[str, Any] | None) -> None:
        """Send the plan of the first rank."""
        self._store.set(PLAN, json.dumps(plan))

    def receive(self) -> dict[str, Any] | None:
        """Wait for the plan of the first rank, and return the plan."""
        try:
            while not self._store.check([PLAN]):
                time.sleep(POLL)
            return json.loads(self._store.get(PLAN))
        except RuntimeError:
            raise SystemExit(1) from None

    def join_process_group(self, device: str, *, seconds: float, folder: Path) -> None:
        """Join torch's process group.

        gptmini joins the group itself, because Lightning would use torch's default. After torchrun has restarted the
        ranks, the default would read the addresses of dead ranks from the store of torchrun (torch 2.13).
        """
        self._patience = seconds
        gpu = None
        if device == "cuda":
            for name, value in FLIGHT_RECORDER.items():
                os.environ.setdefault(name, value)
            os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(folder / "nccl_"))
            gpu = torch.device("cuda", self._world.local_rank)
            torch.cuda.set_device(gpu)

        distributed.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            store=PrefixStore("group", self._store),
            rank=self._world.rank,
            world_size=self._world.size,
            timeout=timedelta(seconds=seconds),
            device_id=gpu,
        )


def cluster_of(world: World) -> ClusterEnvironment:
    """Return the cluster environment from which Lightning gets the rank of this process.

    Without this environment, Lightning would detect Slurm even in a run with one process. It would then install its own
    signal handlers.
    """
    if world.launcher == "torchrun":
        return TorchElasticEnvironment()
    if world.launcher == "srun":
        return SLURMEnvironment(auto_requeue=False)
    return LightningEnvironment()


def open_store(world: World) -> Store:
    """Connect to the store. On the rank that keeps the store, create it."""
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
