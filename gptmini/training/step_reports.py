"""The outcome of each optimizer step, copied from the device to the host without stalling the device."""

from dataclasses import dataclass

import torch
from torch import Tensor

# On these devices the host reads the metrics of a step only after it has sent the next step. So the device always has
# work.
LATE_FROM = ("cuda",)


@dataclass(frozen=True)
class StepReport:
    """The metrics of one optimizer step on the host, over all ranks together."""

    step: int  # optimizer steps done, including this step
    bad: bool  # skipped, because the loss or the gradient of some rank was not finite
    loss: float  # mean over the step's micro-steps, in nats per token
    grad_norm: float  # norm of the full gradient before clipping
    signal: int  # number of a signal that some rank received; 0: no signal
    late: bool  # whether some rank reached its time limit
    bad_steps: int  # bad steps of the run, including this step
    bad_steps_in_a_row: int  # bad steps since the last good step, including this step


class StepReports:
    """A queue of step metrics that are copied from the device to the host, and the outcomes of steps that have arrived.

    Args:
        bad_steps: earlier bad steps of a resumed run.
        bad_steps_in_a_row: earlier bad steps of a resumed run since its last good step.
    """

    def __init__(self, bad_steps: int = 0, bad_steps_in_a_row: int = 0) -> None:
        self.bad_steps = bad_steps
        self.bad_steps_in_a_row = bad_steps_in_a_row
        self.latest: StepReport | None = None  # report of the latest step that has arrived
        self.unreported: list[StepReport] = []  # bad steps that Stopping has not logged yet
        # (step, metrics on the host, event that marks their arrival; None without a GPU), oldest first
        self._sent: list[tuple[int, Tensor, torch.cuda.Event | None]] = []

    def send(self, step: int, metrics: Tensor) -> None:
        """Start to copy the metrics of a step to the host, and read the metrics of earlier steps.

        Also read the metrics of this step, unless the device is in LATE_FROM.

        Args:
            step: optimizer steps done, including this step.
            metrics: (5,) on the device, the fields of StepReport from bad to late.
        """
        on_host = metrics.to("cpu", non_blocking=metrics.is_cuda)  # from a GPU: into pinned memory
        arrival = None
        if metrics.is_cuda:
            arrival = torch.cuda.Event()
            arrival.record()
        self._sent.append((step, on_host, arrival))
        self._receive(n_unread=1 if metrics.device.type in LATE_FROM else 0)

    def wait(self) -> None:
        """Wait for the latest step, and read its metrics."""
        self._receive(n_unread=0)

    def _receive(self, *, n_unread: int) -> None:
        """Read and count all sent steps, except the latest n_unread."""
        while len(self._sent) > n_unread:
            step, metrics, arrival = self._sent.pop(0)
            if arrival is not None:
                arrival.synchronize()
            bad, loss, grad_norm, signal, late = metrics.tolist()

            self.bad_steps += bool(bad)
            self.bad_steps_in_a_row = self.bad_steps_in_a_row + 1 if bad else 0
            self.latest = StepReport(
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
                self.unreported.append(self.latest)
