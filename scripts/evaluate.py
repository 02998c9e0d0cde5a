"""Run `gptmini evaluate` from a clone: python scripts/evaluate.py."""

from gptmini.__main__ import main

if __name__ == "__main__":
    main("evaluate")
