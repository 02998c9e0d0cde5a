"""The version of gptmini. It is stored in checkpoints, run folders and exports."""

__version__ = "0.3.0"
