"""Functions that several processes run together, in a process group of torch over gloo."""

import multiprocessing
import os
import traceback
from datetime import timedelta

import torch
import torch.distributed

SECONDS = 60  # after which a process that waits in vain for another one fails


def in_processes(n_ranks, function, *arguments, folder):
    """Call function(*arguments) in n_ranks processes, forked from this one; return the results by rank.

    folder is one for the file in which the processes find each other. A result must be plain, or hold tensors.
    """
    # A fork costs milliseconds; a new process would import torch for seconds.
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
        # Threads of OpenMP do not survive a fork.
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
    """Call a function in a process that is forked from this one, so that what it sets up ends with it."""
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
    """Set the variables of torchrun for the rank that this process is in torch's process group."""
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
