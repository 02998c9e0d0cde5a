"""What a validation finds token by token, and the table of the tokens that cost most."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gptmini.report.tables import visible

COSTLIEST = 25  # rows of the table of mispredicted tokens


class TokenLosses(NamedTuple):
    """Losses and predictions of tokens of a validation; each array has the shape (n_tokens,)."""

    losses: np.ndarray  # nats
    positions: np.ndarray  # in their windows, counted from 0
    targets: np.ndarray  # ids of the tokens
    likeliest: np.ndarray  # ids that the model held likeliest in the targets' places


def joined(batches: list[TokenLosses]) -> TokenLosses:
    """Join what was found in the batches of one validation, in their order."""
    return TokenLosses(*(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))


def mispredicted(found: TokenLosses, label: Callable[[int], str]) -> list[list[str]]:
    """Rows on the token kinds with the highest summed loss, under a row of headings.

    Args:
        found: losses and predictions of the tokens of a validation.
        label: gives the text of an id.
    """
    # Each array is indexed by id, up to the highest id among the targets: (highest id + 1,).
    n_times = np.bincount(found.targets)
    n_right = np.bincount(found.targets, weights=found.targets == found.likeliest)
    costs = np.bincount(found.targets, weights=found.losses)
    # A text of one character is predicted without any loss, which leaves no shares to show.
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
        if n_times[token] == 0:  # tokens that did not occur cost nothing, and come last
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
