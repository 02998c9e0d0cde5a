"""Read nanoGPT's checkpoint, ckpt.pt, as a GPT and its tokenizer, without running any code in the file."""

from pathlib import Path

from torch import Tensor

from gptmini.interop.architectures import is_conv1d
from gptmini.interop.hugging_face import build_gpt, rename_settings
from gptmini.model.config import config_from_file
from gptmini.model.gpt import GPT
from gptmini.tokenizer import CharTokenizer, Tokenizer, gpt2
from gptmini.untrusted import read_pickle, read_tensors
from gptmini.user_error import UserError

COMPILED_PREFIX = "_orig_mod."  # prefix of weight names if a compiled model was saved
MASK = ".attn.bias"  # suffix of a mask that older versions stored with the weights
GPT2_SIZES = (50257, 50304)  # number of GPT-2's ids, and the next multiple of 64


# Our name of each size to nanoGPT's name.
SIZES = {
    "context_length": "block_size",
    "d_model": "n_embd",
    "n_layers": "n_layer",
    "n_heads": "n_head",
    "bias": "bias",
}
# Our settings that are the same in every nanoGPT model.
FIXED = {
    "norm": "layernorm",
    "position": "learned",
    "mlp": "gelu_exact",
    "tie_embeddings": True,
    "init": "gpt2",
}


def read_nanogpt(path: Path, meta: Path | None = None) -> tuple[GPT, Tokenizer]:
    """Return the GPT of a nanoGPT checkpoint and its tokenizer.

    Args:
        path: ckpt.pt.
        meta: the meta.pkl that nanoGPT writes for a character dataset; None for GPT-2's tokenizer.

    Raises UserError if a file is damaged, or not from nanoGPT, or contains more than plain values and tensors.
    """
    checkpoint = read_tensors(path)
    tokenizer = gpt2([]) if meta is None else _characters(meta)
    try:
        arguments = checkpoint["model_args"]
        n_rows = arguments["vocab_size"]
        sizes = {ours: arguments[theirs] for ours, theirs in SIZES.items()}
        config = config_from_file({"vocab_size": tokenizer.n_vocab, **sizes, **FIXED})
        state = _state(checkpoint["model"], n_kept=tokenizer.n_vocab)
    except UserError as error:
        raise UserError(f"{path}, model_args: {rename_settings(str(error), SIZES)}") from None
    except (KeyError, TypeError, AttributeError, IndexError):
        raise UserError(f"{path} must have the entries model and model_args of nanoGPT") from None

    fitting = GPT2_SIZES if meta is None else (tokenizer.n_vocab,)
    if n_rows not in fitting:
        raise UserError(
            f"{path} has {n_rows!r:.80} ids, but its tokenizer has {tokenizer.n_vocab} ids; for a character dataset, "
            "give its meta.pkl with --meta"
        )
    try:
        return build_gpt(config, state, "gpt2").eval(), tokenizer
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _state(weights: dict[str, Tensor], *, n_kept: int) -> dict[str, Tensor]:
    """Convert nanoGPT's weights to Hugging Face's GPT-2. Transpose the matrices of blocks, and keep n_kept ids."""
    state = {}
    for full_name, weight in weights.items():
        name = full_name.removeprefix(COMPILED_PREFIX)
        if name.endswith(MASK):
            continue
        if name in ("transformer.wte.weight", "lm_head.weight"):
            weight = weight[:n_kept]
        state[name] = weight.T if is_conv1d(name, weight.ndim) else weight
    return state


def _characters(meta: Path) -> CharTokenizer:
    """Return the tokenizer of nanoGPT's meta.pkl; raise UserError for any other file."""
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
            f"{meta} must be nanoGPT's meta.pkl of a character dataset ({error})"
        ) from None
