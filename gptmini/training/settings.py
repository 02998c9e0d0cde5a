"""How long, how large and on what to train."""

from dataclasses import dataclass

from gptmini.checks import UserError, number, shown, whole

MOST_THREADS = 1024  # torch starts as many as it is told, until the system refuses
LARGEST_BATCH = 2**31  # sequences; with as many steps their numbers still fit into 64 bits


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """The configuration's trainer group; UserError for a wrong type or range.

    max_time is checked where it is read, in stopping.seconds_of.
    """

    max_steps: int  # optimizer steps
    max_time: float | str | None  # stop after so many seconds, or [[DD:]HH:]MM:SS, of this process; None for no limit
    max_bad_steps: int  # stop after so many steps in a row whose loss or gradient is not finite
    global_batch_size: int  # sequences per optimizer step, over all devices and micro-steps
    batch_size: int | str  # sequences per device per micro-step; auto: what fits, see batch_size.py
    gradient_clip: float | None  # largest norm of the whole gradient; None for no limit
    val_every_steps: int  # optimizer steps between validations; one more follows the last step
    val_tokens: int | None  # validate on so many tokens of the split at most; None for all of them
    device: str  # auto, cpu, cuda or mps
    devices: int  # how many of them
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
        else:
            if type(self.batch_size) is not int or self.batch_size < 1:
                got = shown(self.batch_size)
                raise UserError(f"trainer.batch_size must be a whole number of at least 1, or auto, got {got}")
            micro_steps(self.global_batch_size, self.batch_size, self.devices)

    def validation_due(self, step: int) -> bool:
        """Whether a validation follows this many steps."""
        return step % self.val_every_steps == 0 or step == self.max_steps


def micro_steps(global_batch_size: int, batch_size: int, n_ranks: int) -> int:
    """Micro-steps in one optimizer step on each rank; UserError unless the global batch divides evenly."""
    if global_batch_size % (batch_size * n_ranks):
        got = f"{global_batch_size}, {batch_size} and {n_ranks}"
        raise UserError(
            f"trainer.global_batch_size must be a multiple of trainer.batch_size times devices, got {got}; "
            "trainer.batch_size=auto finds one that fits"
        )
    return global_batch_size // (batch_size * n_ranks)


def share_of(global_batch_size: int, devices: int) -> int:
    """Sequences of each optimizer step for each device; UserError unless they divide evenly."""
    if global_batch_size % devices:
        raise UserError(
            f"trainer.global_batch_size must be a multiple of trainer.devices, got {global_batch_size} and {devices}"
        )
    return global_batch_size // devices
