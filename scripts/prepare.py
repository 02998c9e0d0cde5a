"""The command `gptmini prepare`, from a clone: python scripts/prepare.py."""

from gptmini.commands.prepare import main

if __name__ == "__main__":
    main()
