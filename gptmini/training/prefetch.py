"""Prefetch training batches. A thread cuts the next batch while the GPU computes and while a batch is copied to it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from gptmini.data import split_windows


def prefetch_batches(
    windows_of: Callable[[int], np.ndarray], shape: tuple[int, int], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield endless micro-batches (tokens, targets) on a device, int64 (B, T) each.

    There are two buffers of the given shape, (B, T + 1). While one buffer is copied to the device, a thread cuts the
    next windows into the other buffer. windows_of returns the windows of a micro-batch, numbered from 0. Buffers of
    int32 need only a quarter of the bytes of int64 tokens and targets. The device splits and converts them.
    """
    on_cuda = device.type == "cuda"
    buffers = [torch.empty(shape, dtype=torch.int32, pin_memory=on_cuda) for _ in range(2)]
    # For each buffer, the event that marks the end of the latest copy from the buffer; None before the first copy.
    copies: list[torch.cuda.Event | None] = [None, None]

    def fill(number: int) -> Tensor:
        """Cut a micro-batch into the next buffer, and return the buffer, (B, T + 1)."""
        side = number % 2

        # Overwrite a buffer only after the windows in the buffer have been copied to the device.
        copy = copies[side]
        if copy is not None:
            copy.synchronize()

        buffers[side].numpy()[:] = windows_of(number)
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

            # The thread cuts the next windows while the device computes on the current windows.
            number += 1
            filled = thread.submit(fill, number)

            yield split_windows(windows)  # (B, T) each
    finally:
        # After a Ctrl-C, do not wait for the thread. The thread ends by itself after its current micro-batch.
        thread.shutdown(wait=False, cancel_futures=True)
