"""The worked example of multi-head attention, printed step by step: python -m gptmini.attention [--text TEXT]."""

import argparse
import signal

import torch
from torch import Tensor, nn

from gptmini.attention import functional

# The seed, the sizes and the inputs are those of the notebooks that the project grew from.
SEED = 123
D_MODEL = 6
N_HEADS = 2
EXAMPLE = {
    "The": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "cat": [6.0, 5.0, 4.0, 3.0, 2.0, 1.0],
    "sleeps": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
}
SHADES = " ░▒▓█"  # of weights from 0 to 0.2, from 0.2 to 0.4, and so on to 1


def example_projections() -> dict[str, nn.Linear]:
    """Draw the notebook's query, key and value projections."""
    torch.manual_seed(SEED)
    # The notebook had drawn six (2, 3) matrices from its seeded generator before the projections.
    for _ in range(6):
        nn.Linear(3, 2, bias=False)
    return {name: nn.Linear(D_MODEL, D_MODEL) for name in ("queries", "keys", "values")}


def embed(words: list[str]) -> Tensor:
    """Draw a random vector for each different word, and return the words' vectors, (T, D_MODEL)."""
    kinds = sorted(set(words))
    ids = torch.tensor([kinds.index(word) for word in words])  # (T,)
    torch.manual_seed(SEED)
    embedding = nn.Embedding(len(kinds), D_MODEL)
    return embedding(ids)  # (T, D_MODEL)


def show(step: str, why: str, **tensors: Tensor) -> None:
    """Print a step, and each tensor under its name and shape."""
    print(f"\n{step}\n  {why}")
    for name, tensor in tensors.items():
        shape = " x ".join(map(str, tensor.shape))
        print(f"  {name:8} ({shape})")

        # torch prints "tensor(" before the first row, and indents the other rows by as many spaces.
        numbers = str(torch.round(tensor, decimals=4))
        numbers = numbers.removeprefix("tensor(").removesuffix(")")
        indent = " " * len("tensor(")
        for row in numbers.splitlines():
            if row:
                print(f"      {row.removeprefix(indent)}")


def show_weights(words: list[str], weights: Tensor) -> None:
    """Print (H, T, T) weights as a table for each head, with a darker shade for a larger weight."""
    width = max(6, *(len(word) for word in words))
    for head, table in enumerate(weights.tolist(), start=1):
        columns = "".join(f"{word:>{width + 2}}" for word in words)
        print(f"\n  head {head:<{width - 3}}{columns}")

        for word, row in zip(words, table, strict=True):
            line = f"  {word:<{width + 2}}"
            for weight in row:
                shade = SHADES[min(4, int(5 * weight))]
                cell = f"{shade} {weight:.2f}"
                line += f"{cell:>{width + 2}}"
            print(line)


def read_words() -> tuple[list[str], Tensor]:
    """Read the command line; return the words to attend over and their vectors, (T, D_MODEL)."""
    parser = argparse.ArgumentParser(
        prog="python -m gptmini.attention",
        description="Multi-head attention, step by step.",
    )
    parser.error = lambda message: parser.exit(2, f"error: {message}\n")
    parser.add_argument(
        "--text",
        help="words to attend over (default: The cat sleeps, with the notebook's numbers)",
    )
    text = parser.parse_args().text
    if text is None:
        return list(EXAMPLE), torch.tensor(list(EXAMPLE.values()))

    words = text.replace(",", "").split()
    if not words:
        parser.error(f"--text must hold a word, got {text!r}")
    return words, embed(words)


@torch.no_grad()
def main() -> None:
    """Walk through the steps of multi-head attention."""
    words, x = read_words()  # x: (T, H D)
    n_tokens = len(words)
    d_head = D_MODEL // N_HEADS
    torch.set_printoptions(precision=4, sci_mode=False, linewidth=100)

    show(
        "1. Inputs",
        f"{n_tokens} tokens, {D_MODEL} numbers each: {' '.join(words)}",
        x=x,
    )

    projected = {}
    for name, projection in example_projections().items():
        projected[name] = projection(x)  # (T, H D)
    show(
        "2. Project",
        "What each token asks, what it offers to be found by, and what it gives: "
        "three linear maps of the inputs.",
        **projected,
    )

    heads = {}
    for name, columns in projected.items():
        heads[name] = columns.unflatten(-1, (N_HEADS, d_head)).transpose(0, 1)  # (H, T, D)
    show(
        "3. Split into heads",
        f"The {D_MODEL} columns are {N_HEADS} heads of {d_head}; "
        "heads come first, for each attends on its own.",
        **heads,
    )

    scores = heads["queries"] @ heads["keys"].transpose(-2, -1)  # (H, T, T)
    show(
        "4. Score",
        "Queries times keys: row = the token that asks, column = the token that is asked.",
        scores=scores,
    )

    mask = functional.causal_mask(n_tokens, n_tokens)  # (T, T)
    masked = scores.masked_fill(~mask, -torch.inf)  # (H, T, T)
    show(
        "5. Mask",
        "No token may look at a later one.",
        masked=masked,
    )

    scaled = masked / d_head**0.5  # (H, T, T)
    show(
        "6. Scale",
        f"Divide by the square root of {d_head}, so that wide heads do not saturate.",
        scaled=scaled,
    )

    weights = functional.attention_weights(heads["queries"], heads["keys"], mask=mask)  # (H, T, T)
    show(
        "7. Softmax",
        "Each row becomes shares of 1.",
        weights=weights,
    )
    show_weights(words, weights)

    context = weights @ heads["values"]  # (H, T, D)
    show(
        "8. Mix",
        "Weights times values: what each token takes from those it looked at.",
        context=context,
    )

    combined = context.transpose(0, 1).flatten(-2)  # (T, H D)
    show(
        "9. Combine",
        "The heads side by side again: one vector a token.",
        combined=combined,
    )


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        # A reader such as head closes the pipe early; the program then ends without a traceback.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
