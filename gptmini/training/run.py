"""One run: its settings, its folder, and the Trainer that carries it out."""

import datetime
import os
from dataclasses import dataclass
from pathlib import Path

import lightning as L
from lightning.pytorch.loggers.logger import Logger

from gptmini.training.checkpointing import CheckedCheckpointIO
from gptmini.training.datamodule import micro_steps
from gptmini.training.hardware import PRECISIONS, Hardware


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """How long, how large and on what to train; the trainer group of the configuration.

    Attributes:
        max_steps: optimizer steps.
        global_batch_size: sequences per optimizer step, over all devices and micro-steps.
        batch_size: sequences per device per micro-step.
        gradient_clip: largest norm of the whole gradient; None for no limit.
        val_every_steps: optimizer steps between validations; one more follows the last step.
        val_tokens: validate on so many tokens of the split at most; None for all of them.
        device: auto, cpu, cuda or mps.
        devices: how many of them.
        precision: auto, fp32 or bf16.
        compile: auto, True or False.
        threads: CPU threads; None for torch's own choice.

    Raises:
        ValueError: a value of the wrong type or out of range.
    """

    max_steps: int
    global_batch_size: int
    batch_size: int
    gradient_clip: float | None
    val_every_steps: int
    val_tokens: int | None
    device: str
    devices: int
    precision: str
    compile: bool | str
    threads: int | None

    def __post_init__(self) -> None:
        """Check types and ranges."""
        for name in ("max_steps", "global_batch_size", "batch_size", "val_every_steps", "devices"):
            self._check_count(name)
        for name in ("val_tokens", "threads"):
            if getattr(self, name) is not None:
                self._check_count(name)
        clip = self.gradient_clip
        if clip is not None and (type(clip) not in (int, float) or not 0 < clip < float("inf")):
            raise ValueError(f"trainer.gradient_clip must be a number above 0, or null for none, got {clip!r}")
        micro_steps(self.global_batch_size, self.batch_size, self.devices)

    def _check_count(self, name: str) -> None:
        value = getattr(self, name)
        if type(value) is not int or value < 1:
            raise ValueError(f"trainer.{name} must be a whole number above 0, got {value!r}")


def check_run_name(name: str) -> None:
    """Raise ValueError unless a run may be called so: a plain folder name."""
    if type(name) is not str or name in ("", ".", "..", "latest") or set(name) & set('/\\:*?"<>|\n'):
        raise ValueError(f"name must be a plain folder name other than latest, got name={name!r}")


def new_run_folder(root: str | Path, name: str) -> Path:
    """Make root/name/<time>, which nothing else has, and let root/latest lead to it.

    latest/ is a folder of links to what a person or a script opens. It has none to the events: TensorBoard follows
    links, and would list the run twice.
    """
    root = Path(root)
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder, attempt = root / name / stamp, 1
    while True:
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:  # another run began in this second
            attempt += 1
            folder = root / name / f"{stamp}_{attempt}"
    latest = root / "latest"
    latest.mkdir(exist_ok=True)
    for item in ("config.yaml", "train.log", "checkpoints"):
        temporary = latest / f".{item}.{os.getpid()}"
        temporary.symlink_to(Path("..", name, folder.name, item))
        temporary.replace(latest / item)
    return folder


def build_trainer(
    settings: TrainerSettings, hardware: Hardware, folder: Path, *, callbacks: list[L.Callback], loggers: list[Logger]
) -> L.Trainer:
    """Lightning's Trainer, counting in optimizer steps and leaving bar, checkpoints and data order to us."""
    n_micro_steps = micro_steps(settings.global_batch_size, settings.batch_size, settings.devices)
    return L.Trainer(
        accelerator="gpu" if hardware.device == "cuda" else hardware.device,
        devices=settings.devices,
        precision=PRECISIONS[hardware.precision],
        max_steps=settings.max_steps,
        max_epochs=-1,
        accumulate_grad_batches=n_micro_steps,
        val_check_interval=settings.val_every_steps * n_micro_steps,  # Lightning counts micro-steps here
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=loggers,
        callbacks=callbacks,
        plugins=[CheckedCheckpointIO()],
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
    )
