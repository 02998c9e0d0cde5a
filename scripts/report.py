"""Run `gptmini report` from a clone: python scripts/report.py."""

from gptmini.__main__ import main

if __name__ == "__main__":
    main("report")
