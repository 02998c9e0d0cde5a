"""The command `gptmini sample`, from a clone: python scripts/sample.py."""

from gptmini.commands.sample import main

if __name__ == "__main__":
    main()
