"""The command `gptmini train`, from a clone: python scripts/train.py."""

from gptmini.commands.train import main

if __name__ == "__main__":
    main()
