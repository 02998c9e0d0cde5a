"""Run `gptmini import` from a clone: python scripts/import.py."""

from gptmini.__main__ import main

if __name__ == "__main__":
    main("import")
