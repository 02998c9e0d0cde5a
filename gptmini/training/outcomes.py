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
    """The numbers of optimizer steps on their way from the device to the host.

    On a CUDA GPU a step is read when the next one has been queued, so that the GPU always has work. On another device a
    step is read at once.

    Args:
        late: whether the newest step stays unread until the next one has been sent.
    """

    def __init__(self, *, late: bool) -> None:
        self._late = late
        # (step, its numbers on the host, the event of their arrival there; None for no GPU), oldest first
        self._sent: list[tuple[int, Tensor, torch.cuda.Event | None]] = []

    def send(
        self,
        step: int,
        bad: Tensor,
        loss: Tensor,
        grad_norm: Tensor,
        request: Tensor | None = None,
    ) -> None:
        """Start to copy the numbers of a step to the host, all of them in one transfer.

        Args:
            step: optimizer steps done, this one included.
            bad: 1.0 if the step was not applied, else 0.0; a scalar on the device, as are loss and grad_norm.
            loss: mean over the step's micro-steps, in nats per token.
            grad_norm: norm of the whole gradient before clipping.
            request: what all ranks together were asked, (2,): the number of a signal and whether time is over. None
                where there is only one rank.
        """
        numbers = torch.stack((bad, loss.float(), grad_norm.float()))  # (3,)
        if request is not None:
            numbers = torch.cat((numbers, request))  # (5,)
        on_host = numbers.to("cpu", non_blocking=numbers.is_cuda)  # from a GPU: into pinned memory

        arrival = None
        if numbers.is_cuda:
            arrival = torch.cuda.Event()
            arrival.record()
        self._sent.append((step, on_host, arrival))

    def receive(self, *, newest: bool = False) -> list[Outcome]:
        """Return the outcomes that were not received before, oldest first.

        If the newest step is read late, its outcome is returned, and waited for, only where newest is True.
        """
        n_ready = len(self._sent)
        if self._late and not newest:
            n_ready = max(0, n_ready - 1)
        ready = self._sent[:n_ready]
        del self._sent[:n_ready]

        outcomes = []
        for step, numbers, arrival in ready:
            if arrival is not None:
                arrival.synchronize()
            outcomes.append(_read(step, numbers))
        return outcomes


def _read(step: int, numbers: Tensor) -> Outcome:
    """Read the numbers of a step, which must have arrived on the host: (3,), or (5,) with a request of all ranks."""
    values = numbers.tolist()
    bad, loss, grad_norm = values[:3]
    if len(values) == 3:
        return Outcome(step=step, bad=bool(bad), loss=loss, grad_norm=grad_norm)

    signal, late = values[3:]
    return Outcome(
        step=step,
        bad=bool(bad),
        loss=loss,
        grad_norm=grad_norm,
        signal=int(signal),
        late=bool(late),
    )
