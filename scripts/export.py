"""Run `gptmini export` from a clone: python scripts/export.py."""

from gptmini.__main__ import main

if __name__ == "__main__":
    main("export")
