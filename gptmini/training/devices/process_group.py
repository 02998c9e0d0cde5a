"""The store through which the ranks of a run exchange data, and torch's process group."""

import os
from datetime import timedelta
from pathlib import Path

import torch
from lightning.fabric.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from torch import distributed
from torch.distributed import PrefixStore, Store, TCPStore

from gptmini.system.world import World


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


def open_store(world: World, *, seconds: float) -> Store:
    """Connect to the store. On the rank that keeps the store, create it. Every call waits at most this many seconds.

    Under torchrun, the process of torchrun keeps the store. Under srun, the first rank keeps the store.
    """
    cluster = cluster_of(world)
    torchrun_keeps_it = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        cluster.main_address,
        cluster.main_port,
        world_size=None,
        is_master=world.rank == 0 and not torchrun_keeps_it,
        wait_for_workers=False,
        timeout=timedelta(seconds=seconds),
        multi_tenant=True,
    )
    # torchrun keeps its store when it restarts the ranks, so use a new prefix after each restart.
    return PrefixStore(f"gptmini/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def join_process_group(
    world: World, store: Store, device: str, *, seconds: float, folder: Path
) -> None:
    """Join torch's process group. Ranks.join documents the arguments.

    gptmini joins the group itself, because Lightning would use torch's default. After torchrun has restarted the ranks,
    the default would read the addresses of dead ranks from the store of torchrun (torch 2.13).
    """
    gpu = None
    if device == "cuda":
        # If a collective hangs, NCCL's flight recorder writes the latest collectives of each rank into files with this
        # prefix. The tool torchfrtrace reads these files.
        os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(folder / "nccl_"))
        gpu = torch.device("cuda", world.local_rank)
        torch.cuda.set_device(gpu)

    distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=PrefixStore("group", store),
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=seconds),
        device_id=gpu,
    )
