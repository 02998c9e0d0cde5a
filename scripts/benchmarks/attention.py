"""Time and peak memory of each rung of the attention ladder, forward and backward, beside torch.nn.MultiheadAttention.

Each module runs in processes of its own, in turns with the others. Its megabytes are what all passes added to the peak
of the process.
"""

import argparse
import json
import resource
import statistics
import sys
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from gptmini.attention import causal_mask, teaching
from gptmini.hardware import clock

from .harness import Table, in_turns, output_of, positive

MEGABYTE = 1024  # in kilobytes, which ru_maxrss counts on Linux
# Modules with one head, then those with all.
SINGLE = ("SelfAttention", "LinearSelfAttention", "CausalAttention", "CrossAttention")
MULTIPLE = (
    "SelfAttentionWrapper",
    "MultiHeadAttentionWrapper",
    "MultiHeadAttention",
    "SeparateWidthAttention",
    "torch.nn.MultiheadAttention",
    "CausalMultiHeadAttention",
)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = partial(parser.add_argument, type=positive)
    add("--batch-size", default=8, help="sequences (default: %(default)s)")
    add("--length", default=1024, help="tokens of a sequence (default: %(default)s)")
    add("--width", default=768, help="width of the model, d_model (default: %(default)s)")
    add("--heads", default=12, help="attention heads (default: %(default)s)")
    add("--steps", default=2, help="passes timed in each process (default: %(default)s)")
    # For the processes that this command starts: the module to measure.
    parser.add_argument("--module", help=argparse.SUPPRESS)


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Measure all modules in turns, or in this process the one that --module names."""
    if arguments.module:
        print(json.dumps(measure_here(arguments)))
        return

    kinds = {name: partial(in_own_process, name) for name in (*SINGLE, *MULTIPLE)}
    found = in_turns(arguments.turns, kinds)
    for name, each in found.items():
        heads = "1 head" if name in SINGLE else f"{arguments.heads} heads"
        table.add_median(f"{name}, {heads}: seconds", [seconds for seconds, _ in each])
        table.add_median(f"{name}, {heads}: megabytes", [megabytes for _, megabytes in each])


def in_own_process(name: str) -> list[float]:
    """Seconds and megabytes of a module, in a process of its own."""
    # The process imports what this one has imported, so that the peak that it inherits from this one is below its own.
    command = [sys.executable, *sys.argv, "--module", name]
    return json.loads(output_of(command, cwd=Path.cwd()))


def measure_here(arguments: argparse.Namespace) -> list[float]:
    """Run a module forward and backward in this process.

    Returns the median seconds of a pass, and the megabytes that all passes added to the peak of the process.
    """
    module = module_of(arguments)
    shape = (arguments.batch_size, arguments.length, arguments.width)  # (B, T, C)
    x = torch.randn(*shape, requires_grad=True)
    gradient = torch.randn(*shape)
    # The libraries take memory at their first use, which is not the module's: have them take it before the count.
    nn.Linear(8, 8)(torch.randn(8, 8)).sum().backward()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(arguments.steps + 1):
        module.zero_grad()
        start = clock("cpu")
        output_for(arguments.module, module, x).backward(gradient)
        seconds.append(clock("cpu") - start)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return [statistics.median(seconds[1:]), (after - before) / MEGABYTE]  # the first pass warms up


def module_of(arguments: argparse.Namespace) -> nn.Module:
    """The module that --module names, at the sizes of the command line."""
    d_model = arguments.width
    n_heads = arguments.heads
    length = arguments.length
    d_head = d_model // n_heads
    makers = {
        "SelfAttention": (d_model, d_model),
        "LinearSelfAttention": (d_model, d_model),
        "CausalAttention": (d_model, d_model, length, 0.0),
        "CrossAttention": (d_model, d_model, d_model),
        "SelfAttentionWrapper": (d_model, d_head, d_head, n_heads),
        "MultiHeadAttentionWrapper": (d_model, d_head, length, 0.0, n_heads),
        "MultiHeadAttention": (d_model, d_model, length, 0.0, n_heads),
        "SeparateWidthAttention": (n_heads, d_model, d_head, d_head),
    }
    if arguments.module == "torch.nn.MultiheadAttention":
        return nn.MultiheadAttention(d_model, n_heads, batch_first=True)
    if arguments.module == "CausalMultiHeadAttention":
        return teaching.CausalMultiHeadAttention(d_model, n_heads, bias=True)
    return getattr(teaching, arguments.module)(*makers[arguments.module])


def output_for(name: str, module: nn.Module, x: Tensor) -> Tensor:
    """What a module gives for inputs x (B, T, C), which are its queries, keys and values."""
    if name == "torch.nn.MultiheadAttention":
        # (T, T); torch marks what may not be attended to.
        hidden = ~causal_mask(x.size(1), x.size(1))
        context, _ = module(x, x, x, attn_mask=hidden, is_causal=True, need_weights=False)
        return context
    if name == "SeparateWidthAttention":
        return module(x, x, x)
    if name == "CrossAttention":
        return module(x, x)
    return module(x)
