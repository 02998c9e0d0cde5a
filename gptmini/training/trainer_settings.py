"""The trainer settings. They determine the duration, the batch sizes and the devices of a training run."""

import math
from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from pydantic.dataclasses import dataclass

from gptmini.settings import STRICT, Time, seconds_of
from gptmini.system.errors import UserError
from gptmini.system.world import World

MOST_THREADS = 1024  # torch itself has no limit, and too many threads make the system fail
# Maximum number of sequences in a step. If a run also has at most 2^31 steps, all numbers of its sequences fit into
# 64 bits.
LARGEST_BATCH = 2**31
# With val_every_steps=auto, a validation runs every VAL_STEPS steps. A run that is too short for this validates
# MIN_VALIDATIONS times, because the trend of the loss needs several points.
VAL_STEPS = 200
MIN_VALIDATIONS = 4
LONGEST_TIMEOUT = 86400 * 7  # a week, in seconds; a user who sets more probably used a wrong unit


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainerSettings:
    """The group trainer of the configuration. configs/trainer/default.yaml describes each field.

    Raises pydantic.ValidationError, a subclass of ValueError, if a value has the wrong type or is out of range, or if
    the global batch cannot be divided evenly into devices and micro-steps.
    """

    max_steps: PositiveInt
    max_time: Time | None
    max_bad_steps: PositiveInt
    global_batch_size: Annotated[int, Field(ge=1, le=LARGEST_BATCH)]
    batch_size: PositiveInt | Literal["auto"]  # choose_batch_size replaces 'auto'
    gradient_clip: PositiveFloat | None
    # The default is the value of runs that were stored without this key.
    ema_steps: PositiveInt | None = None
    val_every_steps: PositiveInt | Literal["auto"]  # validation_interval replaces 'auto'
    val_tokens: PositiveInt | None
    device: Literal["auto", "cpu", "cuda", "mps"]
    devices: PositiveInt | Literal["auto"]  # placed() replaces 'auto'
    num_nodes: PositiveInt | Literal["auto"]  # placed() replaces 'auto'
    strategy: Literal["auto", "ddp", "fsdp2"]
    checkpoint_activations: bool
    timeout: Annotated[float, Field(gt=0, le=LONGEST_TIMEOUT)]
    requeue: bool
    precision: Literal["auto", "fp32", "bf16", "bf16_stream"]
    compile: bool | Literal["auto"]
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] | None

    @model_validator(mode="after")
    def _check_global_batch(self) -> Self:
        if self.devices == "auto" or self.num_nodes == "auto":
            return self
        if self.batch_size == "auto":
            sequences_per_rank(self.global_batch_size, self.n_ranks)
        else:
            micro_steps(self.global_batch_size, self.batch_size, self.n_ranks)
        return self

    def placed(self, world: World) -> "TrainerSettings":
        """Return the settings with numbers for devices and num_nodes. The world provides the numbers for 'auto'.

        Raises UserError if the numbers differ from those of the launcher, or if num_nodes is above 1 without a
        launcher, or if the global batch cannot be divided evenly into devices and micro-steps.
        """
        if world.tasks_without_srun > 1 and self.devices == "auto":
            raise UserError(
                f"this Slurm job has {world.tasks_without_srun} tasks, but gptmini runs without srun; write "
                "srun gptmini train, or set trainer.devices=N to use one machine"
            )

        placed = replace(
            self,
            devices=world.devices if self.devices == "auto" else self.devices,
            num_nodes=world.nodes if self.num_nodes == "auto" else self.num_nodes,
        )
        asked = f"trainer.devices={placed.devices} and trainer.num_nodes={placed.num_nodes}"
        if world.launcher is None and placed.num_nodes != 1:
            raise UserError(
                f"trainer.num_nodes above 1 requires torchrun or srun, got {asked}; see docs/scaling.md"
            )
        here = (world.devices, world.nodes)
        is_other = (placed.devices, placed.num_nodes) != here or placed.n_ranks != world.size
        if world.launcher is not None and is_other:
            raise UserError(
                f"{world.launcher} started {world.size} ranks, {world.devices} on this machine, but the settings are "
                f"{asked}; leave out both keys, and start as many ranks on every machine"
            )
        return placed

    @property
    def max_seconds(self) -> float | None:
        """The value of max_time in seconds; None for no limit."""
        return None if self.max_time is None else seconds_of(self.max_time)

    @property
    def devices_here(self) -> int:
        """The value of devices as a number. Use this only with settings that placed() returned."""
        assert isinstance(self.devices, int)
        return self.devices

    @property
    def n_ranks(self) -> int:
        """The number of processes on all machines. Each process has one device.

        Use this only with settings that placed() returned.
        """
        assert isinstance(self.num_nodes, int)
        return self.devices_here * self.num_nodes

    @property
    def micro_batch_size(self) -> int:
        """The value of batch_size as a number.

        Use this only with the settings of a module, because assemble() replaces 'auto' in these settings.
        """
        assert isinstance(self.batch_size, int)
        return self.batch_size

    @property
    def n_micro_steps(self) -> int:
        """The number of micro-steps per optimizer step on each device."""
        return micro_steps(self.global_batch_size, self.micro_batch_size, self.n_ranks)

    @property
    def validation_interval(self) -> int:
        """The value of val_every_steps as a number."""
        if isinstance(self.val_every_steps, int):
            return self.val_every_steps
        if self.max_steps > (MIN_VALIDATIONS - 1) * VAL_STEPS:
            return VAL_STEPS
        return max(1, self.max_steps // MIN_VALIDATIONS)

    def validation_due(self, step: int) -> bool:
        """Return whether a validation runs after optimizer step number `step`."""
        return step % self.validation_interval == 0 or step == self.max_steps


def micro_steps(global_batch_size: int, batch_size: int, n_ranks: int) -> int:
    """Return the number of micro-steps per optimizer step on each rank: global_batch_size / (batch_size * n_ranks).

    Raises UserError if the result is not a whole number.
    """
    share = sequences_per_rank(global_batch_size, n_ranks)
    if share % batch_size:
        got = f"{global_batch_size}, {batch_size} and {n_ranks}"
        fitting = next(size for size in divisors(share) if size < batch_size)
        raise UserError(
            "trainer.global_batch_size must be a multiple of trainer.batch_size times the number of devices, "
            f"got {got}; set trainer.batch_size={fitting} or auto"
        )
    return share // batch_size


def sequences_per_rank(global_batch_size: int, n_ranks: int) -> int:
    """Return the number of sequences of a global batch that each device gets: global_batch_size / n_ranks.

    Raises UserError if the result is not a whole number.
    """
    if global_batch_size % n_ranks:
        fewer = next(number for number in divisors(global_batch_size) if number < n_ranks)
        more = n_ranks * (global_batch_size // n_ranks + 1)
        raise UserError(
            "trainer.global_batch_size must be a multiple of the number of devices, "
            f"got {global_batch_size} and {n_ranks}; "
            f"use {fewer} devices or trainer.global_batch_size={more}"
        )
    return global_batch_size // n_ranks


def divisors(number: int) -> list[int]:
    """Return all divisors of a positive whole number, largest first."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)}, reverse=True)
