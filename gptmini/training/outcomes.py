"""What came of each optimizer step, brought from the device to the host without keeping the device waiting."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """One optimizer step, as the host knows it; on several ranks the flags are those of all, the numbers its own."""

    step: int  # optimizer steps done, this one included
    bad: bool  # not applied, because the loss or the gradient of some rank was not finite
    loss: float  # mean over the step's micro-steps, in nats per token
    grad_norm: float  # of the whole gradient, before clipping
    signal: int = 0  # number of a signal that some rank was sent; 0 for none
    late: bool = False  # whether the time limit of some rank was over


@dataclass(frozen=True)
class BadStep:
    """A step that was not applied, and how many were not by then."""

    outcome: Outcome
    n_so_far: int  # bad steps of the run, this one included
    n_in_a_row: int  # of them, those since the last step that was applied


class Outcomes:
    """The numbers of steps on their way to the host.

    On a CUDA GPU a step is read when the next one has been queued, so that the GPU always has work; elsewhere at once.
    """

    def __init__(self, *, late: bool) -> None:
        """late says whether the newest step stays unread until the next one has been sent."""
        self._late = late
        self._sent: list[tuple[int, Tensor, torch.cuda.Event | None]] = []  # step, numbers, when they have arrived

    def send(self, step: int, bad: Tensor, loss: Tensor, grad_norm: Tensor, request: Tensor | None = None) -> None:
        """Start the one transfer of a step's numbers: scalars on the device, and request, (2,): signal and late."""
        numbers = torch.stack((bad, loss.float(), grad_norm.float()))
        if request is not None:
            numbers = torch.cat((numbers, request))
        on_host = numbers.to("cpu", non_blocking=numbers.is_cuda)  # into pinned memory then

        arrived = None
        if numbers.is_cuda:
            arrived = torch.cuda.Event()
            arrived.record()
        self._sent.append((step, on_host, arrived))

    def receive(self, *, newest: bool = False) -> list[Outcome]:
        """Outcomes that were not received before, oldest first; of the newest step only if asked, or if not late."""
        n_ready = len(self._sent)
        if self._late and not newest:
            n_ready = max(0, n_ready - 1)
        ready = self._sent[:n_ready]
        del self._sent[:n_ready]

        outcomes = []
        for step, numbers, arrived in ready:
            if arrived is not None:
                arrived.synchronize()
            values = numbers.tolist()
            bad, loss, grad_norm = values[:3]
            outcome = Outcome(step=step, bad=bool(bad), loss=loss, grad_norm=grad_norm)
            if len(values) > 3:  # several ranks were asked too
                signal, late = values[3:]
                outcome = replace(outcome, signal=int(signal), late=bool(late))
            outcomes.append(outcome)
        return outcomes
