"""Which of a run's processes is the slowest, and by how much: the others wait for it in every step."""

import time

import torch
import torch.distributed as dist


class OwnTime:
    """Sums the time that a process spends before it waits for others, in spans that are begun and ended.

    What comes after the first collective of a micro-step takes every process as long as the slowest one. A CUDA GPU
    records the instants itself, so that the host need not wait for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._open: torch.cuda.Event | float | None = None
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds = 0.0

    def begin(self) -> None:
        """Begin a span; one that is open already is left out."""
        self._open = self._instant()

    def end(self) -> None:
        """End the span, if one is open."""
        begun, self._open = self._open, None
        if begun is None:
            return
        now = self._instant()
        if isinstance(begun, float) and isinstance(now, float):
            self._seconds += now - begun
        elif not isinstance(begun, float) and not isinstance(now, float):
            self._spans.append((begun, now))

    def discard(self) -> None:
        """Leave the open span out, in which the process did something else."""
        self._open = None

    def seconds(self) -> float:
        """The sum since the last call; a GPU must have finished all that was timed."""
        total = self._seconds
        for begun, ended in self._spans:
            total += begun.elapsed_time(ended) / 1000
        self._seconds = 0.0
        self._spans = []
        return total

    def _instant(self) -> "torch.cuda.Event | float":
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def slowest_of(seconds: float, n_steps: int, device: torch.device) -> dict[str, float]:
    """Compare the processes of a run by the time that each has spent by itself; collective.

    Args:
        seconds: the time of this process.
        n_steps: number of optimizer steps in that time.
        device: the device of this process, for the exchange.

    Returns scalars by tag: the number of the slowest process, its milliseconds a step, and its ratio to the mean.
    """
    own = torch.tensor([seconds], dtype=torch.float32, device=device)
    of_ranks = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, own)

    times = torch.cat(of_ranks).tolist()
    slowest = max(range(len(times)), key=times.__getitem__)
    mean = sum(times) / len(times)
    return {
        "work/slowest_rank": float(slowest),
        "work/slowest_ms": 1000 * times[slowest] / n_steps,
        "work/slowest_ratio": times[slowest] / mean if mean else 1.0,
    }
