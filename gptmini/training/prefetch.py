"""Training batches that a thread cuts one ahead, and that are copied to a GPU while the GPU computes."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from gptmini.data.batches import split_windows


def batches_ahead(
    cut: Callable[[int, np.ndarray], None], shape: tuple[int, int], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield micro-batches (tokens, targets) on a device, int64 (B, T) each, without end.

    There are two buffers: while one of them is copied to the device, a thread cuts the next windows into the other. A
    buffer holds int32 windows of T + 1 tokens, a quarter of the bytes of tokens and targets in int64; the device itself
    splits the windows into tokens and targets, and widens both.

    Args:
        cut: a function that is given the number of a micro-batch, from 0, and an int32 array (B, T + 1), and writes the
            windows of that micro-batch into the array.
        shape: (B, T + 1).
        device: where the batches are needed; for a CUDA GPU the buffers lie in pinned memory.
    """
    on_cuda = device.type == "cuda"
    buffers = [torch.empty(shape, dtype=torch.int32, pin_memory=on_cuda) for _ in range(2)]
    # The end of the newest copy out of each buffer; None before the first copy.
    copies: list[torch.cuda.Event | None] = [None, None]

    def fill(number: int) -> Tensor:
        """Cut a micro-batch into the buffer whose turn it is, and return the buffer, (B, T + 1)."""
        side = number % 2

        # A buffer may be overwritten only when its last windows have reached the device.
        copy = copies[side]
        if copy is not None:
            copy.synchronize()

        cut(number, buffers[side].numpy())
        return buffers[side]

    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    try:
        number = 0
        filled = thread.submit(fill, number)
        while True:
            windows = filled.result().to(device, non_blocking=True, copy=True)  # (B, T + 1)
            if on_cuda:
                copy = torch.cuda.Event()
                copy.record()
                copies[number % 2] = copy

            # The thread cuts the next windows while the device computes on these.
            number += 1
            filled = thread.submit(fill, number)

            yield split_windows(windows.long())  # (B, T) each
    finally:
        # A Ctrl-C need not wait for the thread, which ends by itself after the micro-batch that it is cutting.
        thread.shutdown(wait=False, cancel_futures=True)
