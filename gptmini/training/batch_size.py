"""How many sequences a micro-step takes, where trainer.batch_size is auto."""

import copy
import gc
import os
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from gptmini.checks import UserError
from gptmini.model import GPT, rounded_training_loss, training_loss
from gptmini.training.settings import share_of

CPU_TOKENS = 8192  # of a micro-step; at 124 M parameters these take 8.3 GB, about what a laptop can spare
USED = 0.9  # share of a GPU's free memory that the trial may fill: the rest is for fragments and for libraries
SECONDS = 20.0  # that the trials may take
MOMENTS = 2  # numbers that AdamW keeps of each weight; Muon keeps one
VARIABLE = "GPTMINI_BATCH_SIZE"  # tells the further processes of a run what the first one found


def choose_batch_size(
    model: GPT, *, global_batch_size: int, devices: int, device: str, precision: str, compile: bool
) -> int:
    """Sequences of a micro-step on each device: a divisor of the global batch's share.

    On a CUDA GPU it is the largest that fits into memory, found by trying. Elsewhere it is the largest with at most
    CPU_TOKENS tokens: more at once make a CPU no faster, only its memory fuller.

    Raises UserError: the devices cannot share the global batch evenly.
    """
    sizes = divisors(share_of(global_batch_size, devices))
    context_length = model.config.context_length
    if device != "cuda":
        return next(size for size in sizes if size * context_length <= CPU_TOKENS or size == 1)

    rank = int(os.environ.get("LOCAL_RANK", "0"))
    if rank > 0 and VARIABLE in os.environ:
        return int(os.environ[VARIABLE])

    gpu = torch.device("cuda", rank)
    trial = _Trial(model, gpu, precision=precision, compile=compile, n_copies=MOMENTS + (devices > 1))
    try:
        free, _ = torch.cuda.mem_get_info(gpu)
        budget = int(USED * (free + torch.cuda.memory_reserved(gpu)))
        found = largest_fitting(sizes, trial.peak, budget, seconds=SECONDS)
    finally:
        trial.give_back()
    os.environ[VARIABLE] = str(found)
    return found


def largest_fitting(
    sizes: Sequence[int], peak: Callable[[int], int], budget: int, *, seconds: float, clock=time.monotonic
) -> int:
    """The largest of descending sizes, the last of them 1, whose peak memory is at most the budget; 1 if none is.

    Memory grows evenly with the size, so two small trials say which sizes are worth a trial; the one that is returned
    was tried, unless the seconds were over. peak(size) raises torch.OutOfMemoryError where memory runs out.
    """
    start = clock()
    try:
        one = peak(1)
        each = max(1, peak(2) - one)  # bytes that each further sequence takes
    except RuntimeError as error:
        if not ran_out(error):
            raise
        return 1

    for size in sizes:
        expected = one + each * (size - 1)
        if expected > budget:
            continue
        if clock() - start > seconds:
            if expected <= budget / 2:
                return size  # not tried, but half of the memory is a wide margin
            continue
        try:
            if peak(size) <= budget:
                return size
        except RuntimeError as error:
            if not ran_out(error):
                raise
    return 1


def ran_out(error: RuntimeError) -> bool:
    """Whether an error says that a GPU's memory did not suffice: torch's own, or one of a library that it calls."""
    return isinstance(error, torch.OutOfMemoryError) or "_ALLOC_FAILED" in str(error)


def check_equal_on_all_ranks(batch_size: int, device: torch.device) -> None:
    """Raise UserError unless every rank cuts its batches into micro-steps of the same size."""
    extremes = torch.tensor((batch_size, -batch_size), dtype=torch.float32, device=device)
    torch.distributed.all_reduce(extremes, op=torch.distributed.ReduceOp.MAX)
    most, least = int(extremes[0]), -int(extremes[1])
    if least != most:
        raise UserError(
            f"trainer.batch_size=auto found {least} on one device and {most} on another; give trainer.batch_size"
        )


def divisors(number: int) -> list[int]:
    """All divisors of a whole number, largest first."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)}, reverse=True)


class _Trial:
    """Eager forward and backward passes on a GPU, with memory set aside for what else a training step keeps there."""

    def __init__(self, model: GPT, gpu: torch.device, *, precision: str, compile: bool, n_copies: int) -> None:
        """Copy the model to the GPU.

        n_copies is how many times the size of all weights is set aside, beside weights and gradients themselves: once
        for each of the optimizer's moments, and once for the buckets in which several GPUs exchange gradients.
        """
        self.gpu = gpu
        self.compile = compile
        self.precision = precision
        self.model = copy.deepcopy(model).to(gpu).train()
        weights = sum(parameter.numel() * parameter.element_size() for parameter in self.model.parameters())
        self.kept = [torch.empty(n_copies * weights, dtype=torch.uint8, device=gpu)]

    def peak(self, batch_size: int) -> int:
        """Bytes at the peak of two micro-steps: measured, plus an estimate of its logits for compiled code."""
        config = self.model.config
        tokens = torch.zeros(batch_size, config.context_length, dtype=torch.int64, device=self.gpu)
        torch.cuda.reset_peak_memory_stats(self.gpu)
        for _ in range(2):  # the second finds the gradients of the first
            self._loss(tokens).backward()
        peak = torch.cuda.max_memory_allocated(self.gpu)
        self.model.zero_grad()
        if not self.compile:
            return peak

        # Compiled code holds all logits, their gradient, and once more in float32; the trial held pieces of them.
        width = 4 if self.precision == "fp32" else 2
        return peak + tokens.numel() * config.padded_vocab_size * (2 * width + 4)

    def _loss(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.precision == "bf16_stream":
            return rounded_training_loss(self.model, torch.bfloat16)(tokens, tokens)
        with torch.autocast(self.gpu.type, torch.bfloat16, enabled=self.precision == "bf16"):
            return training_loss(self.model, tokens, tokens)

    def give_back(self) -> None:
        """Leave the GPU as it was."""
        self.model = nn.Identity()
        self.kept.clear()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.gpu)
