"""The command `gptmini evaluate`, from a clone: python scripts/evaluate.py."""

from gptmini.commands.evaluate import main

if __name__ == "__main__":
    main()
