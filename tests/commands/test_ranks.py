"""Runs of several ranks: how they are started, what they agree on, and what becomes of them when one is lost."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gptmini.runs import RunState, read_state
from run_folders import config_of, last, newest

pytestmark = pytest.mark.slow

AT_ONCE = "trainer.max_time=1e-3"  # stop after the first step
ENDLESS = ("trainer.max_steps=100000", "trainer.val_every_steps=100000")
PROGRAM = [sys.executable, "-m", "gptmini", "train"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
PATIENCE = 120  # seconds that any command here may take


@pytest.fixture
def start(script, tmp_path):  # script writes the text my.txt
    """Start commands in processes of their own, which end with the test."""
    started = []

    def run(*command, folder=tmp_path, **variables):
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(command, cwd=folder, env=environment, **options)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def finished(*processes):
    """What processes have printed, once they have ended without an error."""
    printed = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    for process, text in zip(processes, printed, strict=True):
        assert process.returncode == 0, text
    return printed


def assert_same_weights(run, other):
    weights = last(other)["state_dict"]
    for name, tensor in last(run)["state_dict"].items():
        torch.testing.assert_close(tensor, weights[name], atol=1e-6, rtol=0)


def slurm(rank, n_tasks, port):
    """The variables of a task of srun, on a machine of its own, with the port that the user has chosen."""
    return {
        "SLURM_JOB_ID": "77",
        "SLURM_NTASKS": str(n_tasks),
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_NNODES": str(n_tasks),
        "SLURM_STEP_NUM_TASKS": str(n_tasks),
        "SLURM_STEP_NUM_NODES": str(n_tasks),
        "SLURM_NODELIST": "127.0.0.1",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": str(rank),
        "MASTER_PORT": str(port),
    }


def test_every_launcher_trains_the_weights_of_one_process(script, short, start, tmp_path):
    """torchrun on one machine and on two pretended ones, and srun; each makes one run folder.

    Runs whose ranks gptmini starts itself are in the test of a run that goes on with more processes.
    """
    alone = script("train", *short, "name=straight").out
    straight = newest()
    module = ("-m", "gptmini", "train", *short)

    here = ("--standalone", "--nproc_per_node=2")
    sharded = ("name=torchrun", "trainer.strategy=fsdp2")
    (divided,) = finished(start(*TORCHRUN, *here, *module, *sharded))
    sample = r"^sample .*"
    assert re.findall(sample, divided, re.M) == re.findall(sample, alone, re.M) != []

    place = ("--nnodes=2", "--nproc_per_node=1", "--master_addr=127.0.0.1")
    agents = [*TORCHRUN, *place, f"--master_port={free_port()}"]
    ranks = [start(*agents, f"--node_rank={rank}", *module, "name=nodes") for rank in range(2)]
    printed = finished(*ranks)
    assert sum("done     4 steps" in text for text in printed) == 1

    port = free_port()
    tasks = [start(*PROGRAM, *short, "name=srun", **slurm(rank, 2, port)) for rank in range(2)]
    printed = finished(*tasks)
    assert "done     4 steps" in printed[0]
    assert printed[1] == ""

    for name in ("torchrun", "nodes", "srun"):
        (run,) = (tmp_path / "runs" / name).iterdir()
        assert last(run)["global_step"] == 4
        assert_same_weights(run, straight)


def free_port():
    """A port of this machine that is free at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_a_mistake_is_told_once_and_every_process_ends(short, start, tmp_path):
    wrong = (*short, "trainer.max_step=2")
    port = free_port()
    tasks = [start(*PROGRAM, *wrong, **slurm(rank, 2, port)) for rank in range(2)]
    printed = [task.communicate(timeout=PATIENCE)[0] for task in tasks]
    assert printed[0].startswith("error: trainer.max_step is no key;")
    assert printed[0].count("\n") == 1
    assert printed[1] == ""

    run = start(*TORCHRUN, "--standalone", "--nproc_per_node=2", "-m", "gptmini", "train", *wrong)
    told = run.communicate(timeout=PATIENCE)[0]
    assert told.count("error: trainer.max_step is no key;") == 1


def test_a_run_that_all_ranks_give_up_is_told_once_and_the_next_job_is_trained(
    short, start, tmp_path
):
    diverging = ("optimizer=adamw", "optimizer.lr=1e30,1e-3", "schedule.warmup_steps=0")
    ranks = ("trainer.devices=2", "trainer.max_bad_steps=1")
    folder = "folder=runs/job/${hydra:job.num}"
    run = start(*PROGRAM, "-m", *short, *diverging, *ranks, folder, "console=quiet")
    told = run.communicate(timeout=PATIENCE)[0].splitlines()
    assert run.returncode == 2
    assert told[0].startswith("error: 1 steps in a row, to step 2, had a loss or gradient that is")
    assert told[1].endswith("failed: its ranks have told why")
    assert len(told) == 2

    runs = tmp_path / "runs" / "job"
    assert read_state(runs / "0") == RunState(state="failed", step=2, by="UserError")
    assert last(runs / "1")["global_step"] == 4


def test_no_rank_leaves_before_the_first_one_has_put_the_job_into_the_queue(short, start, tmp_path):
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f"#!/bin/sh\nsleep 2\ntouch {tmp_path}/asked\n")
    scontrol.chmod(0o755)
    path = f"{scontrol.parent}:{os.environ['PATH']}"
    command = [*PROGRAM, *short, *ENDLESS, "trainer.requeue=true"]

    port = free_port()
    tasks = [start(*command, PATH=path, **slurm(rank, 2, port)) for rank in range(2)]
    first_step(tasks[0])
    for task in tasks:
        task.send_signal(signal.SIGUSR1)
    assert tasks[1].wait(timeout=PATIENCE) == 128 + signal.SIGUSR1
    assert (tmp_path / "asked").exists()
    assert "requeue  job 77 is in the queue again" in tasks[0].communicate(timeout=PATIENCE)[0]


def test_a_job_without_srun_and_a_second_machine_are_refused(script, short, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    result = script("train", *short)
    assert result.code == 2
    assert "start it with srun gptmini train" in result.err

    monkeypatch.delenv("SLURM_PROCID")
    result = script("train", *short, "trainer.num_nodes=2")
    assert result.code == 2
    assert "several machines need torchrun or srun" in result.err


def first_step(process):
    """Wait until a run has done its first step; return what it has printed."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("step 1/"):
            return lines
    raise AssertionError("".join(lines))


def ranks_of(process):
    """Ids of the ranks that a run has started, in their order."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return sorted(map(int, children))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes under /proc")
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (
            signal.SIGKILL,
            "error: rank 1 was ended by SIGKILL; the newest checkpoint is what is left",
        ),
        (signal.SIGSTOP, "error: another rank is gone, or did not answer within trainer.timeout"),
    ],
    ids=["killed", "hangs"],
)
def test_a_run_that_loses_a_rank_ends_and_names_it(short, start, number, said):
    run = start(*PROGRAM, *short, *ENDLESS, "trainer.devices=2", "trainer.timeout=8")
    first_step(run)
    lost = ranks_of(run)[1]
    os.kill(lost, number)
    printed = run.communicate(timeout=PATIENCE)[0]
    assert run.returncode == 1
    assert said in printed
    assert "Traceback" not in printed
    assert_gone(lost)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes under /proc")
def test_ranks_whose_launcher_is_killed_save_and_end(short, start):
    run = start(*PROGRAM, *short, *ENDLESS, "trainer.devices=2", "trainer.timeout=30")
    first_step(run)
    ranks = ranks_of(run)
    run.kill()
    found = re.search(r"stopped  by SIGTERM at step (\d+); saved as", run.stdout.read())
    assert last(newest())["global_step"] == int(found[1])
    for rank in ranks:
        assert_gone(rank)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_the_command_saves_the_run_of_all_ranks(short, start, number):
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip(f"{number.name} is turned off for these tests, as nohup does")
    run = start(*PROGRAM, *short, *ENDLESS, "trainer.devices=2")
    first_step(run)
    run.send_signal(number)
    printed = run.communicate(timeout=PATIENCE)[0]
    assert run.returncode == 128 + number
    found = re.search(rf"^stopped  by {number.name} at step (\d+); saved as", printed, re.MULTILINE)
    assert last(newest())["global_step"] == int(found[1])
    told = [line for line in printed.splitlines() if not line.startswith("step ")]
    assert [line.split()[0] for line in told] == ["stopped", "next"], printed


def assert_gone(process):
    """Assert that a process ends soon."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError(f"process {process} goes on")


def test_a_run_goes_on_with_more_processes_and_then_with_fewer(script, short, tmp_path):
    assert script("train", *short, "name=straight").code == 0
    expected = last(newest())

    def train(*arguments, devices):
        arguments = (*arguments, f"trainer.devices={devices}")
        if devices == 1:
            return script("train", *arguments).out

        options = {"cwd": tmp_path, "capture_output": True, "text": True}
        done = subprocess.run([*PROGRAM, *arguments], timeout=PATIENCE, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def batch_size():
        return config_of(newest())["trainer"]["batch_size"]

    stopped = train(*short, "name=moved", AT_ONCE, "trainer.batch_size=auto", devices=1)
    assert "stopped  by the time limit at step 1; saved as" in stopped
    assert last(newest())["global_step"] == 1
    # trainer.batch_size=auto finds a device's whole share of the global batch of 4.
    assert batch_size() == 4

    # A batch size that does not divide the share of a device is lowered, and the user is told.
    with_more = train("resume=runs/latest", devices=2)
    assert "trainer.batch_size=4 does not divide the 2 sequences of each of 2 devices" in with_more
    assert "2 processes" in with_more
    assert "stopped  by the time limit at step 2; saved as" in with_more
    assert last(newest())["global_step"] == 2
    assert batch_size() == 2

    with_fewer = train("resume=runs/latest", "trainer.max_time=null", devices=1)
    assert "done     2 steps" in with_fewer

    got = last(newest())
    assert got["global_step"] == expected["global_step"] == 4
    for name, tensor in expected["state_dict"].items():
        torch.testing.assert_close(got["state_dict"][name], tensor, atol=1e-5, rtol=0)
    moments = got["optimizer_states"][0]["state"]
    for i, state in expected["optimizer_states"][0]["state"].items():
        for key, tensor in state.items():
            torch.testing.assert_close(moments[i][key], tensor, atol=1e-5, rtol=0)
