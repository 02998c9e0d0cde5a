"""What came of each optimizer step, brought from the device to the host without keeping the device waiting."""

from dataclasses import dataclass

import torch
from torch import Tensor

# Devices whose newest step stays unread until the next one has been sent, so that they always have work.
LATE_FROM = ("cuda",)


@dataclass(frozen=True)
class Outcome:
    """One optimizer step as the host knows it.

    On several ranks all of this holds for all of them together.
    """

    step: int  # optimizer steps done, this one included
    bad: bool  # not applied, because the loss or the gradient of some rank was not finite
    loss: float  # mean over the step's micro-steps, in nats per token
    grad_norm: float  # norm of the whole gradient before clipping
    signal: int  # number of a signal that some rank was sent; 0 for none
    late: bool  # whether the time limit of some rank was over
    bad_steps: int  # bad steps of the run, this one included
    bad_steps_in_a_row: int  # bad steps since the last step that was applied, this one included


class Outcomes:
    """The outcomes of optimizer steps, whose figures are on their way from the device to the host or have arrived.

    Args:
        bad_steps: bad steps that a resumed run goes on from.
        bad_steps_in_a_row: those of them since the last step that was applied.
    """

    def __init__(self, bad_steps: int = 0, bad_steps_in_a_row: int = 0) -> None:
        self.bad_steps = bad_steps
        self.bad_steps_in_a_row = bad_steps_in_a_row
        self.newest: Outcome | None = None  # that has arrived
        self.untold: list[Outcome] = []  # bad steps that no logger was told of yet
        # (step, its figures on the host, the event of their arrival there; None for no GPU), oldest first
        self._sent: list[tuple[int, Tensor, torch.cuda.Event | None]] = []

    def send(self, step: int, figures: Tensor) -> None:
        """Start to copy the figures of a step to the host, and take in those of earlier steps.

        On a device that is not in LATE_FROM the figures of the step itself are taken in at once.

        Args:
            step: optimizer steps done, this one included.
            figures: (5,) on the device, the fields of Outcome from bad to late.
        """
        on_host = figures.to("cpu", non_blocking=figures.is_cuda)  # from a GPU: into pinned memory
        arrival = None
        if figures.is_cuda:
            arrival = torch.cuda.Event()
            arrival.record()
        self._sent.append((step, on_host, arrival))
        self._receive(n_unread=1 if figures.device.type in LATE_FROM else 0)

    def settle(self) -> None:
        """Wait for the newest step, and take in its figures."""
        self._receive(n_unread=0)

    def _receive(self, *, n_unread: int) -> None:
        """Take in and count all steps that were sent but the newest n_unread."""
        while len(self._sent) > n_unread:
            step, figures, arrival = self._sent.pop(0)
            if arrival is not None:
                arrival.synchronize()
            bad, loss, grad_norm, signal, late = figures.tolist()

            self.bad_steps += bool(bad)
            self.bad_steps_in_a_row = self.bad_steps_in_a_row + 1 if bad else 0
            self.newest = Outcome(
                step=step,
                bad=bool(bad),
                loss=loss,
                grad_norm=grad_norm,
                signal=int(signal),
                late=bool(late),
                bad_steps=self.bad_steps,
                bad_steps_in_a_row=self.bad_steps_in_a_row,
            )
            if bad:
                self.untold.append(self.newest)
