"""Train, watch and sample a GPT from any text on one machine.

The names of this package load when they are first used, so that `import gptmini` itself loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from gptmini.commands.train import TrainingResult
    from gptmini.model import GPT
    from gptmini.tokenizer import Tokenizer

__version__ = "0.2.0"
_HOMES = {
    "CausalMultiHeadAttention": "gptmini.attention",
    "GPT": "gptmini.model",
    "GPTConfig": "gptmini.model",
    "UserError": "gptmini.checks",
    "evaluate": "gptmini.evaluation",
    "generate_stream": "gptmini.generation",
    "prepare": "gptmini.data",
}
__all__ = ["__version__", "load", "train", *_HOMES]


def load(path: "str | Path") -> "tuple[GPT, Tokenizer]":
    """Model and tokenizer of a run folder (its best checkpoint), of a checkpoint file, or of an exported folder.

    Model and tokenizer are ready to sample on the CPU. A folder of runs, as runs/NAME, means the newest run in it. An
    exported folder is one of a Hugging Face model, as gptmini export writes it.
    Raises UserError: nothing there, not a checkpoint, damaged, or holding pickled code.
    """
    from pathlib import Path

    from gptmini.checks import UserError

    if (Path(path) / "config.json").is_file():
        from gptmini.interop import read_folder

        return read_folder(Path(path))

    from gptmini.model.checkpoint import build_model, read_checkpoint
    from gptmini.run_folder import find_checkpoint
    from gptmini.tokenizer import from_dict

    checkpoint = read_checkpoint(find_checkpoint(path))
    model = build_model(checkpoint)
    tokenizer = from_dict(checkpoint["gptmini"].get("tokenizer", {}))
    n_vocab = tokenizer.n_vocab
    vocab_size = model.config.vocab_size
    if n_vocab != vocab_size:
        raise UserError(
            f"{path}: the tokenizer's {n_vocab} ids must equal the model's vocab_size={vocab_size}"
        )
    return model, tokenizer


def train(*overrides: str) -> "TrainingResult":
    """Train as the command `gptmini train OVERRIDES` does, and return its folder, its best evaluation and its steps.

    Raises UserError: a mistake, in the words of the command.
    """
    from gptmini.commands.from_python import train_from_python

    return train_from_python(overrides)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
