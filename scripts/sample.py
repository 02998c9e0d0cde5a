"""Continue a prompt with a trained model: python scripts/sample.py RUN [options]."""

import argparse
import sys
from pathlib import Path

from command_line import Parser, one_line_errors


def parse() -> argparse.Namespace:
    """Read the command line; argparse refuses what does not fit."""
    parser = Parser(description="Continue a prompt with a trained model.")
    parser.add_argument("run", help="run folder (its best checkpoint) or checkpoint file, as in runs/latest")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", default="", help="text to continue; - reads it from stdin (default: none)")
    source.add_argument("--prompt-file", type=Path, help="file with the text to continue")
    parser.add_argument("--num-samples", type=int, default=1, help="samples to draw (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=200, help="length of a sample (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 is greedy (default: %(default)s)")
    parser.add_argument("--top-k", type=int, help="draw from so many most probable tokens (default: all)")
    parser.add_argument("--top-p", type=float, help="draw from the smallest set this probable (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same samples (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: %(default)s)")
    return parser.parse_args()


def read_prompt(arguments: argparse.Namespace) -> str:
    """Text of --prompt, of --prompt-file, or of stdin without its last line break."""
    from gptmini.data.corpus import decode_text

    if arguments.prompt_file is not None:
        return decode_text(arguments.prompt_file.read_bytes(), str(arguments.prompt_file))
    if arguments.prompt == "-":
        return decode_text(sys.stdin.buffer.read(), "stdin").removesuffix("\n")
    return arguments.prompt


def main() -> None:
    """Load, sample, and stream each sample to stdout as it is drawn."""
    arguments = parse()
    if arguments.num_samples < 1:
        raise ValueError(f"--num-samples must be at least 1, got {arguments.num_samples}")
    prompt = read_prompt(arguments)

    import torch
    from hardware import choose_device

    import gptmini
    from gptmini.generation import TextStream, generate_stream, prompt_ids

    model, tokenizer = gptmini.load(arguments.run)
    model.to(choose_device(arguments.device))
    ids = torch.tensor([prompt_ids(tokenizer, prompt)])  # (1, T)
    for sample in range(arguments.num_samples):
        if arguments.num_samples > 1:
            print(f"{'' if sample == 0 else chr(10)}--- sample {sample + 1}")
        tokens = generate_stream(
            model,
            ids,
            max_new_tokens=arguments.max_new_tokens,
            temperature=arguments.temperature,
            top_k=arguments.top_k,
            top_p=arguments.top_p,
            seed=arguments.seed,
            first_sample=sample,
            end_of_text=tokenizer.end_of_text,
        )
        text = TextStream(tokenizer)
        print(prompt, end="", flush=True)
        for token in tokens:
            if token.item() != tokenizer.end_of_text:
                print(text.push(token.item()), end="", flush=True)
        print(text.finish(), flush=True)


if __name__ == "__main__":
    with one_line_errors():
        main()
