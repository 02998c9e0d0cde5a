"""Read run folders below the working folder."""

from pathlib import Path

import torch
import yaml


def newest(folder=Path()):
    """Return the folder of the newest run below a folder."""
    return (folder / "runs" / "latest" / "config.yaml").resolve().parent


def last(folder, name="last"):
    """Return the content of a run's last checkpoint, or of the checkpoint with this name."""
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)


def config_of(folder):
    """Return the configuration stored in a run folder."""
    return yaml.safe_load((folder / "config.yaml").read_text())
