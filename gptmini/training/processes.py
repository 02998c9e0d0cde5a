"""The processes of a run: how Lightning and torch find them, and how gptmini starts them on one machine."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path

import torch
from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy, Strategy

from gptmini.launch import Launch, further_environment
from gptmini.training.meeting import (
    LOCALHOST,
    FurtherProcessFailed,
    Meeting,
    Orders,
    host_meeting,
    join_meeting,
    meeting_place,
)
from gptmini.training.settings import TrainerSettings
from gptmini.training.sharding import ShardedStrategy
from gptmini.user_error import UserError

# What makes NCCL's flight recorder write down the newest collectives of each process when one of them hangs. The names
# are those of torch 2.11; torchfrtrace reads the files.
FLIGHT_RECORDER = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
}
ENDING = 5.0  # seconds that a further process has to end by itself

left_group = False  # whether this process has trained together with others, and has left them


class RunEnvironment(ClusterEnvironment):
    """Tells Lightning which process of a run this one is, whoever has started it."""

    def __init__(self, launch: Launch) -> None:
        super().__init__()
        assert launch.devices is not None
        assert launch.nodes is not None
        self._launch = launch
        self._world_size = launch.devices * launch.nodes
        self._address, self._port = meeting_place(launch)

    @property
    def creates_processes_externally(self) -> bool:
        """Whether Lightning is to start no processes."""
        return True

    @property
    def main_address(self) -> str:
        """Where the first process answers."""
        return self._address

    @property
    def main_port(self) -> int:
        """At which port the first process answers."""
        return self._port

    @staticmethod
    def detect() -> bool:
        """Whether Lightning may choose this class by itself."""
        return False

    def world_size(self) -> int:
        """Return the number of processes."""
        return self._world_size

    def set_world_size(self, size: int) -> None:
        """Do nothing: the launch says how many processes there are."""

    def global_rank(self) -> int:
        """Return the number of this process."""
        return self._launch.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the launch says which process this is."""

    def local_rank(self) -> int:
        """Return the number of this process on its machine."""
        return self._launch.local_rank

    def node_rank(self) -> int:
        """Return the number of this machine."""
        return self._launch.node


def environment_of(settings: TrainerSettings, launch: Launch) -> ClusterEnvironment:
    """Return what tells Lightning which process this one is.

    Lightning itself would look for SLURM, and put its own handlers of signals in place.
    Raises UserError: there are to be several processes, and nothing has started them.
    """
    if launch.by is not None:
        return RunEnvironment(launch)
    if settings.n_ranks > 1:
        raise UserError(
            f"a run on {settings.n_ranks} devices needs as many processes; start this program with "
            f"torchrun --standalone --nproc_per_node={settings.n_ranks}"
        )
    return LightningEnvironment()


def strategy_of(settings: TrainerSettings, device: str) -> Strategy | str:
    """Return Lightning's strategy for the settings of a trainer.

    Raises UserError: device, which is cpu, cuda or mps, does not bear the strategy.
    """
    timeout = timedelta(seconds=settings.timeout)
    if settings.strategy == "fsdp2" and device == "mps":
        raise UserError("trainer.strategy=fsdp2 needs CUDA GPUs or the CPU, got device=mps")
    if settings.strategy == "fsdp2":
        return ShardedStrategy(
            data_parallel_size=settings.n_ranks,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            timeout=timeout,
        )

    is_distributed = settings.n_ranks > 1 or settings.strategy == "ddp"
    if not is_distributed:
        return "auto"
    # The model's only buffers are tables that never change. Sent before each forward pass, they would make processes
    # wait for each other in a validation, of which one has a batch more than another.
    return DDPStrategy(timeout=timeout, broadcast_buffers=False)


def prepare_for_collectives(device: str, folder: Path) -> None:
    """Set variables that torch reads when it joins the processes of a run; what the user has set stays.

    Args:
        device: cpu, cuda or mps.
        folder: the run's folder, for what NCCL writes down of a process that hangs.
    """
    if device == "cuda":
        for name, value in FLIGHT_RECORDER.items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(folder / "nccl_"))


@contextmanager
def further_processes(n_ranks: int, port: int) -> Iterator[list[subprocess.Popen]]:
    """Start the processes of ranks 1, 2 and so on of a run on this machine, and end them after the block.

    Args:
        n_ranks: number of processes in all; the caller is the first.
        port: where the meeting of the processes answers.
    """
    processes = []
    try:
        for rank in range(1, n_ranks):
            environment = os.environ | further_environment(rank, n_ranks, port=port)
            command = [sys.executable, "-m", "gptmini", "train"]
            processes.append(subprocess.Popen(command, env=environment))
        yield processes
    finally:
        end(processes)


def end(processes: list[subprocess.Popen]) -> None:
    """Wait for processes that are about to end, and end those that do not."""
    for process in processes:
        try:
            process.wait(timeout=ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def leave_group() -> None:
    """Leave torch's process group, if this process is in one, so that another run of this process can join its own."""
    global left_group
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        left_group = True


@dataclass(frozen=True)
class Group:
    """The processes of a run, as one of them sees the others."""

    launch: Launch
    meeting: Meeting | None = None  # None for a run of one process
    started: Sequence[subprocess.Popen] = ()  # the further processes, if this one has started them

    def tell_orders(self, orders: Orders) -> None:
        """As the first process, tell the others what is trained."""
        if self.meeting is not None:
            self.meeting.tell_orders(orders)

    def come_together(self, device: str, seconds: float) -> None:
        """Wait until every process is ready to train, and join torch's process group.

        Args:
            device: cpu, cuda or mps.
            seconds: after which a process that waits in vain for another one gives up.

        Raises FurtherProcessFailed: a process has failed, or did not come in time.
        """
        if self.meeting is None:
            return
        if self.launch.is_further:
            self.meeting.tell_ready()
        else:
            self.meeting.await_all(seconds, watched=self.started)

        own = (
            torch.device(device, self.launch.local_rank)
            if device == "cuda"
            else torch.device(device)
        )
        try:
            self.meeting.join_group(own, seconds)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise FurtherProcessFailed(
                f"the processes of the run did not find each other: {reason}"
            ) from error


@cache
def meet(launch: Launch) -> Meeting:
    """Open the meeting of a run whose processes torchrun or srun has started, once in a process."""
    return join_meeting(launch)


@contextmanager
def all_processes(settings: TrainerSettings, launch: Launch) -> Iterator[Group]:
    """Bring the processes of a run together, as the first of them: start the others here, or meet them.

    An error of the block ends the other processes too.
    """
    with ExitStack() as stack:
        stack.callback(leave_group)
        if launch.starts_all:
            group = Group(launch, meet(launch))
        elif settings.n_ranks > 1:
            meeting, port = host_meeting(settings.n_ranks)
            stack.enter_context(_set_variables(MASTER_ADDR=LOCALHOST, MASTER_PORT=str(port)))
            started = stack.enter_context(further_processes(settings.n_ranks, port))
            first = Launch(by="gptmini", devices=settings.n_ranks, nodes=1)
            group = Group(first, meeting, started)
        else:
            group = Group(launch)

        if group.meeting is not None:
            stack.callback(group.meeting.dismiss)
        try:
            yield group
        except BaseException as error:
            if group.meeting is not None:
                group.meeting.tell_failure(error)
            raise


@contextmanager
def _set_variables(**variables: str) -> Iterator[None]:
    """Set variables of the environment during the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
