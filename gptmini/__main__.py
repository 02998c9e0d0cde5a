"""The program gptmini, as in python -m gptmini."""

from gptmini.commands import main

if __name__ == "__main__":
    main()
