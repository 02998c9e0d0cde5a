"""Load a model from a run folder and print a sample."""

import argparse

import gptmini

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("run", help="run folder or checkpoint file, such as runs/latest")
parser.add_argument("--prompt", default="", help="text to continue (default: none)")
arguments = parser.parse_args()

try:
    model, tokenizer = gptmini.load(arguments.run)

    print(arguments.prompt, end="")
    for piece in gptmini.generate_stream(
        model,
        tokenizer,
        arguments.prompt,
        max_new_tokens=200,
        temperature=0.8,
        seed=1,
    ):
        print(piece.text, end="", flush=True)
    print()
except gptmini.UserError as error:
    parser.exit(2, f"error: {error}\n")
