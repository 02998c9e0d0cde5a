"""One run: its settings, its folder, and the Trainer that carries it out."""

import datetime
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers.logger import Logger

from gptmini.data.store import TokenStore
from gptmini.model import GPT, GPTConfig, new_gpt
from gptmini.tokenizer import from_dict
from gptmini.training.checkpointing import CheckedCheckpointIO
from gptmini.training.datamodule import TokenDataModule, micro_steps
from gptmini.training.hardware import PRECISIONS, Hardware
from gptmini.training.module import GPTModule, check_count

MOST_THREADS = 1024  # torch starts as many as it is told, until the system refuses


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
            check_count(f"trainer.{name}", getattr(self, name))
        for name in ("val_tokens", "threads"):
            if getattr(self, name) is not None:
                check_count(f"trainer.{name}", getattr(self, name))
        if self.threads is not None and self.threads > MOST_THREADS:
            raise ValueError(f"trainer.threads must be at most {MOST_THREADS}, got {self.threads}")
        clip = self.gradient_clip
        if clip is not None and (type(clip) not in (int, float) or not 0 < clip < float("inf")):
            raise ValueError(f"trainer.gradient_clip must be a number above 0, or null for none, got {clip!r}")
        micro_steps(self.global_batch_size, self.batch_size, self.devices)


def assemble(
    store: TokenStore,
    config: GPTConfig,
    settings: TrainerSettings,
    *,
    optimizer: Callable[[GPT], torch.optim.Optimizer],
    schedule: Callable[..., float],
    seed: int,
    compile: bool,
) -> tuple[GPTModule, TokenDataModule]:
    """Put together what a Trainer fits: a new model on the store's tokens, and their batches.

    The schedule is called with the step and max_steps; the seed is that of first weights, batches and dropout.

    Raises:
        ValueError: a seed or an optimizer setting out of range, or a split too short for its windows.
    """
    module = GPTModule(
        new_gpt(config, seed),
        from_dict(store.tokenizer),
        optimizer=optimizer,
        schedule=partial(schedule, max_steps=settings.max_steps),
        max_steps=settings.max_steps,
        gradient_clip=settings.gradient_clip,
        seed=seed,
        tokens_per_byte=store.tokens_per_byte("val"),
        data={"folder": str(store.folder), "fingerprint": store.fingerprint},
        compile=compile,
    )
    data = TokenDataModule(
        store,
        context_length=config.context_length,
        global_batch_size=settings.global_batch_size,
        batch_size=settings.batch_size,
        val_tokens=settings.val_tokens,
        seed=seed,
    )
    return module, data


def check_run_name(name: str) -> None:
    """Raise ValueError unless a run may be called so: a plain folder name."""
    if type(name) is not str or name in ("", ".", "..", "latest") or set(name) & set('/\\:*?"<>|\n'):
        raise ValueError(f"name must be a plain folder name other than latest, got name={name!r}")


def new_run_folder(root: str | Path, name: str) -> Path:
    """Make root/name/<time>, which nothing else has, and let root/latest lead to it.

    latest/ is a folder of links to what a person or a script opens. It has none to the events: TensorBoard follows
    links, and would list the run twice.

    Raises:
        ValueError: root/latest is something else, which is left as it is.
    """
    root = Path(root)
    latest, items = root / "latest", ("config.yaml", "train.log", "checkpoints")
    kept = [latest / item for item in items if (latest / item).exists() and not (latest / item).is_symlink()]
    if latest.is_symlink() or kept or (latest.exists() and not latest.is_dir()):
        raise ValueError(f"{latest} must be absent or a folder of links that an earlier run made; move it away")
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder, attempt = root / name / stamp, 1
    while True:
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:  # another run began in this second
            attempt += 1
            folder = root / name / f"{stamp}_{attempt}"
    latest.mkdir(exist_ok=True)
    for item in items:
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
