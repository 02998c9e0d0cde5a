"""Read a GPT and its tokenizer from ckpt.pt, the checkpoint of nanoGPT. No code in the file is run."""

from pathlib import Path

from torch import Tensor

from gptmini.interop.hugging_face import build_gpt, transpose_conv1d
from gptmini.model import GPT, config_from_file
from gptmini.system.errors import UserError
from gptmini.system.untrusted import read_pickle
from gptmini.system.untrusted_tensors import read_tensors
from gptmini.tokenizer import CharTokenizer, Tokenizer, gpt2

GPT2_SIZES = (50257, 50304)  # the number of ids of GPT-2, and the next multiple of 64
# Map our name of each size to the name in nanoGPT.
SIZES = {
    "context_length": "block_size",
    "d_model": "n_embd",
    "n_layers": "n_layer",
    "n_heads": "n_head",
    "bias": "bias",
}
# Settings of GPTConfig that are the same for every nanoGPT model.
FIXED = {
    "norm": "layernorm",
    "position": "learned",
    "mlp": "gelu_exact",
    "tie_embeddings": True,
    "init": "gpt2",
}


def read_nanogpt(path: Path, meta: Path | None = None) -> tuple[GPT, Tokenizer]:
    """Return the GPT and the tokenizer of ckpt.pt, the checkpoint of nanoGPT.

    meta is the file meta.pkl that nanoGPT writes for a character dataset, or None for the tokenizer of GPT-2.
    """
    checkpoint = read_tensors(path)
    tokenizer = gpt2([]) if meta is None else _characters(meta)
    try:
        arguments = checkpoint["model_args"]
        n_rows = arguments["vocab_size"]
        sizes = {ours: arguments[theirs] for ours, theirs in SIZES.items()}
        config = config_from_file({"vocab_size": tokenizer.n_vocab, **sizes, **FIXED})
        state = _state(checkpoint["model"], n_vocab=tokenizer.n_vocab)
    except UserError as error:
        raise UserError(f"{path}, model_args: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError):
        raise UserError(f"{path} must have nanoGPT's entries 'model' and 'model_args'") from None

    fitting = GPT2_SIZES if meta is None else (tokenizer.n_vocab,)
    if n_rows not in fitting:
        raise UserError(
            f"the model in {path} has {n_rows!r:.80} ids, but the tokenizer has {tokenizer.n_vocab} ids; for a "
            "character dataset, give its meta.pkl with --meta"
        )
    try:
        return build_gpt(config, state, "gpt2").eval(), tokenizer
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _state(weights: dict[str, Tensor], *, n_vocab: int) -> dict[str, Tensor]:
    """Convert the weights of nanoGPT to the weights of GPT-2 in transformers. Keep only the first n_vocab ids."""
    state = {}
    for full_name, weight in weights.items():
        name = full_name.removeprefix("_orig_mod.")  # the prefix of a compiled model
        if name.endswith(".attn.bias"):  # a mask that older versions of nanoGPT stored
            continue
        if name in ("transformer.wte.weight", "lm_head.weight"):
            weight = weight[:n_vocab]
        state[name] = transpose_conv1d(name, weight)
    return state


def _characters(meta: Path) -> CharTokenizer:
    try:
        values = read_pickle(meta)
        characters = [values["itos"][i] for i in range(len(values["itos"]))]
        # Check the characters before joining them, because a pickle can repeat one long string many times.
        if any(len(character) != 1 for character in characters):
            raise ValueError("each id must stand for one character")
        return CharTokenizer("".join(characters), end_of_text=False)
    except OSError:
        raise
    except Exception as error:  # a pickle may contain anything and cause errors of any class
        raise UserError(
            f"{meta} must be nanoGPT's meta.pkl for a character dataset ({error})"
        ) from None
