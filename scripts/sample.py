"""Run `gptmini sample` from a clone: python scripts/sample.py."""

from gptmini.__main__ import main

if __name__ == "__main__":
    main("sample")
