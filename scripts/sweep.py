"""Run `gptmini sweep` from a clone: python scripts/sweep.py."""

from gptmini.__main__ import main

if __name__ == "__main__":
    main("sweep")
