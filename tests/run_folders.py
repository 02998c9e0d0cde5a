"""Read run folders below the working folder, and write checkpoints without training."""

from pathlib import Path

import torch
import yaml

from gptmini.checkpoint.file import header, write_checkpoint
from sizes import TALKATIVE
from toys import wide_gpt


def newest(folder=Path()):
    """Return the folder of the newest run below a folder."""
    return (folder / "runs" / "latest" / "config.yaml").resolve().parent


def last(folder, name="last"):
    """Return the content of a run's last checkpoint, or of the checkpoint with this name."""
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)


def config_of(folder):
    """Return the configuration stored in a run folder."""
    return yaml.safe_load((folder / "config.yaml").read_text())


def save_model(path, tokenizer, **sizes):
    """Write a checkpoint of an untrained model that draws all tokens, and return its path."""
    model = wide_gpt(TALKATIVE | {"vocab_size": tokenizer.n_vocab} | sizes)
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    write_checkpoint(
        {"gptmini": header(model.config, tokenizer.to_dict()), "state_dict": state}, path
    )
    return path
