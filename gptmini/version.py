"""The version of gptmini, which checkpoints, run folders and exports name."""

__version__ = "0.3.0"
