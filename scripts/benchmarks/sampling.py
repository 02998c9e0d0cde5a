"""Tokens a second when sampling, beside Hugging Face's generate and nanoGPT's, in turns on the same machine.

Weights are random, of the sizes named; all draw with temperature 0.8 from the 50 most probable tokens. Printed too: the
share of what reading the weights once a step allows, and the seconds from a command to its first token.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from gptmini.checks import UserError
from gptmini.commands.errors import Parser
from gptmini.data import TokenStore
from gptmini.data.batches import gather
from gptmini.generation import Decoder, Rules, store_by_column
from gptmini.hardware import DTYPES, choose_device, choose_dtype, clock
from gptmini.interop.hugging_face import to_hugging_face
from gptmini.model import GPT, GPTConfig, new_gpt
from gptmini.model.checkpoint import build_model, find_checkpoint, header, read_checkpoint, write_checkpoint
from gptmini.model.step import DecodingStep
from gptmini.tokenizer import CharTokenizer

CLASSIC = {"norm": "layernorm", "position": "learned", "mlp": "gelu", "bias": True, "tie_embeddings": True}
SIZES = {
    "char": {"vocab_size": 65, "context_length": 512, "d_model": 128, "n_layers": 4, "n_heads": 4},
    "gpt2": {"vocab_size": 50257, "context_length": 1024, "d_model": 768, "n_layers": 12, "n_heads": 12},
}
PROMPT_LENGTH = 8
WINDOWS = 64  # that perplexity is measured on
RULES = {"temperature": 0.8, "top_k": 50}
SUMS = 2  # between two looks at the clock, so that a GPU's start of a sum does not count
READ = 2**27  # numbers in the tensor whose sum gives the bandwidth, 512 MB: no cache holds it


def bandwidth(device: str) -> float:
    """Bytes a second at which a large tensor is read and summed: the best of ten passes."""
    numbers = torch.ones(READ, device=device)
    seconds = []
    for _ in range(10):
        start = clock(device)
        for _ in range(SUMS):
            numbers.sum()
        seconds.append((clock(device) - start) / SUMS)
    return numbers.numel() * numbers.element_size() / min(seconds)


def ours(model: GPT, batch_size: int, n_tokens: int, *, compile: bool, int8: bool) -> Callable[[], None]:
    """What draws n_tokens for each row with the cache."""
    prompts = [[1 + i for i in range(PROMPT_LENGTH)]] * batch_size

    def run() -> None:
        rules = Rules(max_new_tokens=n_tokens, **RULES)
        decoder = Decoder(
            model,
            prompts,
            rules,
            streams=range(batch_size),
            batch_size=batch_size,
            compile=compile,
            int8=int8,
        )
        for _ in range(n_tokens):
            decoder.draw()

    return run


def hugging_face(model: GPT, batch_size: int, n_tokens: int, device: str) -> Callable[[], None] | None:
    """The same by transformers' GPT2LMHeadModel with the same weights; None if transformers is not installed."""
    try:
        import transformers
    except ImportError:
        return None

    transformers.logging.set_verbosity_error()
    config, state = to_hugging_face(model)
    kind = config.pop("model_type")
    peer = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config, bos_token_id=None, eos_token_id=None)).eval()
    peer.load_state_dict(state)
    peer.to(device=device, dtype=model.embedding.weight.dtype)
    prompt = torch.arange(1, 1 + PROMPT_LENGTH, device=device).expand(batch_size, -1)
    options = {"max_new_tokens": n_tokens, "do_sample": True, "pad_token_id": 0, **RULES}
    if device == "cuda":
        options["cache_implementation"] = "static"  # and so compiled

    def run() -> None:
        drawn = peer.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        if drawn.size(1) != PROMPT_LENGTH + n_tokens:
            raise ValueError(f"{kind} drew {drawn.size(1) - PROMPT_LENGTH} tokens of {n_tokens}")

    return run


def nanogpt(folder: Path, model: GPT, batch_size: int, n_tokens: int, device: str) -> Callable[[], None]:
    """The same by nanoGPT's GPT.generate, of the same sizes."""
    sys.path.insert(0, str(folder))
    try:
        from model import GPT as Theirs
        from model import GPTConfig as TheirConfig
    except ImportError:
        raise UserError(f"{folder} must be a checkout of nanoGPT, with its model.py") from None

    config = model.config
    theirs = TheirConfig(
        block_size=config.context_length,
        vocab_size=config.vocab_size,
        n_layer=config.n_layers,
        n_head=config.n_heads,
        n_embd=config.d_model,
        dropout=0.0,
        bias=True,
    )
    peer = Theirs(theirs).eval().to(device=device, dtype=model.embedding.weight.dtype)
    prompt = torch.arange(1, 1 + PROMPT_LENGTH, device=device).expand(batch_size, -1)
    return lambda: peer.generate(prompt, n_tokens, **RULES)


def first_token() -> float:
    """Seconds from starting sample.py on a character model to the first character after the prompt."""
    tokenizer = CharTokenizer("".join(map(chr, range(33, 98))), end_of_text=False)
    model = new_gpt(GPTConfig(**SIZES["char"], **CLASSIC, init="gpt2"), seed=0)
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "char.ckpt"
        write_checkpoint({"gptmini": header(model.config, tokenizer.to_dict()), "state_dict": state}, path)
        script = Path(__file__).resolve().parent.parent / "sample.py"
        command = [sys.executable, str(script), str(path), "--prompt", "ABC", "--max-new-tokens", "20"]
        start = clock("cpu")
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            if len(process.stdout.read(4)) < 4:
                raise ValueError(f"{' '.join(command)} printed nothing")
            return clock("cpu") - start


def perplexities(run: str) -> str:
    """Perplexity of a run on the first windows of its held-out tokens, decoded one by one, without and with int8."""
    checkpoint = read_checkpoint(find_checkpoint(run))
    tokens = TokenStore(Path(checkpoint["gptmini"]["data"]["folder"])).tokens("val")
    model = store_by_column(build_model(checkpoint))
    length = model.config.context_length
    n_windows = min(WINDOWS, (len(tokens) - 1) // length)
    inputs, targets = gather(tokens, length * np.arange(n_windows), length)  # (B, T) each

    figures = []
    for int8 in (False, True):
        nats = 0.0
        with torch.inference_mode():
            step = DecodingStep(model, model.new_cache(n_windows), int8=int8)
            for column, target in zip(inputs.T.contiguous(), targets.T.contiguous(), strict=True):
                nats += cross_entropy(step(column), target, reduction="sum").item()
        figures.append(math.exp(nats / inputs.numel()))
    exact, rounded = figures
    return (
        f"perplexity of {run} on {inputs.numel():,} tokens {exact:.4f}, int8 {rounded:.4f}: {rounded / exact - 1:+.2%}"
    )


def main() -> None:
    """Measure every size at every batch size, ours and each peer in turns; print a table."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES, help="(default: all)")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8], help="(default: 1 8)")
    parser.add_argument("--new-tokens", type=int, default=256, help="drawn in a row (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="runs of each (default: %(default)s)")
    parser.add_argument("--run", help="a run whose perplexity is measured without and with int8, and nothing else")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT to measure too")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", choices=("auto", *DTYPES), help="int8: ours alone, on a CPU")
    parser.add_argument("--compile", action="store_true", help="compile our step")
    parser.add_argument("--threads", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, help="a file to write the medians to, a row for each size and batch size")
    arguments = parser.parse_args()
    if min(*arguments.batch_sizes, arguments.new_tokens, arguments.turns, arguments.threads) < 1:
        parser.error("--batch-sizes, --new-tokens, --turns and --threads must be at least 1")

    torch.set_num_threads(arguments.threads)
    if arguments.run is not None:
        print(perplexities(arguments.run))
        return

    device = choose_device(arguments.device)
    dtype = choose_dtype(arguments.dtype, device) or torch.float32
    named = "ours int8" if arguments.dtype == "int8" else str(dtype).removeprefix("torch.")
    print(f"{arguments.new_tokens} tokens after {PROMPT_LENGTH}, {device}, {named}")
    rows = []
    for size in arguments.sizes:
        model = new_gpt(GPTConfig(**SIZES[size], **CLASSIC, init="gpt2"), seed=0).eval()
        store_by_column(model.to(device=device, dtype=dtype))
        for batch_size in arguments.batch_sizes:
            rows.append(measure(model, size, batch_size, device, arguments))
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(rows, indent=1))
    if device == "cpu":
        print(f"first token {statistics.median(first_token() for _ in range(arguments.turns)):.2f} s after the command")


def measure(model: GPT, size: str, batch_size: int, device: str, arguments: argparse.Namespace) -> dict:
    """Print one size at one batch size; returns the medians: tokens a second of each, our share of the bandwidth."""
    n_tokens = arguments.new_tokens
    int8 = arguments.dtype == "int8"
    runs = {"ours": ours(model, batch_size, n_tokens, compile=arguments.compile, int8=int8)}
    peer = hugging_face(model, batch_size, n_tokens, device)
    if peer is not None:
        runs["Hugging Face"] = peer
    if arguments.nanogpt is not None:
        runs["nanoGPT"] = nanogpt(arguments.nanogpt, model, batch_size, n_tokens, device)

    speeds: dict[str, list[float]] = {name: [] for name in runs}
    limits = []
    for turn in range(arguments.turns + 1):  # the first warms up
        read = [*model.blocks.parameters(), model.unembedding_weight]
        bytes_read = sum(w.numel() * (1 if int8 else w.element_size()) for w in read)
        limits.append(bandwidth(device) / bytes_read * batch_size)
        for name, run in runs.items():
            start = clock(device)
            run()
            seconds = clock(device) - start
            if turn:
                speeds[name].append(batch_size * n_tokens / seconds)

    medians = ", ".join(f"{name} {statistics.median(seen):,.0f} tokens/s" for name, seen in speeds.items())
    line = f"{size}, batch {batch_size}: {medians}"
    for name, seen in speeds.items():
        if name != "ours":
            ratios = [mine / theirs for mine, theirs in zip(speeds["ours"], seen, strict=True)]
            line += f"; {statistics.median(ratios):.2f} times {name} ({min(ratios):.2f} to {max(ratios):.2f})"
    shares = [mine / limit for mine, limit in zip(speeds["ours"], limits[1:], strict=True)]
    if size == "gpt2" and batch_size == 1:
        line += f"; {statistics.median(shares):.0%} of the {statistics.median(limits[1:]):.1f} that memory allows"
    print(line, flush=True)

    medians = {name: statistics.median(seen) for name, seen in speeds.items()}
    return {"size": size, "batch_size": batch_size, "share_of_bandwidth": statistics.median(shares), **medians}


if __name__ == "__main__":
    main()
