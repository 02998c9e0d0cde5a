"""Print a worked example of multi-head attention step by step: python -m gptmini.attention [--text TEXT]."""

import argparse

import torch
from torch import Tensor, nn

from gptmini.attention import functional
from gptmini.console.printing import end_if_unread

# Seed, sizes and inputs come from the notebooks that this project started from.
SEED = 123
D_MODEL = 6
N_HEADS = 2
EXAMPLE = {
    "The": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "cat": [6.0, 5.0, 4.0, 3.0, 2.0, 1.0],
    "sleeps": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
}
SHADES = " ░▒▓█"  # one shade for each range of weights: 0 to 0.2, 0.2 to 0.4, ..., 0.8 to 1


def example_projections() -> dict[str, nn.Linear]:
    """Return the query, key and value projections with the notebook's random weights."""
    torch.manual_seed(SEED)
    # The notebook draws six (2, 3) matrices before the projections. Draw these matrices, to get the same numbers.
    for _ in range(6):
        nn.Linear(3, 2, bias=False)
    return {name: nn.Linear(D_MODEL, D_MODEL) for name in ("queries", "keys", "values")}


def embed(words: list[str]) -> Tensor:
    """Return a random vector for each word, (T, D_MODEL). Equal words get equal vectors."""
    vocabulary = sorted(set(words))
    ids = torch.tensor([vocabulary.index(word) for word in words])  # (T,)
    torch.manual_seed(SEED)
    embedding = nn.Embedding(len(vocabulary), D_MODEL)
    return embedding(ids)  # (T, D_MODEL)


def show(step: str, why: str, **tensors: Tensor) -> None:
    """Print the title of a step, its reason, and each tensor with its name and shape."""
    print(f"\n{step}\n  {why}")
    for name, tensor in tensors.items():
        shape = " x ".join(map(str, tensor.shape))
        print(f"  {name:8} ({shape})")

        # torch prints "tensor(" before the first row and indents the other rows by the same width. Remove both.
        numbers = str(torch.round(tensor, decimals=4))
        numbers = numbers.removeprefix("tensor(").removesuffix(")")
        indent = " " * len("tensor(")
        for row in numbers.splitlines():
            if row:
                print(f"      {row.removeprefix(indent)}")


def show_weights(words: list[str], weights: Tensor) -> None:
    """Print weights (H, T, T) as one table per head. A darker shade means a larger weight."""
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
    """Parse the command line. Return the words of the example and the vectors of these words, (T, D_MODEL)."""
    parser = argparse.ArgumentParser(
        prog="python -m gptmini.attention",
        description="Multi-head attention, step by step.",
    )
    parser.error = lambda message: parser.exit(2, f"error: {message}\n")
    parser.add_argument(
        "--text",
        help="words of the example (default: The cat sleeps, with the notebook's vectors)",
    )
    text = parser.parse_args().text
    if text is None:
        return list(EXAMPLE), torch.tensor(list(EXAMPLE.values()))

    words = text.replace(",", "").split()
    if not words:
        parser.error(f"--text must contain a word, got {text!r}")
    return words, embed(words)


@torch.no_grad()
def main() -> None:
    """Print the steps of multi-head attention."""
    words, x = read_words()  # x: (T, H D)
    n_tokens = len(words)
    d_head = D_MODEL // N_HEADS
    torch.set_printoptions(precision=4, sci_mode=False, linewidth=100)

    show(
        "1. Inputs",
        f"{n_tokens} tokens, each a vector of {D_MODEL} numbers: {' '.join(words)}",
        x=x,
    )

    projected = {}
    for name, projection in example_projections().items():
        projected[name] = projection(x)  # (T, H D)
    show(
        "2. Project",
        "Each token gets a query (what it looks for), a key (what it offers) "
        "and a value (what it passes on).",
        **projected,
    )

    heads = {}
    for name, columns in projected.items():
        heads[name] = columns.unflatten(-1, (N_HEADS, d_head)).transpose(0, 1)  # (H, T, D)
    show(
        "3. Split into heads",
        f"Split the {D_MODEL} columns into {N_HEADS} heads of {d_head}. "
        "Each head attends on its own, so the head dimension moves first.",
        **heads,
    )

    scores = heads["queries"] @ heads["keys"].transpose(-2, -1)  # (H, T, T)
    show(
        "4. Score",
        "Multiply queries by keys. Each row is a token that looks. "
        "Each column is a token that it looks at.",
        scores=scores,
    )

    mask = functional.causal_mask(n_tokens, n_tokens)  # (T, T)
    masked = scores.masked_fill(~mask, -torch.inf)  # (H, T, T)
    show(
        "5. Mask",
        "No token may look at a later token. A score of -inf becomes a weight of 0.",
        masked=masked,
    )

    scaled = masked / d_head**0.5  # (H, T, T)
    show(
        "6. Scale",
        f"Divide by the square root of the head width {d_head}, "
        "so that softmax does not saturate in wide heads.",
        scaled=scaled,
    )

    weights = functional.attention_weights(heads["queries"], heads["keys"], mask=mask)  # (H, T, T)
    show(
        "7. Softmax",
        "Turn each row of scores into weights that sum to 1.",
        weights=weights,
    )
    show_weights(words, weights)

    context = weights @ heads["values"]  # (H, T, D)
    show(
        "8. Mix",
        "Multiply weights by values. Each token gets a weighted mean of the values.",
        context=context,
    )

    combined = context.transpose(0, 1).flatten(-2)  # (T, H D)
    show(
        "9. Combine",
        "Put the heads side by side again: one vector per token.",
        combined=combined,
    )


if __name__ == "__main__":
    with end_if_unread():
        main()
