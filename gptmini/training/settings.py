"""How long, how large and on what to train."""

import sys
from dataclasses import dataclass

MOST_THREADS = 1024  # torch starts as many as it is told, until the system refuses


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """The configuration's trainer group; ValueError for a wrong type or range; max_time is for the script to check."""

    max_steps: int  # optimizer steps
    max_time: float | str | None  # stop after so many seconds, or [[DD:]HH:]MM:SS, of this process; None for no limit
    max_bad_steps: int  # stop after so many steps in a row whose loss or gradient is not finite
    global_batch_size: int  # sequences per optimizer step, over all devices and micro-steps
    batch_size: int  # sequences per device per micro-step
    gradient_clip: float | None  # largest norm of the whole gradient; None for no limit
    val_every_steps: int  # optimizer steps between validations; one more follows the last step
    val_tokens: int | None  # validate on so many tokens of the split at most; None for all of them
    device: str  # auto, cpu, cuda or mps
    devices: int  # how many of them
    precision: str  # auto, fp32 or bf16
    compile: bool | str  # auto, True or False
    threads: int | None  # CPU threads; None for torch's own choice

    def __post_init__(self) -> None:
        """Check types and ranges."""
        for name in ("max_steps", "max_bad_steps", "global_batch_size", "batch_size", "val_every_steps", "devices"):
            check_count(f"trainer.{name}", getattr(self, name))
        for name in ("val_tokens", "threads"):
            if getattr(self, name) is not None:
                check_count(f"trainer.{name}", getattr(self, name))
        if self.threads is not None and self.threads > MOST_THREADS:
            raise ValueError(f"trainer.threads must be at most {MOST_THREADS}, got {self.threads}")
        clip = self.gradient_clip
        if clip is not None and (type(clip) not in (int, float) or not 0 < clip <= sys.float_info.max):
            raise ValueError(f"trainer.gradient_clip must be a number above 0, or null for none, got {clip!r}")
        micro_steps(self.global_batch_size, self.batch_size, self.devices)

    def validation_due(self, step: int) -> bool:
        """Whether a validation follows this many steps."""
        return step % self.val_every_steps == 0 or step == self.max_steps


def check_count(name: str, value: int) -> int:
    """Return value, or raise ValueError unless it is a whole number above 0."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be a whole number above 0, got {value!r}")
    return value


def micro_steps(global_batch_size: int, batch_size: int, n_ranks: int) -> int:
    """Micro-steps in one optimizer step on each rank; ValueError unless the global batch divides evenly."""
    if global_batch_size % (batch_size * n_ranks):
        got = f"{global_batch_size}, {batch_size} and {n_ranks}"
        raise ValueError(f"trainer.global_batch_size must be a multiple of trainer.batch_size times devices, got {got}")
    return global_batch_size // (batch_size * n_ranks)
