"""Time and peak memory of each rung of the attention ladder, forward and backward, beside torch.nn.MultiheadAttention.

Each module runs in processes of its own, in turns with the others; a table of medians follows.
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

MEGABYTE = 1024  # in kilobytes, which ru_maxrss counts on Linux

# Each maker returns the module, whose parameters get gradients, and a function of inputs (B, T, C).
Maker = Callable[[], tuple[nn.Module, Callable]]


def makers(d_model: int, n_heads: int, length: int) -> dict[str, Maker]:
    """Return for each module of the table a function that makes it.

    Args:
        d_model: the width C.
        n_heads: the number of heads H.
        length: the number of tokens T.
    """
    d_head = d_model // n_heads

    def one_argument(module: nn.Module) -> tuple[nn.Module, Callable]:
        return module, module

    def self_attention() -> tuple[nn.Module, Callable]:
        return one_argument(teaching.SelfAttention(d_model, d_model))

    def linear() -> tuple[nn.Module, Callable]:
        return one_argument(teaching.LinearSelfAttention(d_model, d_model))

    def wrapper() -> tuple[nn.Module, Callable]:
        return one_argument(teaching.SelfAttentionWrapper(d_model, d_head, d_head, n_heads))

    def causal() -> tuple[nn.Module, Callable]:
        return one_argument(teaching.CausalAttention(d_model, d_model, length, 0.0))

    def multi_head_wrapper() -> tuple[nn.Module, Callable]:
        module = teaching.MultiHeadAttentionWrapper(d_model, d_head, length, 0.0, n_heads)
        return one_argument(module)

    def multi_head() -> tuple[nn.Module, Callable]:
        return one_argument(teaching.MultiHeadAttention(d_model, d_model, length, 0.0, n_heads))

    def separate_width() -> tuple[nn.Module, Callable]:
        module = teaching.SeparateWidthAttention(n_heads, d_model, d_head, d_head)
        return module, lambda x: module(x, x, x)

    def cross() -> tuple[nn.Module, Callable]:
        module = teaching.CrossAttention(d_model, d_model, d_model)
        return module, lambda x: module(x, x)

    def torch_multi_head() -> tuple[nn.Module, Callable]:
        module = nn.MultiheadAttention(d_model, n_heads, batch_first=True)
        hidden = ~causal_mask(length, length)  # (T, T); torch marks what may not be attended to

        def call(x: Tensor) -> Tensor:
            context, _ = module(x, x, x, attn_mask=hidden, is_causal=True, need_weights=False)
            return context

        return module, call

    def production() -> tuple[nn.Module, Callable]:
        return one_argument(teaching.CausalMultiHeadAttention(d_model, n_heads, bias=True))

    return {
        "SelfAttention, 1 head": self_attention,
        "LinearSelfAttention, 1 head": linear,
        "SelfAttentionWrapper": wrapper,
        "CausalAttention, 1 head": causal,
        "MultiHeadAttentionWrapper": multi_head_wrapper,
        "MultiHeadAttention": multi_head,
        "SeparateWidthAttention": separate_width,
        "CrossAttention, 1 head": cross,
        "torch.nn.MultiheadAttention": torch_multi_head,
        "CausalMultiHeadAttention": production,
    }


def measure(make: Maker, shape: tuple[int, int, int], steps: int) -> dict:
    """Run a module forward and backward in this process.

    Args:
        make: makes the module.
        shape: of the inputs, (B, T, C).
        steps: how many passes are timed, after one that warms up.

    Returns:
        The median seconds of a pass, and the megabytes that all passes added to the peak of the process.
    """
    module, call = make()
    x = torch.randn(*shape, requires_grad=True)
    gradient = torch.randn(*shape)
    # The libraries take memory at their first use, which is not the module's: have them take it before the count.
    nn.Linear(8, 8)(torch.randn(8, 8)).sum().backward()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(steps + 1):
        module.zero_grad()
        start = clock("cpu")
        output: Tensor = call(x)
        output.backward(gradient)
        seconds.append(clock("cpu") - start)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    return {
        "seconds": statistics.median(seconds[1:]),
        "megabytes": (after - before) / MEGABYTE,
    }


def main() -> None:
    """Measure all modules in turns, or in this process the one that --only names."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    rungs = makers(arguments.width, arguments.heads, arguments.length)
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

    sizes = f"{arguments.batch_size} x {arguments.length} x {arguments.width}"
    print(f"{sizes}, {arguments.heads} heads, forward and backward")
    print(f"{'module':30} {'time':>9} {'peak memory':>13}")
    for name, seen in results.items():
        seconds = statistics.median(run["seconds"] for run in seen)
        megabytes = statistics.median(run["megabytes"] for run in seen)
        print(f"{name:30} {seconds:7.2f} s {megabytes:10,.0f} MB")


def parse_arguments() -> argparse.Namespace:
    """Read and check the command line."""
    parser = Parser(prog="benchmark.py attention", description=__doc__.splitlines()[0])

    def add_number(name: str, default: int, meaning: str) -> None:
        parser.add_argument(
            name,
            type=int,
            default=default,
            help=f"{meaning} (default: %(default)s)",
        )

    add_number("--batch-size", 8, "sequences")
    add_number("--length", 1024, "tokens of a sequence")
    add_number("--width", 768, "width of the model, d_model")
    add_number("--heads", 12, "attention heads")
    add_number("--turns", 3, "processes for each module")
    add_number("--steps", 2, "passes that are timed in each process")
    add_number("--threads", 2, "CPU threads")
    # For the processes that this command starts: the module to measure.
    parser.add_argument("--only", help=argparse.SUPPRESS)

    arguments = parser.parse_args()

    counts = (
        arguments.batch_size,
        arguments.length,
        arguments.turns,
        arguments.steps,
        arguments.threads,
    )
    if min(counts) < 1:
        parser.error("--batch-size, --length, --turns, --steps and --threads must be at least 1")
    width = arguments.width
    heads = arguments.heads
    if heads < 1 or width < 1 or width % heads:
        parser.error(f"--width must be a multiple of --heads, got {width} and {heads}")
    return arguments


if __name__ == "__main__":
    main()
