"""The command `gptmini report`, from a clone: python scripts/report.py."""

from gptmini.commands.report import main

if __name__ == "__main__":
    main()
