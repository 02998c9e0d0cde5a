"""The settings of a training run: how long, in batches of what size, and on which devices."""

import math
from dataclasses import dataclass, replace

from gptmini.checks import UserError, number, shown, whole
from gptmini.launch import HOW_TO_START, Launch

MOST_THREADS = 1024  # torch starts as many threads as it is told, until the system refuses
# Most sequences in a step. With at most as many steps, the numbers of all sequences of a run fit into 64 bits.
LARGEST_BATCH = 2**31
LONGEST_TIMEOUT = 86400 * 7  # a week, in seconds: whoever asks for more has mistaken the unit
STRATEGIES = ("auto", "ddp", "fsdp2")


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """The configuration's trainer group, with types and ranges checked.

    Two kinds of settings are checked where they are read: device, precision and compile in hardware.choose_hardware,
    and max_time in stopping.seconds_of.

    Raises UserError: a value of the wrong type or out of range, or a global batch that does not divide evenly.
    """

    max_steps: int  # optimizer steps
    # Stop after so many seconds, or [[DD:]HH:]MM:SS, of this process; None for no limit.
    max_time: float | str | None
    max_bad_steps: int  # stop after so many steps in a row whose loss or gradient is not finite
    global_batch_size: int  # sequences per optimizer step, over all devices and micro-steps
    batch_size: int | str  # sequences per device per micro-step; auto: see choose_batch_size
    gradient_clip: float | None  # largest norm of the whole gradient; None for no limit
    val_every_steps: int  # optimizer steps between validations; one more follows the last step
    val_tokens: int | None  # most tokens of the split to validate on; None for all of them
    device: str  # auto, cpu, cuda or mps
    # Devices of each machine to train on, and on the CPU processes; auto: see placed
    devices: int | str
    precision: str  # auto, fp32, bf16 or bf16_stream
    compile: bool | str  # auto, True or False
    threads: int | None  # CPU threads; None for torch's own choice
    # The following have defaults for the runs of earlier versions, which knew one machine alone.
    num_nodes: int | str = "auto"  # machines; auto: see placed
    strategy: str = "auto"  # auto, ddp or fsdp2
    # Whether each block's activations are computed again in the backward pass, instead of kept.
    checkpoint_activations: bool = False
    timeout: float = 600.0  # seconds after which a process that waits in vain for another gives up

    def __post_init__(self) -> None:
        """Check types and ranges."""
        for name in ("max_steps", "max_bad_steps", "val_every_steps"):
            whole(f"trainer.{name}", getattr(self, name))
        for name in ("devices", "num_nodes"):
            _whole_or_auto(f"trainer.{name}", getattr(self, name))
        if self.strategy not in STRATEGIES:
            raise UserError(
                f"trainer.strategy must be one of {', '.join(STRATEGIES)}, got {shown(self.strategy)}"
            )
        if type(self.checkpoint_activations) is not bool:
            raise UserError(
                f"trainer.checkpoint_activations must be true or false, got {shown(self.checkpoint_activations)}"
            )
        number("trainer.timeout", self.timeout, above=0, most=LONGEST_TIMEOUT)
        whole("trainer.global_batch_size", self.global_batch_size, most=LARGEST_BATCH)
        whole("trainer.val_tokens", self.val_tokens, null="all")
        whole("trainer.threads", self.threads, most=MOST_THREADS, null="torch's own choice")
        number("trainer.gradient_clip", self.gradient_clip, above=0, null="no limit")

        _whole_or_auto("trainer.batch_size", self.batch_size)
        if "auto" in (self.devices, self.num_nodes):
            return
        if self.batch_size == "auto":
            share_of(self.global_batch_size, self.n_ranks)
        else:
            micro_steps(self.global_batch_size, self.micro_batch_size, self.n_ranks)

    def placed(self, launch: Launch) -> "TrainerSettings":
        """Return the settings with numbers of devices and machines: those of the launch in the place of auto.

        Where gptmini itself starts the processes, auto is one device of one machine.
        Raises UserError: torchrun or srun has started another number of processes, several machines are asked for
        without them, or the global batch does not divide evenly.
        """
        if launch.tasks_without_srun > 1 and self.devices == "auto":
            raise UserError(
                f"this SLURM job has {launch.tasks_without_srun} tasks, and gptmini was called once; start it with "
                "srun gptmini train ..., or give trainer.devices for this machine alone"
            )

        devices = self.devices
        if devices == "auto":
            devices = launch.devices or 1
        nodes = self.num_nodes
        if nodes == "auto":
            nodes = launch.nodes or 1

        wanted = {"trainer.devices": devices, "trainer.num_nodes": nodes}
        started = {"trainer.devices": launch.devices, "trainer.num_nodes": launch.nodes}
        if launch.starts_all and wanted != started:
            key = next(name for name in wanted if wanted[name] != started[name])
            raise UserError(
                f"{key} must be {started[key]}, as {launch.by} has started it, or auto, got {wanted[key]}"
            )
        if not launch.starts_all and nodes != 1:
            raise UserError(
                f"trainer.num_nodes must be 1 for a run that was started alone, got {nodes}; {HOW_TO_START}"
            )
        return replace(self, devices=devices, num_nodes=nodes)

    @property
    def devices_here(self) -> int:
        """devices where it is a number, as placed returns it."""
        assert isinstance(self.devices, int)
        return self.devices

    @property
    def n_ranks(self) -> int:
        """Number of all processes, each with one device; devices and num_nodes must be numbers, as placed returns."""
        assert isinstance(self.num_nodes, int)
        return self.devices_here * self.num_nodes

    @property
    def micro_batch_size(self) -> int:
        """batch_size where it is a number, as in the settings of a module: assemble has replaced auto by then."""
        assert isinstance(self.batch_size, int)
        return self.batch_size

    def validation_due(self, step: int) -> bool:
        """Whether a validation follows when `step` optimizer steps are done."""
        return step % self.val_every_steps == 0 or step == self.max_steps


def micro_steps(global_batch_size: int, batch_size: int, n_ranks: int) -> int:
    """Return the micro-steps of one optimizer step on each rank: global_batch_size / (batch_size * n_ranks).

    Raises UserError: that is not a whole number.
    """
    share = share_of(global_batch_size, n_ranks)
    if share % batch_size:
        got = f"{global_batch_size}, {batch_size} and {n_ranks}"
        fitting = next(size for size in divisors(share) if size < batch_size)
        raise UserError(
            "trainer.global_batch_size must be a multiple of trainer.batch_size times the number of devices, "
            f"got {got}; trainer.batch_size={fitting} fits, and auto finds one"
        )
    return share // batch_size


def share_of(global_batch_size: int, n_ranks: int) -> int:
    """Return the sequences that each device takes of the global batch of a step: global_batch_size / n_ranks.

    Raises UserError: that is not a whole number.
    """
    if global_batch_size % n_ranks:
        fewer = next(number for number in divisors(global_batch_size) if number < n_ranks)
        more = n_ranks * (global_batch_size // n_ranks + 1)
        raise UserError(
            "trainer.global_batch_size must be a multiple of the number of devices, "
            f"got {global_batch_size} and {n_ranks}; "
            f"{fewer} devices or trainer.global_batch_size={more} would fit"
        )
    return global_batch_size // n_ranks


def _whole_or_auto(name: str, value: object) -> None:
    """Raise UserError unless a value is a whole number of at least 1, or auto."""
    if value != "auto" and (type(value) is not int or value < 1):
        raise UserError(f"{name} must be a whole number of at least 1, or auto, got {shown(value)}")


def divisors(number: int) -> list[int]:
    """Return all divisors of a positive whole number, largest first."""
    found = set()
    for small in range(1, math.isqrt(number) + 1):
        if number % small == 0:
            found.add(small)
            found.add(number // small)
    return sorted(found, reverse=True)
