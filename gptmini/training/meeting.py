"""Where the processes of a run leave messages for each other, outside of training: a store of torch in one of them.

Collectives of torch need every process at the same line. Messages do not: the first process decides in which folder a
run is trained and tells the others, and a process that has lost another one asks who is still there.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch.distributed import DistError, PrefixStore, TCPStore

from gptmini.launch import Launch
from gptmini.user_error import UserError

LOCALHOST = "127.0.0.1"
POLL = 0.05  # seconds between two looks for a message
# Ports above the system's own, for a SLURM job that names none; the last digits of the job's number are added.
FIRST_PORT = 15000
# Seconds that the store may take to answer. A first process that reads its libraries from a slow disk comes late.
ANSWER = 300.0
# How long a process that has lost another one waits for the word of the others. Each of them notices the loss itself.
ROLL_CALL = 5.0
# What the first process tells the others instead of orders, where there is nothing to train.
DISMISSED = {"dismissed": True}
# Parts of the messages by which gloo tells of a process that is gone, or that did not come in time. gloo has no class
# of its own for them.
GLOO_LOSSES = (
    "gloo",
    "Connection closed by peer",
    "Connection reset by peer",
    "Timed out waiting",
    "timeout caused pair closure",
)


class LostStore(UserError):
    """The process that keeps the messages of a run is gone."""

    def __init__(self) -> None:
        super().__init__(
            "the process that keeps the messages of the run does not answer; start the run again"
        )


class FurtherProcessFailed(UserError):
    """Another process of the run has ended, and has told why."""


@dataclass(frozen=True)
class Orders:
    """What the first process of a run has decided for all."""

    config: str  # the configuration in YAML
    overrides: list[str]  # what was typed, KEY=VALUE each
    folder: str  # the run's folder
    checkpoint: str | None  # file that training goes on from; None for the first step
    resumed: bool  # whether the run goes on with what an earlier process began
    # Folders in which Python looks for modules: a class of the user's own must be found in every process.
    path: list[str]


class Meeting:
    """Messages between the processes of a run, each a name with a value of JSON.

    Args:
        launch: which process this is.
        n_ranks: number of processes.
        store: torch's store, which one of the processes, or torchrun, keeps.
    """

    def __init__(self, launch: Launch, n_ranks: int, store: TCPStore) -> None:
        self.rank = launch.rank
        self.n_ranks = n_ranks
        # torchrun keeps its store when it starts the processes again.
        self._store = PrefixStore(f"gptmini/{launch.restarts}", store)

    def tell(self, name: str, value: object) -> None:
        """Leave a message for all; LostStore if the store is gone."""
        try:
            self._store.set(name, json.dumps(value))
        except (DistError, RuntimeError) as error:
            raise LostStore() from error

    def heard(self, name: str) -> Any:
        """Return the value of a message, None if nobody has left it yet; LostStore if the store is gone."""
        try:
            if not self._store.check([name]):
                return None
            return json.loads(self._store.get(name))
        except (DistError, RuntimeError) as error:
            raise LostStore() from error

    def hear(self, name: str) -> Any:
        """Wait for a message, however long that takes, and return its value; LostStore if the store is gone."""
        while True:
            value = self.heard(name)
            if value is not None:
                return value
            time.sleep(POLL)

    def tell_orders(self, orders: Orders) -> None:
        """As the first process, tell the others what is trained."""
        self.tell("orders", asdict(orders))

    def hear_orders(self) -> Orders | None:
        """Wait until the first process has decided what is trained, and return that; None: there is nothing to train.

        Raises LostStore: the first process is gone.
        """
        orders = self.hear("orders")
        if orders == DISMISSED:
            self.tell(f"left/{self.rank}", True)
            return None
        return Orders(**orders)

    def dismiss(self) -> None:
        """As the first process, tell the others that there is nothing to train, and wait until they have heard it.

        Nothing happens where they have their orders already.
        """
        with suppress(LostStore):
            if self.heard("orders") is not None:
                return
            self.tell("orders", DISMISSED)
            self._await(f"left/{rank}" for rank in range(1, self.n_ranks))

    def tell_failure(self, error: BaseException) -> None:
        """Tell the others why this process ends; nothing happens where nobody is left to hear."""
        with suppress(LostStore):
            self.tell(f"failed/{self.rank}", _reason(error))

    def _await(self, names: Iterable[str]) -> list[str]:
        """Wait at most ROLL_CALL seconds for messages; return the names of those that did not come."""
        deadline = time.monotonic() + ROLL_CALL
        missing = list(names)
        while True:
            missing = [name for name in missing if self.heard(name) is None]
            if not missing or time.monotonic() > deadline:
                return missing
            time.sleep(POLL)

    def failures(self) -> Iterator[tuple[int, str]]:
        """Yield the number of each process that has told of its failure, and what it said."""
        for rank in range(self.n_ranks):
            reason = self.heard(f"failed/{rank}")
            if reason is not None:
                yield rank, reason

    def await_all(self, seconds: float, *, watched: "Sequence[Any]" = ()) -> None:
        """As the first process, wait until every other one is ready to train.

        Args:
            seconds: after which those that are missing are given up.
            watched: the processes of ranks 1, 2 and so on, where this one has started them.

        Raises FurtherProcessFailed: a process has failed, has ended or has not come.
        """
        deadline = time.monotonic() + seconds
        missing = set(range(1, self.n_ranks))
        while missing:
            for rank, reason in self.failures():
                raise FurtherProcessFailed(f"process {rank} of the run failed: {reason}")
            for rank, process in enumerate(watched, start=1):
                if process.poll() is not None:
                    raise FurtherProcessFailed(
                        f"process {rank} of the run ended before the first step, with exit code {process.returncode}"
                    )

            missing = {rank for rank in missing if self.heard(f"ready/{rank}") is None}
            if missing and time.monotonic() > deadline:
                raise FurtherProcessFailed(
                    f"{_listed(missing)} of {self.n_ranks} did not come within {seconds:g} s (trainer.timeout)"
                )
            time.sleep(POLL)

    def tell_ready(self) -> None:
        """As a further process, tell the first one that this one is ready to train."""
        self.tell(f"ready/{self.rank}", True)

    def join_group(self, device: torch.device, seconds: float) -> None:
        """Join torch's process group, in which the processes exchange gradients; each process must call this.

        torch itself would look for the others in torchrun's store under the names of an earlier start, and would call
        processes that are dead (torch 2.13).

        Args:
            device: of this process.
            seconds: after which a process that waits in vain for another one gives up.

        Raises RuntimeError: another process is gone, or did not come in time.
        """
        on_cuda = device.type == "cuda"
        if on_cuda:
            torch.cuda.set_device(device)
        torch.distributed.init_process_group(
            "nccl" if on_cuda else "gloo",
            store=PrefixStore("group", self._store),
            rank=self.rank,
            world_size=self.n_ranks,
            timeout=timedelta(seconds=seconds),
            device_id=device if on_cuda else None,
        )

    def tell_step(self, step: int) -> None:
        """Tell the others how many optimizer steps this process has done."""
        self.tell(f"step/{self.rank}", step)

    def missing(self) -> tuple[list[int], str]:
        """Find out who is gone, after this process has lost another one.

        Returns the numbers of those processes that do not answer, and a clause for the user that names each with its
        newest step, or with the reason that the process itself has told. Both are empty if all answer.
        """
        self.tell(f"here/{self.rank}", True)
        places = {f"here/{rank}": rank for rank in range(self.n_ranks)}
        absent = [places[name] for name in self._await(places)]

        clauses = []
        told = dict(self.failures())
        for rank in absent:
            if rank in told:
                clauses.append(f"process {rank} failed: {told[rank]}")
                continue
            step = self.heard(f"step/{rank}")
            since = "before its first step" if step is None else f"after it reported step {step}"
            clauses.append(f"process {rank} does not answer, {since}")
        return absent, "; ".join(clauses)


def host_meeting(n_ranks: int) -> tuple[Meeting, int]:
    """Open the meeting of processes that gptmini starts on this machine; return it and the port where it answers."""
    store = TCPStore(
        LOCALHOST,
        0,  # the system chooses a port that is free, and no other program can take it meanwhile
        world_size=None,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=ANSWER),
        multi_tenant=True,  # torch's process group will use this store too
    )
    launch = Launch(by="gptmini", devices=n_ranks, nodes=1)
    return Meeting(launch, n_ranks, store), store.port


def join_meeting(launch: Launch) -> Meeting:
    """Open the meeting of a run whose processes were started by gptmini, torchrun or srun.

    Raises LostStore: the process that keeps the messages does not answer.
    """
    assert launch.devices is not None
    assert launch.nodes is not None
    address, port = meeting_place(launch)

    # Where torchrun does not keep the store, the first process does.
    torchrun_keeps_it = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = TCPStore(
            address,
            port,
            world_size=None,
            is_master=launch.rank == 0 and not torchrun_keeps_it,
            wait_for_workers=False,
            timeout=timedelta(seconds=ANSWER),
            multi_tenant=True,
        )
    except (DistError, RuntimeError) as error:
        raise LostStore() from error

    return Meeting(launch, launch.devices * launch.nodes, store)


def meeting_place(launch: Launch) -> tuple[str, int]:
    """Address and port of the process that keeps the messages, which torch's process group uses too.

    torchrun and gptmini name them in MASTER_ADDR and MASTER_PORT. Under srun they follow from the job, unless the user
    has set the variables.
    """
    address = os.environ.get("MASTER_ADDR")
    port = os.environ.get("MASTER_PORT")
    if launch.by == "srun":
        from lightning.fabric.plugins.environments import SLURMEnvironment

        nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_NODELIST", LOCALHOST)
        digits = os.environ.get("SLURM_JOB_ID", "0")[-4:]
        address = address or SLURMEnvironment.resolve_root_node_address(nodes)
        port = port or str(FIRST_PORT + int(digits))
    if address is None or port is None or not port.isdigit():
        raise UserError(
            f"MASTER_ADDR and MASTER_PORT must say where the processes meet, got {address!r} and {port!r}"
        )
    return address, int(port)


def is_loss(error: BaseException) -> bool:
    """Whether an error says that another process of the run is gone, or did not come in time."""
    if isinstance(error, DistError | LostStore):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(words in text for words in GLOO_LOSSES)


def _reason(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, UserError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _listed(ranks: set[int]) -> str:
    """The numbers of processes as a subject: process 3, or processes 1, 2 and 3."""
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) == 1:
        return f"process {numbers[0]}"
    return f"processes {', '.join(numbers[:-1])} and {numbers[-1]}"
