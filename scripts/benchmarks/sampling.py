"""Measure tokens per second of sampling, compared with Hugging Face's and nanoGPT's generate on the same machine.

All programs use the same random weights, and sample from the 50 most probable tokens with a temperature of 0.8. The
benchmark also measures which fraction this is of the speed limit set by reading the weights once per step, and the
seconds from the start of the command to the first token.
"""

import argparse
import copy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import torch
from torch import Tensor

from gptmini.checkpoint import header, write_checkpoint
from gptmini.generation import CompiledSession, Request, Rules, Session, pack
from gptmini.interop.hugging_face import to_hugging_face
from gptmini.model import GPT, new_gpt, preset
from gptmini.system.hardware import choose_device, choose_dtype, clock
from gptmini.tokenizer import CharTokenizer

from .fits import fastest
from .harness import GPTMINI, Table, in_turns, positive, ratios
from .nanogpt import add_nanogpt, sizes_of

# The form of the models that nanoGPT can also compute: GPT-2.
CLASSIC = "gpt2"
FORMS = {"char": CLASSIC, "shakespeare": CLASSIC, "gpt2": CLASSIC, "smollm2": "llama"}
SIZES = {
    "char": {
        "vocab_size": 65,
        "context_length": 512,
        "d_model": 128,
        "n_layers": 4,
        "n_heads": 4,
    },
    "shakespeare": {
        "vocab_size": 65,
        "context_length": 512,
        "d_model": 384,
        "n_layers": 6,
        "n_heads": 6,
    },
    "gpt2": {
        "vocab_size": 50257,
        "context_length": 1024,
        "d_model": 768,
        "n_layers": 12,
        "n_heads": 12,
    },
    "smollm2": {
        "vocab_size": 49152,
        "context_length": 2048,
        "d_model": 576,
        "n_layers": 30,
        "n_heads": 9,
        "n_kv_heads": 3,
        "d_ff": 1536,
        "tie_embeddings": True,
    },
}
CALLED = {
    "char": "character model",
    "shakespeare": "10.8 M parameters",
    "gpt2": "GPT-2",
    "smollm2": "SmolLM2-135M",
}
# Goals for gptmini's speed on a CPU, divided by Hugging Face's, by size and batch size.
GOALS = {
    ("gpt2", 1): "at least 1.5",
    ("gpt2", 8): "at least 1.7",
}
PROMPT_LENGTH = 8  # tokens
FIRST_CHARACTER = 0x10000  # of the random models' tokenizers; surrogates come before it
RULES = {"temperature": 0.8, "top_k": 50}
SUMS = 2  # sums per measurement, so that the launch of a GPU kernel does not count
READ = 2**27  # elements of the tensor whose sum gives the bandwidth: 512 MB, larger than any cache


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add = parser.add_argument
    add("--sizes", nargs="+", default=[*SIZES], choices=SIZES, help="model sizes")
    add("--batch-sizes", nargs="+", type=positive, default=[1, 8], help="samples at a time")
    add("--new-tokens", type=positive, default=256, help="tokens per sample")
    add("--device", default="auto", help="auto, cpu, cuda or mps")
    add(
        "--dtype",
        default="auto",
        choices=("auto", "fp32", "bf16", "fp64"),
        help="dtype of the weights",
    )
    add("--compile", action="store_true", help="compile gptmini's decoding step")
    add_nanogpt(parser)


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Measure every size at every batch size and, on a CPU, the seconds to the first token."""
    device = choose_device(arguments.device)
    compare_all(table, arguments, device)
    if device == "cpu":
        seconds = in_turns(arguments.turns, {"first token": first_token})["first token"]
        what = "seconds from the command to the first token of a character model"
        table.add_median(what, seconds, goal="at most 0.8")


def compare_all(table: Table, arguments: argparse.Namespace, device: str) -> None:
    """Measure every size at every batch size, gptmini and each peer in turns."""
    for size in arguments.sizes:
        model = new_model(size)
        dtype = choose_dtype(arguments.dtype, device, model.n_parameters) or torch.float32
        model.to(device=device, dtype=dtype)
        for batch_size in arguments.batch_sizes:
            compare(table, arguments, model, size, batch_size)


def new_model(size: str, **changes: int) -> GPT:
    """Return a model of a size with random weights. Changes replace values of SIZES."""
    config = preset(FORMS[size], **SIZES[size] | changes)
    return new_gpt(config, seed=0).eval()


def compare(
    table: Table, arguments: argparse.Namespace, model: GPT, size: str, batch_size: int
) -> None:
    """Add the rows of one size at one batch size.

    Args:
        table: receives the rows.
        arguments: the command line.
        model: a model of this size, on the device to measure.
        size: a key of SIZES.
        batch_size: samples at a time.
    """
    device = model.embedding.weight.device
    n_tokens = arguments.new_tokens
    # Every prompt has the ids 1, 2, 3, ...
    prompt = torch.arange(1, 1 + PROMPT_LENGTH, device=device)  # (PROMPT_LENGTH,)
    prompt = prompt.expand(batch_size, -1)  # (B, PROMPT_LENGTH)

    runs = {"gptmini": ours(model, prompt, n_tokens, compile=arguments.compile)}
    if arguments.compile:
        runs["gptmini, not compiled"] = ours(model, prompt, n_tokens, compile=False)
    dtype = model.embedding.weight.dtype
    if find_spec("transformers") is not None:
        runs["Hugging Face"] = hugging_face(model, prompt, n_tokens, dtype)
        if dtype != torch.float32:
            runs["Hugging Face in fp32"] = hugging_face(model, prompt, n_tokens, torch.float32)
    if arguments.nanogpt is not None and FORMS[size] == CLASSIC:
        runs["nanoGPT"] = nanogpt(arguments.nanogpt, model, prompt, n_tokens)

    def speed(run: Callable[[], object]) -> float:
        start = clock(device.type)
        run()
        return batch_size * n_tokens / (clock(device.type) - start)

    def limit() -> float:
        """Return the tokens per second if only reading the weights took time."""
        return bandwidth(device.type) / bytes_read_a_step(model) * batch_size

    kinds = {name: partial(speed, run) for name, run in runs.items()}
    in_turns(1, kinds)  # warm-up
    speeds = in_turns(arguments.turns, kinds | {"limit": limit})

    called = f"{CALLED[size]}, {batch_size} sample{'' if batch_size == 1 else 's'}"
    if dtype != torch.float32:
        called += f" in {str(dtype).removeprefix('torch.')}"
    is_cpu = device.type == "cpu"
    for name in runs:
        table.add_median(f"{called}: {name}", speeds[name])
    for name in runs:
        if name != "gptmini":
            figures = ratios(speeds["gptmini"], speeds[name])
            has_goal = is_cpu and name == "Hugging Face"
            goal = GOALS.get((size, batch_size), "") if has_goal else ""
            table.add_median(f"{called}: gptmini divided by {name}", figures, goal=goal)
    table.add_median(
        f"{called}: share of what reading the weights once a token allows, in percent",
        [100 * share for share in ratios(speeds["gptmini"], speeds["limit"])],
        goal="at least 85" if is_cpu and (size, batch_size) == ("gpt2", 1) else "",
    )


def bytes_read_a_step(model: GPT) -> int:
    """Return the bytes of the weights that every step reads: the blocks and the unembedding."""
    weights = (*model.blocks.parameters(), model.unembedding_weight)
    return sum(weight.numel() * weight.element_size() for weight in weights)


def bandwidth(device: str) -> float:
    """Return the bytes per second of reading and summing a large tensor, in the fastest of ten passes."""
    numbers = torch.ones(READ, device=device)

    def add_up() -> None:
        for _ in range(SUMS):
            numbers.sum()

    return SUMS * numbers.numel() * numbers.element_size() / fastest(device, add_up)


def ours(model: GPT, prompt: Tensor, n_tokens: int, *, compile: bool) -> Callable[[], None]:
    """Return a function that draws n_tokens after the prompt (B, T) with gptmini."""
    rules = Rules(max_new_tokens=n_tokens, **RULES)
    # These characters exist for every vocabulary of SIZES.
    characters = map(chr, range(FIRST_CHARACTER, FIRST_CHARACTER + model.config.vocab_size))
    tokenizer = CharTokenizer("".join(characters), end_of_text=False)
    if prompt.device.type == "cpu" and not compile:
        model = pack(copy.deepcopy(model))  # gptmini sample packs, too
    kind = CompiledSession if compile else Session
    session = kind(model, tokenizer, batch_size=len(prompt), capacity=prompt.size(1) + n_tokens)

    def run() -> None:
        for series, ids in enumerate(prompt.tolist()):
            session.add(Request(prompt=ids, rules=rules, series=series))
        for _ in session.pieces():
            pass

    return run


def hugging_face(
    model: GPT, prompt: Tensor, n_tokens: int, dtype: torch.dtype
) -> Callable[[], None]:
    """Return a function that draws after the prompt (B, T) with transformers' model of the same weights."""
    import transformers  # an optional dependency

    transformers.logging.set_verbosity_error()
    config, state = to_hugging_face(model)
    peer = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config)
    )
    peer.load_state_dict(state, strict=not model.config.tie_embeddings)
    peer.eval().to(device=prompt.device, dtype=dtype)

    options = {"max_new_tokens": n_tokens, "do_sample": True, "pad_token_id": 0, **RULES}
    if prompt.device.type == "cuda":
        options["cache_implementation"] = "static"  # transformers compiles a static cache

    def run() -> None:
        drawn = peer.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        assert drawn.size(1) == PROMPT_LENGTH + n_tokens  # no sample has ended early

    return run


def nanogpt(checkout: Path, model: GPT, prompt: Tensor, n_tokens: int) -> Callable[[], Tensor]:
    """Return a function that draws after the prompt (B, T) with nanoGPT's GPT.generate and a model of the same size."""
    # Import model.py under another name, because "model" is too general for sys.path.
    spec = spec_from_file_location("nanogpt_model", checkout / "model.py")
    assert spec is not None
    assert spec.loader is not None
    theirs = module_from_spec(spec)
    sys.modules[spec.name] = theirs  # dataclasses look the module up there
    spec.loader.exec_module(theirs)

    config = theirs.GPTConfig(
        vocab_size=model.config.vocab_size,
        dropout=0.0,
        bias=True,
        **sizes_of(model.config),
    )
    peer = theirs.GPT(config).eval()
    peer.to(device=prompt.device, dtype=model.embedding.weight.dtype)
    return lambda: peer.generate(prompt, n_tokens, **RULES)


def write_character_model(path: Path) -> None:
    """Write a checkpoint of the character model, which knows the characters of a prompt in English."""
    tokenizer = CharTokenizer("".join(map(chr, range(32, 123))), end_of_text=False)
    model = new_model("char", vocab_size=tokenizer.n_vocab)
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    contents = {"gptmini": header(model.config, tokenizer.to_dict()), "state_dict": state}
    write_checkpoint(contents, path)


def first_token() -> float:
    """Return the seconds from the start of gptmini sample to the first character after the prompt."""
    prompt = "ABC"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "char.ckpt"
        write_character_model(path)
        command = [*GPTMINI, "sample", str(path), "--prompt", prompt, "--max-new-tokens", "20"]

        start = clock("cpu")
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert len(process.stdout.read(len(prompt) + 1)) == len(prompt) + 1
            return clock("cpu") - start
