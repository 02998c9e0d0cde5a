"""Run `gptmini tokens` from a clone: python scripts/tokens.py."""

from gptmini.__main__ import main

if __name__ == "__main__":
    main("tokens")
