"""Run a function in several forked processes, which form a torch process group over gloo."""

import multiprocessing
import os
import traceback
from datetime import timedelta

import torch
import torch.distributed

SECONDS = 60  # a process that waits longer for another one fails


def in_processes(n_ranks, function, *arguments, folder):
    """Call function(*arguments) in n_ranks processes forked from this one. Return the results by rank.

    The processes find each other through a file in folder. A result must be picklable, tensors included.
    """
    # A fork takes milliseconds. A new process would import torch, which takes seconds.
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    processes = []
    for rank in range(n_ranks):
        options = (queue, rank, n_ranks, f"{folder}/store", function, arguments)
        processes.append(context.Process(target=_run, args=options, daemon=True))
    for process in processes:
        process.start()

    results = {}
    for _ in processes:
        rank, result, error = queue.get()
        assert error is None, error
        results[rank] = result
    for process in processes:
        process.join(SECONDS)
    return [results[rank] for rank in range(n_ranks)]


def _run(queue, rank, n_ranks, store, function, arguments):
    try:
        # OpenMP threads do not survive a fork.
        torch.set_num_threads(1)
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=n_ranks,
            timeout=timedelta(seconds=SECONDS),
        )
        result = function(*arguments)
        torch.distributed.destroy_process_group()
        queue.put((rank, result, None))
    except BaseException:
        queue.put((rank, None, traceback.format_exc()))


def forked(function, *arguments):
    """Call a function in a process forked from this one, so that its side effects end with it."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_call, args=(queue, function, arguments), daemon=True)
    process.start()
    result, error = queue.get()
    assert error is None, error
    process.join(SECONDS)
    return result


def _call(queue, function, arguments):
    try:
        torch.set_num_threads(1)
        queue.put((function(*arguments), None))
    except BaseException:
        queue.put((None, traceback.format_exc()))


def as_rank():
    """Set torchrun's environment variables for this process's rank in torch's process group."""
    rank = str(torch.distributed.get_rank())
    size = str(torch.distributed.get_world_size())
    os.environ.update(
        TORCHELASTIC_RUN_ID="test",
        RANK=rank,
        LOCAL_RANK=rank,
        WORLD_SIZE=size,
        LOCAL_WORLD_SIZE=size,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="1",
    )
