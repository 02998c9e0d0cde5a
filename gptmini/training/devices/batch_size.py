"""How many sequences a micro-step takes when trainer.batch_size is auto."""

import copy
import gc
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from gptmini.model import GPT, training_loss
from gptmini.training.devices.recomputing import recompute_activations
from gptmini.training.trainer_settings import divisors, share_of

# Most tokens in a micro-step on a CPU. A model of 124 M parameters takes 8.3 GB with 8192 tokens, about what a laptop
# can spare.
CPU_TOKENS = 8192
# Share of a GPU's free memory that a micro-step may fill. The rest is for fragments between tensors and for libraries.
USABLE_SHARE = 0.9


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
        context_length = model.config.context_length
        return next((size for size in sizes if size * context_length <= CPU_TOKENS), 1)

    # The first process of a run chooses for all, and the first GPU of its machine is its own.
    gpu = torch.device("cuda", 0)
    tried = copy.deepcopy(model).to(gpu).train()
    if recompute:
        recompute_activations(tried)
    # What training keeps for each weight beside itself and its gradient: the two moments of AdamW (Muon has one), and
    # on several GPUs a place in the buckets in which they exchange gradients.
    n_copies = 2 if n_ranks == 1 else 3
    kept = [torch.empty_like(weight) for weight in tried.parameters() for _ in range(n_copies)]

    # Memory that torch has reserved is open to the trials, like memory that is free.
    free, _ = torch.cuda.mem_get_info(gpu)
    budget = int(USABLE_SHARE * (free + torch.cuda.memory_reserved(gpu)))
    try:
        peak = partial(peak_bytes, tried, precision=precision, compile=compile)
        return largest_fitting(sizes, peak, budget)
    finally:
        del tried, kept, peak
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(gpu)


def largest_fitting(sizes: Sequence[int], peak: Callable[[int], float], budget: int) -> int:
    """Return the largest batch size whose peak memory is at most the budget; 1 if there is none.

    Memory grows evenly with the batch size, so that sizes of 1 and 2 tell which larger ones are worth a trial:
    estimate = peak(1) + (size - 1) * (peak(2) - peak(1)). The size that is returned was tried itself.

    Args:
        sizes: candidates, largest first, the last of them 1.
        peak: a function that returns the peak memory of a size in bytes, infinity where memory runs out.
        budget: bytes that a micro-step may take.
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
    """Return the peak memory of training micro-steps on a model's GPU in bytes; infinity if memory runs out.

    The micro-steps are eager. Where training will be compiled, an estimate of what that adds is included.
    """
    gpu = model.embedding.weight.device
    tokens = torch.zeros(batch_size, model.config.context_length, dtype=torch.int64, device=gpu)
    dtype = torch.bfloat16 if precision == "bf16_stream" else None
    autocast = torch.autocast(gpu.type, torch.bfloat16, enabled=precision == "bf16")

    torch.cuda.reset_peak_memory_stats(gpu)
    try:
        # The second micro-step adds its gradients to those of the first, as in training.
        for _ in range(2):
            with autocast:
                loss = training_loss(model, tokens, tokens, dtype=dtype)
            loss.backward()
    except RuntimeError as error:
        # torch's own error, or that of a library such as cuBLAS.
        if not isinstance(error, torch.OutOfMemoryError) and "_ALLOC_FAILED" not in str(error):
            raise
        return math.inf
    finally:
        model.zero_grad()
    peak = torch.cuda.max_memory_allocated(gpu)
    if not compile:
        return peak

    # Compiled code holds all logits, their gradient, and the logits once more in float32. The trial held pieces.
    n_logits = tokens.numel() * model.config.padded_vocab_size
    bytes_per_number = 4 if precision == "fp32" else 2
    return peak + n_logits * (2 * bytes_per_number + 4)
