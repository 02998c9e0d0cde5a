"""The loss and the prediction of each token of a validation, and a table of the tokens with the highest summed loss."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gptmini.report.tables import visible

COSTLIEST = 25  # number of tokens in the table of mispredicted tokens


class TokenLosses(NamedTuple):
    """The loss and the prediction of each token of a validation. Each array has the shape (n_tokens,)."""

    losses: np.ndarray  # losses in nats
    positions: np.ndarray  # positions of the tokens in their windows, counted from 0
    targets: np.ndarray  # ids of the tokens
    likeliest: np.ndarray  # ids of the tokens that the model considered likeliest


def joined(batches: list[TokenLosses]) -> TokenLosses:
    """Concatenate the arrays of all batches of one validation, in order."""
    return TokenLosses(*(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))


def mispredicted(found: TokenLosses, label: Callable[[int], str]) -> list[list[str]]:
    """Return the rows of a table of the COSTLIEST tokens with the highest summed loss. The first row is the heading.

    Args:
        found: the loss and the prediction of each token of a validation.
        label: a function that returns the text of the token with an id.
    """
    # The index of these arrays is the id of a token. Their shape is (highest id among the targets + 1,).
    n_times = np.bincount(found.targets)
    n_right = np.bincount(found.targets, weights=found.targets == found.likeliest)
    costs = np.bincount(found.targets, weights=found.losses)
    # If the text repeats a single character, the loss may be zero. Do not divide by zero.
    total_cost = costs.sum() or 1.0

    rows = [
        [
            "token",
            "times",
            "right",
            "mean loss, nats",
            "share of all loss",
            "likeliest when wrong",
        ]
    ]
    for token in np.argsort(-costs)[:COSTLIEST]:
        if n_times[token] == 0:  # tokens that did not occur come last, because their loss is 0
            break

        is_wrong = (found.targets == token) & (found.likeliest != token)
        predicted_instead = np.bincount(found.likeliest[is_wrong])  # (highest id + 1,)
        likeliest_instead = ""
        if len(predicted_instead):
            likeliest_instead = visible(label(int(predicted_instead.argmax())))

        mean_loss = costs[token] / n_times[token]
        rows.append(
            [
                visible(label(int(token))),
                f"{n_times[token]:,}",
                f"{n_right[token] / n_times[token]:.0%}",
                f"{mean_loss:.2f}",
                f"{costs[token] / total_cost:.1%}",
                likeliest_instead,
            ]
        )
    return rows
