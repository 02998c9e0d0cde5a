"""Short fits of the 124 M parameter experiments on synthetic tokens: what the ladder, the peer and the kernels time."""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import lightning as L
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from gptmini.commands.compose import compose
from gptmini.commands.settings import build_settings
from gptmini.commands.train import assemble, prepare_process
from gptmini.data.store import Excerpt, Source
from gptmini.hardware import peak_flops, peak_memory
from gptmini.tokenizer import CharTokenizer
from gptmini.training import GPTModule, Stopping, build_trainer

from .setting import Scale, Setting

# Global batches that the synthetic tokens hold; longer fits see the tokens again.
N_BATCHES = 64


class SyntheticTokens:
    """Stands for a prepared text: ids drawn by Zipf's law, so that there is something to learn.

    Both splits are the same tokens.
    """

    fingerprint = "synthetic"
    folder = Path("synthetic")

    def __init__(self, n_vocab: int, n_tokens: int) -> None:
        """Draw n_tokens ids below n_vocab."""
        # An exponent little above 1: a few ids are common and most are rare, as words are.
        draws = np.random.default_rng(1).zipf(1.2, n_tokens)  # (n_tokens,)
        self._tokens = (draws % n_vocab).astype(np.uint16)  # (n_tokens,)

        # The model's vocabulary is as large as the tokenizer's, so this one has a character for each id.
        characters = "".join(map(chr, range(n_vocab)))
        self.tokenizer_state = CharTokenizer(characters, end_of_text=False).to_dict()

    def n_tokens(self, split: str) -> int:
        """Return the number of tokens of a split."""
        return len(self._tokens)

    @property
    def sources(self) -> list[Source]:
        """Return the tokens as the only source."""
        return [Source(name="", weight=1, n_tokens=len(self._tokens))]

    def excerpts(self, split: str, max_tokens: int | None) -> list[Excerpt]:
        """Return the tokens that an evaluation reads."""
        n_tokens = len(self._tokens) if max_tokens is None else max_tokens
        return [Excerpt(self._tokens, n_tokens, self.tokens_per_byte(split))]

    def check_ids(self, split: str, ids: np.ndarray) -> None:
        """Do nothing: the ids cannot have changed."""

    def tokens(self, split: str) -> np.ndarray:
        """Return the ids of a split, uint16 (n_tokens,)."""
        return self._tokens

    def tokens_per_byte(self, split: str) -> float:
        """Return 1, because the tokens come from no text and have no bytes."""
        return 1.0

    def check_vocabulary(self, n_vocab: int) -> None:
        """Do nothing, because the ids are drawn below the number of the tokenizer's ids."""

    def check_size(self, split: str) -> None:
        """Do nothing, because the tokens are in memory, where no other program cuts them short."""


class StepClock(L.Callback):
    """Notes when each step ends: on a GPU by the GPU's own clock, for which the host need not wait."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.ends: list = []  # CUDA events on a GPU, else seconds

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        module: GPTModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Note the time if this micro-step is the last of its step."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return

        if self.device == "cuda":
            end = torch.cuda.Event(enable_timing=True)
            end.record()
        else:
            end = time.perf_counter()
        self.ends.append(end)

    def seconds(self) -> list[float]:
        """Return the seconds of every step but the first, whose start was not noted."""
        if self.device == "cuda":
            torch.cuda.synchronize()
            return [start.elapsed_time(end) / 1000 for start, end in pairwise(self.ends)]
        return [end - start for start, end in pairwise(self.ends)]


@cache
def experiment(preset: str) -> DictConfig:
    """Return the configuration of experiment=gpt2_124m or modern_124m; data.path is this file, unread."""
    config, _ = compose("train", [f"experiment={preset}_124m", f"data.path={Path(__file__)}"])
    OmegaConf.resolve(config)
    return config


def synthetic_tokens(scale: Scale, context_length: int) -> SyntheticTokens:
    """Return the tokens that every fit of a scale trains on."""
    n_tokens = N_BATCHES * scale.sequences * context_length
    return SyntheticTokens(scale.n_vocab, n_tokens)


def fit(
    setting: Setting,
    preset: str,
    overrides: Sequence[str] = (),
    *,
    adapt: Callable[[GPTModule], None] | None = None,
    callbacks: Sequence[L.Callback] = (),
    steps: int | None = None,
) -> dict:
    """Train a preset at 124 M parameters for some steps, and return the median figures of the steps that are timed.

    Args:
        setting: what all parts share.
        preset: gpt2 or modern.
        overrides: KEY=VALUE each, which prevail over what the benchmark sets itself.
        adapt: changes the module before it is trained.
        callbacks: what else Lightning is to call.
        steps: optimizer steps; those of the scale if None.

    Raises:
        KeyboardInterrupt: a signal ended the fit.
    """
    scale = setting.scale
    config = configured(setting, preset, overrides, steps=steps or scale.steps)
    settings = build_settings(config)
    prepare_process(settings)
    give_back_memory(setting.device)
    store = synthetic_tokens(scale, config.model.context_length)

    begun = time.monotonic()
    module, data = assemble(settings, store, None)
    if adapt is not None:
        adapt(module)

    # The callbacks of a run, which would cost time, are left out.
    step_clock = StepClock(setting.device)
    stopping = Stopping(None, settings.trainer.max_bad_steps)
    trainer = build_trainer(
        module.settings,
        setting.folder,
        device=settings.hardware.device,
        precision=settings.hardware.precision,
        callbacks=[step_clock, stopping, *callbacks],
        loggers=[],
    )
    if stopping.fit_until_stopped(trainer, module, data).reason is not None:
        raise KeyboardInterrupt

    seconds = statistics.median(step_clock.seconds()[scale.first_step - 1 :])
    return figures_of(module, setting.device, seconds, seconds_in_all=time.monotonic() - begun)


def configured(
    setting: Setting, preset: str, overrides: Sequence[str], *, steps: int
) -> DictConfig:
    """Return the configuration of a fit: the experiment's with what the benchmark and the overrides change."""
    own = [
        "schedule.warmup_steps=0",
        f"trainer.max_steps={steps}",
        f"trainer.val_every_steps={steps}",
        "trainer.val_tokens=1",
        f"trainer.device={setting.device}",
        f"trainer.global_batch_size={setting.scale.sequences}",
        *setting.scale.sizes,
    ]
    if setting.dry:
        # On a CPU auto means eager and fp32, but a dry run is to try compilation and bf16.
        own += ["trainer.compile=true", "trainer.precision=bf16"]
    else:
        own += ["trainer.compile=auto", "trainer.precision=auto"]

    # Composing takes half a second and a ladder has 15 rungs, so the experiment is composed once and then changed.
    return OmegaConf.merge(experiment(preset), OmegaConf.from_dotlist([*own, *overrides]))


def figures_of(module: GPTModule, device: str, seconds: float, *, seconds_in_all: float) -> dict:
    """Return what the table says of a fit.

    Args:
        module: the module that was trained.
        device: the device that it was trained on.
        seconds: the median of a step.
        seconds_in_all: of the whole fit, from building the model on.
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
        "seconds_in_all": seconds_in_all,
    }


def give_back_memory(device: str) -> None:
    """Give back the memory of a GPU that earlier fits took, and start counting its peak anew."""
    if device != "cuda":
        return
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
