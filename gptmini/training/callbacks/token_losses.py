"""Losses and predictions per token of a validation, and the table of tokens with the highest summed loss."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gptmini.report.tables import visible

COSTLIEST = 25  # rows of the table of mispredicted tokens


class TokenLosses(NamedTuple):
    """Losses and predictions of a validation's tokens; each array has the shape (n_tokens,)."""

    losses: np.ndarray  # nats
    positions: np.ndarray  # positions in the window, counted from 0
    targets: np.ndarray  # ids of the tokens
    likeliest: np.ndarray  # ids that the model predicted as likeliest


def joined(batches: list[TokenLosses]) -> TokenLosses:
    """Concatenate the batches of one validation, in order."""
    return TokenLosses(*(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))


def mispredicted(found: TokenLosses, label: Callable[[int], str]) -> list[list[str]]:
    """Return a heading row, then one row for each of the COSTLIEST tokens with the highest summed loss.

    Args:
        found: losses and predictions of a validation's tokens.
        label: returns the text of an id.
    """
    # Arrays are indexed by id, up to the highest id among the targets: (highest id + 1,).
    n_times = np.bincount(found.targets)
    n_right = np.bincount(found.targets, weights=found.targets == found.likeliest)
    costs = np.bincount(found.targets, weights=found.losses)
    # A text of one repeated character has a loss of zero; do not divide by it.
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
