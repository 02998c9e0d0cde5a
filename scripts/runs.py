"""Run `gptmini runs` from a clone: python scripts/runs.py."""

from gptmini.__main__ import main

if __name__ == "__main__":
    main("runs")
