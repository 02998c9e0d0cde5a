"""The worked example of multi-head attention, printed step by step: python -m gptmini.attention [--text TEXT]."""

import argparse
import signal

import torch
from torch import Tensor, nn

from gptmini.attention import functional

SEED = 123  # the notebooks'
D_MODEL, N_HEADS = 6, 2
EXAMPLE = {
    "The": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "cat": [6.0, 5.0, 4.0, 3.0, 2.0, 1.0],
    "sleeps": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
}
SHADES = " ░▒▓█"


def example_projections() -> dict[str, nn.Linear]:
    """The notebook's query, key and value projections: its generator had drawn six (2, 3) matrices before."""
    torch.manual_seed(SEED)
    for _ in range(6):
        nn.Linear(3, 2, bias=False)
    return {name: nn.Linear(D_MODEL, D_MODEL) for name in ("queries", "keys", "values")}


def embed(words: list[str]) -> Tensor:
    """A vector for each word, (T, D_MODEL), the same wherever the word is."""
    kinds = sorted(set(words))
    torch.manual_seed(SEED)
    return nn.Embedding(len(kinds), D_MODEL)(torch.tensor([kinds.index(word) for word in words]))


def show(step: str, why: str, **tensors: Tensor) -> None:
    """Print a step, and each tensor under its name and shape."""
    print(f"\n{step}\n  {why}")
    for name, tensor in tensors.items():
        shape = " x ".join(map(str, tensor.shape))
        rows = str(torch.round(tensor, decimals=4)).removeprefix("tensor(").removesuffix(")").splitlines()
        print(f"  {name:8} ({shape})")
        print("\n".join(f"      {row.removeprefix(7 * ' ')}" for row in rows if row))


def show_weights(words: list[str], weights: Tensor) -> None:
    """Print (H, T, T) weights as tables, darker where a row's word looks more."""
    width = max(6, *(len(word) for word in words))
    for head, table in enumerate(weights.tolist(), start=1):
        print(f"\n  head {head:<{width - 3}}" + "".join(f"{word:>{width + 2}}" for word in words))
        for word, row in zip(words, table, strict=True):
            cells = (f"{SHADES[min(4, int(5 * weight))]} {weight:.2f}" for weight in row)
            print(f"  {word:<{width + 2}}" + "".join(f"{cell:>{width + 2}}" for cell in cells))


@torch.no_grad()
def main() -> None:
    """Walk through the steps."""
    parser = argparse.ArgumentParser(description="Multi-head attention, step by step.")
    parser.add_argument("--text", help="words to attend over (default: The cat sleeps, with the notebook's numbers)")
    text = parser.parse_args().text
    words = list(EXAMPLE) if text is None else text.replace(",", "").split()
    if not words:
        parser.error(f"--text must hold a word, got {text!r}")
    x = torch.tensor(list(EXAMPLE.values())) if text is None else embed(words)
    torch.set_printoptions(precision=4, sci_mode=False, linewidth=100)
    n_tokens, d_head = len(words), D_MODEL // N_HEADS
    show("1. Inputs", f"{n_tokens} tokens, {D_MODEL} numbers each: {' '.join(words)}", x=x)
    why = "What each token asks, what it offers to be found by, and what it gives: three linear maps of the inputs."
    projected = {name: projection(x) for name, projection in example_projections().items()}  # (T, H D) each
    show("2. Project", why, **projected)
    why = f"The {D_MODEL} columns are {N_HEADS} heads of {d_head}; heads come first, for each attends on its own."
    heads = {name: t.unflatten(-1, (N_HEADS, d_head)).transpose(0, 1) for name, t in projected.items()}  # (H, T, D)
    show("3. Split into heads", why, **heads)
    queries, keys, values = heads.values()
    scores = queries @ keys.transpose(-2, -1)  # (H, T, T)
    show("4. Score", "Queries times keys: row = the token that asks, column = the token that is asked.", scores=scores)
    mask = functional.causal_mask(n_tokens, n_tokens)
    show("5. Mask", "No token may look at a later one.", masked=scores.masked_fill(~mask, -torch.inf))
    scaled = scores.masked_fill(~mask, -torch.inf) / d_head**0.5
    show("6. Scale", f"Divide by the square root of {d_head}, so that wide heads do not saturate.", scaled=scaled)
    weights = functional.attention_weights(queries, keys, mask=mask)
    show("7. Softmax", "Each row becomes shares of 1.", weights=weights)
    show_weights(words, weights)
    context = weights @ values  # (H, T, D)
    show("8. Mix", "Weights times values: what each token takes from those it looked at.", context=context)
    combined = context.transpose(0, 1).flatten(-2)  # (T, H D)
    show("9. Combine", "The heads side by side again: one vector a token.", combined=combined)


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever read our output has seen enough
    main()
