"""Choose the number of sequences per micro-step for trainer.batch_size=auto."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from gptmini.model import GPT, training_loss
from gptmini.system.errors import ran_out_of_memory
from gptmini.system.hardware import Hardware, give_back_memory
from gptmini.training.devices.recomputing import recompute_activations
from gptmini.training.trainer_settings import (
    TrainerSettings,
    divisors,
    sequences_per_rank,
)

# Maximum number of tokens in a micro-step on a CPU. With 8192 tokens, a model with 124 M parameters needs 8.3 GB of
# memory. This is about as much memory as a laptop can spare.
CPU_TOKENS = 8192
# Fraction of the free memory of a GPU that a micro-step may use. Fragmentation and libraries need the rest.
USABLE_SHARE = 0.9


def choose_batch_size(model: GPT, trainer: TrainerSettings, hardware: Hardware) -> int:
    """Return the number of sequences per device and micro-step. Choose it if trainer.batch_size is 'auto'.

    The result divides the sequences of the global batch that each device gets. On a CUDA GPU, this function runs
    micro-steps of a copy of the model to find the largest divisor that fits into memory. On other devices, the result
    is the largest divisor that gives micro-steps of at most CPU_TOKENS tokens. Larger micro-steps are not faster on a
    CPU and need more memory.

    Raises UserError if global_batch_size is not a multiple of the number of devices.
    """
    if trainer.batch_size != "auto":
        return trainer.batch_size
    sizes = divisors(sequences_per_rank(trainer.global_batch_size, trainer.n_ranks))
    if hardware.device != "cuda":
        context_length = model.config.context_length
        return next((size for size in sizes if size * context_length <= CPU_TOKENS), 1)

    # The first process of a run chooses the number for all processes. It uses the first GPU of its machine.
    gpu = torch.device("cuda", 0)
    trial = copy.deepcopy(model).to(gpu).train()
    if trainer.checkpoint_activations:
        recompute_activations(trial)
    # In addition to each weight and its gradient, training stores the two moments of AdamW. Muon stores only one
    # moment. An average of the weights is one more copy. With several GPUs, training also stores the buckets that the
    # GPUs use to exchange gradients.
    n_copies = 2 if trainer.n_ranks == 1 else 3
    n_copies += trainer.ema_steps is not None
    copies = [torch.empty_like(weight) for weight in trial.parameters() for _ in range(n_copies)]

    # The micro-steps can also use memory that torch has already reserved.
    free, _ = torch.cuda.mem_get_info(gpu)
    budget = int(USABLE_SHARE * (free + torch.cuda.memory_reserved(gpu)))
    try:
        peak = partial(peak_bytes, trial, precision=hardware.precision, compile=hardware.compile)
        return largest_fitting(sizes, peak, budget)
    finally:
        del trial, copies, peak
        give_back_memory(gpu.type)


def largest_fitting(sizes: Sequence[int], peak: Callable[[int], float], budget: int) -> int:
    """Return the largest batch size whose peak memory, in bytes, is within the budget. Return 1 if no size fits.

    Memory grows linearly with the batch size. So the measured peaks of the sizes 1 and 2 give an estimate for larger
    sizes: estimate = peak(1) + (size - 1) * (peak(2) - peak(1)). The peak of the returned size is measured, too. The
    sizes are in descending order and end with 1.
    """
    if sizes[0] == 1:
        return 1
    of_one = peak(1)
    of_each = peak(2) - of_one
    for size in sizes:
        estimate = of_one + (size - 1) * of_each
        if estimate <= budget and peak(size) <= budget:
            return size
    return 1


def peak_bytes(model: GPT, batch_size: int, *, precision: str, compile: bool) -> float:
    """Return the peak memory of training micro-steps in bytes, or infinity if the GPU runs out of memory.

    The micro-steps run without compilation. If compile is true, add an estimate for compiled code.
    """
    gpu = model.embedding.weight.device
    tokens = torch.zeros(batch_size, model.config.context_length, dtype=torch.int64, device=gpu)
    dtype = torch.bfloat16 if precision == "bf16_stream" else None
    autocast = torch.autocast(gpu.type, torch.bfloat16, enabled=precision == "bf16")

    torch.cuda.reset_peak_memory_stats(gpu)
    try:
        # As in training, the second micro-step accumulates into existing gradients.
        for _ in range(2):
            with autocast:
                loss = training_loss(model, tokens, tokens, dtype=dtype)
            loss.backward()
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        return math.inf
    finally:
        model.zero_grad()

    peak = torch.cuda.max_memory_allocated(gpu)
    if not compile:
        return peak

    # Compiled code stores all logits, the gradient of all logits, and a float32 copy of all logits. The micro-steps
    # above store only chunks of the logits.
    n_logits = tokens.numel() * model.config.padded_vocab_size
    bytes_per_number = 4 if precision == "fp32" else 2
    return peak + n_logits * (2 * bytes_per_number + 4)
