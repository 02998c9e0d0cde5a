"""Run `gptmini train` from a clone: python scripts/train.py."""

from gptmini.__main__ import main

if __name__ == "__main__":
    main("train")
