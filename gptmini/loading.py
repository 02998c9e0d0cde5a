"""Model and tokenizer from what a user names: a run, a checkpoint, or an exported folder."""

from pathlib import Path

from gptmini.checks import UserError
from gptmini.model.checkpoint import build_model, read_checkpoint
from gptmini.model.gpt import GPT
from gptmini.run_folder import find_checkpoint
from gptmini.tokenizer import Tokenizer, from_dict


def load(path: str | Path) -> tuple[GPT, Tokenizer]:
    """Model and tokenizer of a run folder (its best checkpoint), of a checkpoint file, or of an exported folder.

    Model and tokenizer are ready to sample on the CPU. A folder of runs, as runs/NAME, means the newest run in it. An
    exported folder is one of a Hugging Face model, as gptmini export writes it.
    Raises UserError: nothing there, not a checkpoint, damaged, or holding pickled code.
    """
    if is_exported(path):
        # Imported here, because a run needs none of it.
        from gptmini.interop import read_folder

        return read_folder(Path(path))

    checkpoint = find_checkpoint(path)
    return model_and_tokenizer(read_checkpoint(checkpoint), checkpoint)


def is_exported(path: str | Path) -> bool:
    """Whether a path is a folder of a Hugging Face model."""
    return (Path(path) / "config.json").is_file()


def model_and_tokenizer(contents: dict, path: Path) -> tuple[GPT, Tokenizer]:
    """The model and the tokenizer of a checkpoint that read_checkpoint has read from a path.

    Raises UserError: the weights do not fit the config, or the tokenizer does not fit the model.
    """
    model = build_model(contents)
    tokenizer = from_dict(contents["gptmini"].get("tokenizer", {}))
    n_vocab = tokenizer.n_vocab
    vocab_size = model.config.vocab_size
    if n_vocab != vocab_size:
        raise UserError(
            f"{path}: the tokenizer's {n_vocab} ids must equal the model's vocab_size={vocab_size}"
        )
    return model, tokenizer
