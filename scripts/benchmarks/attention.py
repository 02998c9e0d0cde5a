"""Time and peak memory of each rung of the attention ladder, forward and backward, beside torch.nn.MultiheadAttention.

Each module runs in a process of its own, in turns; a table of medians follows.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gptmini.attention import causal_mask, teaching
from gptmini.commands.errors import Parser
from gptmini.hardware import clock

MEGABYTE = 1024  # ru_maxrss counts kilobytes on Linux


def modules(d_model: int, n_heads: int, length: int) -> dict[str, Callable[[], tuple[nn.Module, Callable]]]:
    """For each name, what makes the module and the call that takes (B, T, C)."""
    d_head = d_model // n_heads

    def self_attending(module: nn.Module) -> tuple[nn.Module, Callable]:
        return module, module

    def torch_attention() -> tuple[nn.Module, Callable]:
        module = nn.MultiheadAttention(d_model, n_heads, batch_first=True)
        mask = ~causal_mask(length, length)
        return module, lambda x: module(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]

    def separate() -> tuple[nn.Module, Callable]:
        module = teaching.SeparateWidthAttention(n_heads, d_model, d_head, d_head)
        return module, lambda x: module(x, x, x)

    def cross() -> tuple[nn.Module, Callable]:
        module = teaching.CrossAttention(d_model, d_model, d_model)
        return module, lambda x: module(x, x)

    return {
        "SelfAttention, 1 head": lambda: self_attending(teaching.SelfAttention(d_model, d_model)),
        "LinearSelfAttention, 1 head": lambda: self_attending(teaching.LinearSelfAttention(d_model, d_model)),
        "SelfAttentionWrapper": lambda: self_attending(teaching.SelfAttentionWrapper(d_model, d_head, d_head, n_heads)),
        "CausalAttention, 1 head": lambda: self_attending(teaching.CausalAttention(d_model, d_model, length, 0.0)),
        "MultiHeadAttentionWrapper": lambda: self_attending(
            teaching.MultiHeadAttentionWrapper(d_model, d_head, length, 0.0, n_heads)
        ),
        "MultiHeadAttention": lambda: self_attending(
            teaching.MultiHeadAttention(d_model, d_model, length, 0.0, n_heads)
        ),
        "SeparateWidthAttention": separate,
        "CrossAttention, 1 head": cross,
        "torch.nn.MultiheadAttention": torch_attention,
        "CausalMultiHeadAttention": lambda: self_attending(
            teaching.CausalMultiHeadAttention(d_model, n_heads, bias=True)
        ),
    }


def measure(make: Callable[[], tuple[nn.Module, Callable]], shape: tuple[int, int, int], steps: int) -> dict:
    """Median seconds of forward and backward, and the megabytes that they added to the process's peak."""
    module, call = make()
    x = torch.randn(*shape, requires_grad=True)
    gradient = torch.randn(*shape)
    nn.Linear(8, 8)(torch.randn(8, 8)).sum().backward()  # what the libraries take at their first use is not ours

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(steps + 1):  # the first warms up
        module.zero_grad()
        start = clock("cpu")
        output: Tensor = call(x)
        output.backward(gradient)
        seconds.append(clock("cpu") - start)
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": statistics.median(seconds[1:]), "megabytes": added / MEGABYTE}


def main() -> None:
    """Measure all in turns, or one in this process when told so by --only."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--length", type=int, default=1024, help="tokens (default: %(default)s)")
    parser.add_argument("--width", type=int, default=768, help="(default: %(default)s)")
    parser.add_argument("--heads", type=int, default=12, help="(default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="processes for each module (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="counted in each process (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if min(arguments.batch_size, arguments.length, arguments.turns, arguments.steps, arguments.threads) < 1:
        parser.error("--batch-size, --length, --turns, --steps and --threads must be at least 1")
    if arguments.heads < 1 or arguments.width < 1 or arguments.width % arguments.heads:
        parser.error(f"--width must be a multiple of --heads, got {arguments.width} and {arguments.heads}")

    torch.set_num_threads(arguments.threads)
    rungs = modules(arguments.width, arguments.heads, arguments.length)
    if arguments.only:
        shape = (arguments.batch_size, arguments.length, arguments.width)
        print(json.dumps(measure(rungs[arguments.only], shape, arguments.steps)))
        return

    results: dict[str, list[dict]] = {name: [] for name in rungs}
    for _ in range(arguments.turns):
        for name, seen in results.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--only", name]
            result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            seen.append(json.loads(result.stdout))

    sizes = f"{arguments.batch_size} x {arguments.length} x {arguments.width}, {arguments.heads} heads"
    print(f"{sizes}, forward and backward")
    print(f"{'module':30} {'time':>9} {'peak memory':>13}")
    for name, seen in results.items():
        seconds = statistics.median(run["seconds"] for run in seen)
        megabytes = statistics.median(run["megabytes"] for run in seen)
        print(f"{name:30} {seconds:7.2f} s {megabytes:10,.0f} MB")


if __name__ == "__main__":
    main()
