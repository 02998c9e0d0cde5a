"""The settings of a training run: how long, in batches of what size, and on which devices."""

import math
from dataclasses import dataclass

from gptmini.checks import UserError, number, shown, whole

MOST_THREADS = 1024  # torch starts as many threads as it is told, until the system refuses
# Most sequences in a step. With at most as many steps, the numbers of all sequences of a run fit into 64 bits.
LARGEST_BATCH = 2**31


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
    devices: int  # number of devices to train on; on the CPU, number of processes
    precision: str  # auto, fp32, bf16 or bf16_stream
    compile: bool | str  # auto, True or False
    threads: int | None  # CPU threads; None for torch's own choice

    def __post_init__(self) -> None:
        """Check types and ranges."""
        for name in ("max_steps", "max_bad_steps", "val_every_steps", "devices"):
            whole(f"trainer.{name}", getattr(self, name))
        whole("trainer.global_batch_size", self.global_batch_size, most=LARGEST_BATCH)
        whole("trainer.val_tokens", self.val_tokens, null="all")
        whole("trainer.threads", self.threads, most=MOST_THREADS, null="torch's own choice")
        number("trainer.gradient_clip", self.gradient_clip, above=0, null="no limit")

        if self.batch_size == "auto":
            share_of(self.global_batch_size, self.devices)
            return

        if type(self.batch_size) is not int or self.batch_size < 1:
            raise UserError(
                "trainer.batch_size must be a whole number of at least 1, or auto, "
                f"got {shown(self.batch_size)}"
            )
        micro_steps(self.global_batch_size, self.batch_size, self.devices)

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
            "trainer.global_batch_size must be a multiple of trainer.batch_size times "
            f"trainer.devices, got {got}; trainer.batch_size={fitting} fits, and auto finds one"
        )
    return share // batch_size


def share_of(global_batch_size: int, devices: int) -> int:
    """Return the sequences that each device takes of the global batch of a step: global_batch_size / devices.

    Raises UserError: that is not a whole number.
    """
    if global_batch_size % devices:
        fewer = next(number for number in divisors(global_batch_size) if number < devices)
        more = devices * (global_batch_size // devices + 1)
        raise UserError(
            "trainer.global_batch_size must be a multiple of trainer.devices, "
            f"got {global_batch_size} and {devices}; "
            f"trainer.devices={fewer} or trainer.global_batch_size={more} fits"
        )
    return global_batch_size // devices


def divisors(number: int) -> list[int]:
    """Return all divisors of a positive whole number, largest first."""
    found = set()
    for small in range(1, math.isqrt(number) + 1):
        if number % small == 0:
            found.add(small)
            found.add(number // small)
    return sorted(found, reverse=True)
