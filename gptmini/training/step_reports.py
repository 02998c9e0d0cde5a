"""Copy the outcome of each optimizer step from the device to the host, without making the device wait."""

from dataclasses import dataclass

import torch
from torch import Tensor

# On these devices, the host reads the metrics of a step only after it has sent the work of the next step to the device.
# So the device always has work.
LATE_FROM = ("cuda",)


@dataclass(frozen=True)
class StepReport:
    """The metrics of one optimizer step, on the host. The values combine the metrics of all ranks."""

    step: int  # optimizer steps done, including this step
    loss: float  # mean loss over the micro-steps of the step, in nats per token
    grad_norm: float  # norm of the full gradient before clipping
    signal: int  # number of a signal that some rank received; 0: no signal
    late: bool  # whether the time of some rank is too short for another step and a validation
    bad_steps: int  # number of bad steps of the run, including this step
    bad_steps_in_a_row: int  # number of bad steps since the last good step, including this step


class StepReports:
    """A queue of metrics that are being copied from the device to the host, and the reports of the steps that arrived.

    The arguments are the counts of a resumed run.
    """

    def __init__(self, bad_steps: int = 0, bad_steps_in_a_row: int = 0) -> None:
        self.bad_steps = bad_steps
        self.bad_steps_in_a_row = bad_steps_in_a_row
        self.latest: StepReport | None = None  # report of the latest step that has arrived
        self.unreported: list[StepReport] = []  # bad steps that BadSteps has not logged yet
        # Tuples of the step, its metrics on the host, and the event that marks the end of the copy. The event is None
        # if the device is not a GPU. The oldest step comes first.
        self._sent: list[tuple[int, Tensor, torch.cuda.Event | None]] = []

    def send(self, step: int, metrics: Tensor) -> None:
        """Start to copy the metrics of a step to the host, and read the metrics of all earlier steps.

        If the type of the device is not in LATE_FROM, read the metrics of this step, too. The metrics are not_finite
        and the fields of StepReport from loss to late, (5,) on the device.
        """
        # A copy from a GPU goes to pinned memory.
        on_host = metrics.to("cpu", non_blocking=metrics.is_cuda)
        arrival = None
        if metrics.is_cuda:
            arrival = torch.cuda.Event()
            arrival.record()
        self._sent.append((step, on_host, arrival))
        self._receive(n_unread=1 if metrics.device.type in LATE_FROM else 0)

    def wait(self) -> None:
        """Wait until the metrics of all steps have arrived on the host, and read them."""
        self._receive(n_unread=0)

    def _receive(self, *, n_unread: int) -> None:
        while len(self._sent) > n_unread:
            step, metrics, arrival = self._sent.pop(0)
            if arrival is not None:
                arrival.synchronize()
            not_finite, loss, grad_norm, signal, late = metrics.tolist()

            self.bad_steps += bool(not_finite)
            self.bad_steps_in_a_row = self.bad_steps_in_a_row + 1 if not_finite else 0
            self.latest = StepReport(
                step=step,
                loss=loss,
                grad_norm=grad_norm,
                signal=int(signal),
                late=bool(late),
                bad_steps=self.bad_steps,
                bad_steps_in_a_row=self.bad_steps_in_a_row,
            )
            if not_finite:
                self.unreported.append(self.latest)
