"""Run `gptmini prepare` from a clone: python scripts/prepare.py."""

from gptmini.__main__ import main

if __name__ == "__main__":
    main("prepare")
