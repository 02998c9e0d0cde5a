"""How many sequences a micro-step takes when trainer.batch_size is auto."""

import copy
import gc
import time
from collections.abc import Callable, Sequence

import torch

from gptmini.model import GPT, rounded_training_loss, training_loss
from gptmini.training.recomputing import recompute_activations
from gptmini.training.settings import divisors, share_of
from gptmini.user_error import UserError

# Most tokens in a micro-step on a CPU. A model of 124 M parameters takes 8.3 GB with 8192 tokens, about what a laptop
# can spare.
CPU_TOKENS = 8192
# Share of a GPU's free memory that a trial may fill. The rest is for fragments between tensors and for libraries.
USABLE_SHARE = 0.9
# Time after which no further trial is begun, so that a run starts soon whatever its sizes.
TRIAL_SECONDS = 20.0
# Numbers that AdamW keeps for each weight; Muon keeps only one.
ADAMW_MOMENTS = 2


def choose_batch_size(
    model: GPT,
    *,
    global_batch_size: int,
    n_ranks: int,
    device: str,
    precision: str,
    compile: bool,
    recompute: bool = False,
) -> int:
    """Choose how many sequences each device takes in a micro-step: a divisor of its share of the global batch.

    On a CUDA GPU this is the largest divisor that fits into memory, found by trial micro-steps. On another device it is
    the largest with at most CPU_TOKENS tokens: a larger micro-step makes a CPU no faster and takes more memory.

    Args:
        model: the model to train, on the CPU; trials run on a copy of it.
        global_batch_size: sequences per optimizer step, over all devices.
        n_ranks: number of devices that share the global batch, over all machines.
        device: cpu, cuda or mps.
        precision: fp32, bf16 or bf16_stream.
        compile: whether the loss will be compiled, which takes more memory on a GPU.
        recompute: whether activations will be computed again in the backward pass, which takes less memory.

    Raises UserError: global_batch_size is not a multiple of n_ranks.
    """
    sizes = divisors(share_of(global_batch_size, n_ranks))
    if device != "cuda":
        return _largest_for_cpu(sizes, model.config.context_length)

    n_copies = ADAMW_MOMENTS
    if n_ranks > 1:
        n_copies += 1  # the buckets in which GPUs exchange gradients

    # The first process of a run chooses for all, and the first GPU of its machine is its own.
    gpu = torch.device("cuda", 0)
    trial = _Trial(model, gpu, precision=precision, compile=compile, n_copies=n_copies)
    if recompute:
        recompute_activations(trial.model)
    try:
        # Memory that torch has reserved is open to the trials, like memory that is free.
        free, _ = torch.cuda.mem_get_info(gpu)
        budget = int(USABLE_SHARE * (free + torch.cuda.memory_reserved(gpu)))
        found = largest_fitting(sizes, trial.peak, budget, seconds=TRIAL_SECONDS)
    finally:
        trial.give_back()

    return found


def _largest_for_cpu(sizes: Sequence[int], context_length: int) -> int:
    """Return the first of descending sizes with at most CPU_TOKENS tokens; 1 if there is none."""
    for size in sizes:
        if size * context_length <= CPU_TOKENS:
            return size
    return 1


def largest_fitting(
    sizes: Sequence[int],
    peak: Callable[[int], int],
    budget: int,
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Return the largest batch size whose peak memory is at most the budget; 1 if there is none.

    Memory grows evenly with the batch size, so trials of 1 and 2 sequences tell which sizes are worth a trial:
    expected peak = peak(1) + (size - 1) * (peak(2) - peak(1)). The size that is returned was tried itself, unless the
    time was over.

    Args:
        sizes: candidates, largest first, the last of them 1.
        peak: a function that runs a trial of a size and returns its peak memory in bytes; it raises
            torch.OutOfMemoryError where memory runs out.
        budget: bytes that a micro-step may take.
        seconds: after this time no further size is tried, and a size is returned untried if half the budget is enough.
        clock: a function that returns the time in seconds.
    """
    start = clock()
    try:
        bytes_of_one = peak(1)
        bytes_each = max(1, peak(2) - bytes_of_one)  # for each further sequence
    except RuntimeError as error:
        if not ran_out(error):
            raise
        return 1

    for size in sizes:
        expected = bytes_of_one + bytes_each * (size - 1)
        if expected > budget:
            continue

        # Without time for a trial, half the budget is margin enough for an expectation that is wrong.
        time_is_over = clock() - start > seconds
        if time_is_over and expected <= budget / 2:
            return size
        if not time_is_over and _fits(size, peak, budget):
            return size
    return 1


def _fits(size: int, peak: Callable[[int], int], budget: int) -> bool:
    """Try a size: whether memory did not run out and its peak is at most the budget."""
    try:
        return peak(size) <= budget
    except RuntimeError as error:
        if not ran_out(error):
            raise
        return False


def ran_out(error: RuntimeError) -> bool:
    """Whether an error says that a GPU's memory ran out: torch's own error, or that of a library such as cuBLAS."""
    return isinstance(error, torch.OutOfMemoryError) or "_ALLOC_FAILED" in str(error)


def check_equal_on_all_ranks(batch_size: int, device: torch.device) -> None:
    """Raise UserError unless all ranks have the same batch_size; every rank must call this, with its own device."""
    # One all-reduce finds both extremes: the largest of the negative sizes is the negative smallest size.
    extremes = torch.tensor((batch_size, -batch_size), dtype=torch.float32, device=device)
    torch.distributed.all_reduce(extremes, op=torch.distributed.ReduceOp.MAX)
    most = int(extremes[0])
    least = -int(extremes[1])

    if least != most:
        raise UserError(
            f"trainer.batch_size=auto found {least} on one device and {most} on another; "
            "give trainer.batch_size"
        )


class _Trial:
    """Eager forward and backward passes on a GPU, with memory set aside for what else a training step keeps there."""

    def __init__(
        self, model: GPT, gpu: torch.device, *, precision: str, compile: bool, n_copies: int
    ) -> None:
        """Copy the model to the GPU, and set memory aside there.

        n_copies is how many times the size of all weights is set aside, beside the weights and gradients themselves:
        once for each of the optimizer's moments, and once for the buckets in which several GPUs exchange gradients.
        """
        self.gpu = gpu
        self.compile = compile
        self.precision = precision
        self.model = copy.deepcopy(model).to(gpu).train()

        n_bytes = 0
        for parameter in self.model.parameters():
            n_bytes += parameter.numel() * parameter.element_size()
        self.set_aside = [torch.empty(n_copies * n_bytes, dtype=torch.uint8, device=gpu)]

    def peak(self, batch_size: int) -> int:
        """Return the peak memory of training micro-steps, in bytes: measured, plus an estimate for compiled code."""
        config = self.model.config
        tokens = torch.zeros(batch_size, config.context_length, dtype=torch.int64, device=self.gpu)

        # The second micro-step adds its gradients to those of the first, as in training.
        torch.cuda.reset_peak_memory_stats(self.gpu)
        for _ in range(2):
            self._loss(tokens).backward()
        peak = torch.cuda.max_memory_allocated(self.gpu)
        self.model.zero_grad()
        if not self.compile:
            return peak

        # Compiled code holds all logits, their gradient, and the logits once more in float32. The trial held pieces.
        n_logits = tokens.numel() * config.padded_vocab_size
        bytes_per_number = 4 if self.precision == "fp32" else 2
        return peak + n_logits * (2 * bytes_per_number + 4)

    def _loss(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.precision == "bf16_stream":
            return rounded_training_loss(self.model, torch.bfloat16)(tokens, tokens)

        with torch.autocast(self.gpu.type, torch.bfloat16, enabled=self.precision == "bf16"):
            return training_loss(self.model, tokens, tokens)

    def give_back(self) -> None:
        """Free all memory of the trial on the GPU, and forget its peak."""
        del self.model
        self.set_aside.clear()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.gpu)
