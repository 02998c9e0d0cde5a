"""Short fits of the 124 M parameter experiments on synthetic tokens, for the ladder, nanoGPT and kernels."""

import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import lightning as L
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from gptmini.configuration.building import build_settings
from gptmini.configuration.compose import compose
from gptmini.data import TokenStore
from gptmini.job.train import prepare_process
from gptmini.system.hardware import give_back_memory, peak_flops, peak_memory
from gptmini.tokenizer import CharTokenizer
from gptmini.training import GPTModule

from ..fits import StepClock, Subject
from ..fits import fit as train
from ..synthetic import write_store
from .setting import Setting

# Number of global batches in the synthetic tokens; longer fits repeat them.
N_BATCHES = 64


@cache
def experiment(preset: str) -> DictConfig:
    """Return the configuration of experiment=gpt2_124m or modern_124m; data.path is this file, but is never read."""
    config, _ = compose("train", [f"experiment={preset}_124m", f"data.path={Path(__file__)}"])
    OmegaConf.resolve(config)
    return config


def synthetic_store(setting: Setting, context_length: int) -> TokenStore:
    """Return the prepared folder for all fits: random ids that follow Zipf's law, which gives something to learn."""
    scale = setting.scale
    folder = setting.folder / "synthetic"
    if not folder.exists():
        n_tokens = N_BATCHES * scale.sequences * context_length
        # With an exponent slightly above 1, a few ids are common and most are rare, as words are.
        draws = np.random.default_rng(1).zipf(1.2, n_tokens)  # (n_tokens,)
        ids = (draws % scale.n_vocab).astype(np.uint16)  # (n_tokens,)
        # The vocabulary of the model must equal the tokenizer's, so create a character for each id.
        characters = "".join(map(chr, range(scale.n_vocab)))
        write_store(folder, ids, n_tokens, CharTokenizer(characters, end_of_text=False))
    return TokenStore(folder)


def fit(
    setting: Setting,
    preset: str,
    overrides: Sequence[str] = (),
    *,
    callbacks: Sequence[L.Callback] = (),
    steps: int | None = None,
) -> dict:
    """Train a preset at 124 M parameters for some steps, and return the median figures of the measured steps.

    Args:
        setting: shared settings.
        preset: gpt2 or modern.
        overrides: KEY=VALUE each; they have priority over the benchmark's own overrides.
        callbacks: additional Lightning callbacks. The callbacks of a run are left out, because they take time.
        steps: optimizer steps; None for those of the scale.
    """
    scale = setting.scale
    config = configured(setting, preset, overrides, steps=steps or scale.steps)
    settings = build_settings(OmegaConf.to_container(config))
    prepare_process(settings)
    give_back_memory(setting.device)
    store = synthetic_store(setting, config.model.context_length)
    subject = Subject(settings=settings, store=store)

    module, data = subject.assemble()
    step_clock = StepClock(setting.device)
    train(subject, setting.folder, callbacks=[step_clock, *callbacks], parts=(module, data))

    seconds = statistics.median(step_clock.seconds()[scale.first_step - 1 :])
    return figures_of(module, setting.device, seconds)


def configured(
    setting: Setting, preset: str, overrides: Sequence[str], *, steps: int
) -> DictConfig:
    """Return the configuration of a fit: the experiment, changed by the benchmark and by the overrides."""
    own = [
        "schedule.warmup_steps=0",
        f"trainer.max_steps={steps}",
        f"trainer.val_every_steps={steps}",
        "trainer.val_tokens=1",
        f"trainer.device={setting.device}",
        f"trainer.global_batch_size={setting.scale.sequences}",
        *setting.scale.sizes,
    ]
    # A fit is so short that auto would not compile it.
    own.append("trainer.compile=true")
    # On a CPU, auto means fp32, but a dry run must test bf16.
    own.append(f"trainer.precision={'bf16' if setting.dry else 'auto'}")

    # Composing takes half a second and a ladder has several rungs. So compose the experiment once and change copies.
    return OmegaConf.merge(experiment(preset), OmegaConf.from_dotlist([*own, *overrides]))


def figures_of(module: GPTModule, device: str, seconds: float) -> dict:
    """Return the figures of a fit for the table.

    Args:
        module: the trained module.
        device: the training device.
        seconds: median seconds per step.
    """
    sequences = module.settings.global_batch_size
    speed = sequences * module.model.config.context_length / seconds  # tokens per second

    peak = peak_flops(torch.device(device), "bf16")
    share_of_peak = 0.0
    if peak is not None:
        share_of_peak = speed * module.model.flops_per_token / peak

    return {
        "tokens_per_second": speed,
        "share_of_peak": share_of_peak,
        "memory_gb": (peak_memory(torch.device(device)) or 0) / 1e9,
        "ms_a_step": 1000 * seconds,
        "sequences": sequences,
        "batch_size": module.settings.batch_size,
        "loss": float(module.step_loss),
    }
