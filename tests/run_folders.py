"""What tests read of run folders below the working folder."""

from pathlib import Path

import torch
import yaml


def newest(folder=Path()):
    """Folder of the newest run below a folder."""
    return (folder / "runs" / "latest" / "config.yaml").resolve().parent


def last(folder, name="last"):
    """Content of a run's last checkpoint, or of another one."""
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)


def config_of(folder):
    """The configuration that a run folder keeps."""
    return yaml.safe_load((folder / "config.yaml").read_text())
