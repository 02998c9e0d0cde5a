"""Run `gptmini chat` from a clone: python scripts/chat.py."""

from gptmini.__main__ import main

if __name__ == "__main__":
    main("chat")
