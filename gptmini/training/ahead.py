"""Batches cut one ahead by a thread, and copied to a GPU without keeping it waiting."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor


def batches_ahead(
    cut: Callable[[int, np.ndarray], None], shape: tuple[int, int], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Micro-batches (tokens, targets) on a device, int64 (B, T) each, without end.

    While one of two buffers is on its way to the device, a thread cuts the next windows into the other. They are int32
    and hold T + 1 tokens, so that little is copied; the device itself shifts and widens them.

    Args:
        cut: called with the number of a micro-batch, from 0, and the int32 array (B, T + 1) to cut its windows into.
        shape: (B, T + 1).
        device: where the batches are needed; the buffers are pinned for a CUDA GPU.
    """
    on_cuda = device.type == "cuda"
    buffers = [torch.empty(shape, dtype=torch.int32, pin_memory=on_cuda) for _ in range(2)]
    copied: list[torch.cuda.Event | None] = [None, None]  # when the copy out of each buffer was done

    def fill(number: int) -> Tensor:
        side = number % 2
        if copied[side] is not None:
            copied[side].synchronize()  # the buffer may be overwritten from here on
        cut(number, buffers[side].numpy())
        return buffers[side]

    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    try:
        number = 0
        filled = thread.submit(fill, number)
        while True:
            windows = filled.result().to(device, non_blocking=True, copy=True)  # (B, T + 1)
            if on_cuda:
                copied[number % 2] = torch.cuda.Event()
                copied[number % 2].record()
            number += 1
            filled = thread.submit(fill, number)
            yield windows[:, :-1].long(), windows[:, 1:].long()
    finally:  # the thread ends by itself after the batch that it is cutting; a Ctrl-C need not wait for that
        thread.shutdown(wait=False, cancel_futures=True)
