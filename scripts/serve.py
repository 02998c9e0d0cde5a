"""Run `gptmini serve` from a clone: python scripts/serve.py."""

from gptmini.__main__ import main

if __name__ == "__main__":
    main("serve")
