"""What came of each optimizer step, brought from the device to the host without keeping the device waiting."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """One optimizer step as the host knows it.

    On several ranks all of this holds for all of them together.
    """

    step: int  # optimizer steps done, this one included
    bad: bool  # not applied, because the loss or the gradient of some rank was not finite
    loss: float  # mean over the step's micro-steps, in nats per token
    grad_norm: float  # norm of the whole gradient before clipping
    signal: int = 0  # number of a signal that some rank was sent; 0 for none
    late: bool = False  # whether the time limit of some rank was over


@dataclass(frozen=True)
class BadStep:
    """A step that was not applied, with the number of such steps up to it."""

    outcome: Outcome
    n_so_far: int  # bad steps of the run, this one included
    n_in_a_row: int  # bad steps since the last step that was applied, this one included


class Outcomes:
    """The figures of optimizer steps on their way from the device to the host.

    Args:
        late: whether the newest step stays unread until the next one has been sent, as on a CUDA GPU, which so always
            has work. On another device a step is read at once.
    """

    def __init__(self, *, late: bool) -> None:
        self._late = late
        # (step, its figures on the host, the event of their arrival there; None for no GPU), oldest first
        self._sent: list[tuple[int, Tensor, torch.cuda.Event | None]] = []

    def send(self, step: int, figures: Tensor) -> None:
        """Start to copy the figures of a step to the host.

        Args:
            step: optimizer steps done, this one included.
            figures: (5,) on the device, the fields of Outcome that follow step.
        """
        on_host = figures.to("cpu", non_blocking=figures.is_cuda)  # from a GPU: into pinned memory
        arrival = None
        if figures.is_cuda:
            arrival = torch.cuda.Event()
            arrival.record()
        self._sent.append((step, on_host, arrival))

    def receive(self, *, newest: bool = False) -> list[Outcome]:
        """Return the outcomes that were not received before, oldest first.

        If the newest step is read late, its outcome is returned, and waited for, only where newest is True.
        """
        n_unread = 1 if self._late and not newest else 0
        outcomes = []
        while len(self._sent) > n_unread:
            step, figures, arrival = self._sent.pop(0)
            if arrival is not None:
                arrival.synchronize()
            bad, loss, grad_norm, signal, late = figures.tolist()
            outcomes.append(Outcome(step, bool(bad), loss, grad_norm, int(signal), bool(late)))
        return outcomes
