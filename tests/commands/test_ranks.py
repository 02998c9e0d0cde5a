"""Runs of several ranks: how they start, what they agree on, and what happens when one is lost.

Each rank started by torch's launcher imports torch and Lightning, so a test here takes up to 10 seconds.
"""

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.run import main as torchrun

import programs
from gptmini.runs import read_status
from run_folders import config_of, last, newest

ENDLESS = ("trainer.max_steps=100000", "trainer.val_every_steps=100000")
TWO = "trainer.devices=2"
RANK = ("-m", "gptmini", "train")  # the program that torchrun starts
PATIENCE = 120  # the time limit of any command here, in seconds
NEEDS_PROC = pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="finds processes under /proc"
)


@pytest.fixture
def start(script):  # script writes the text my.txt
    """Start programs in separate processes that end with the test. The default program is gptmini."""
    started = []

    def run(*arguments, **options):
        streams = {"stderr": subprocess.STDOUT, "text": True}
        process = programs.start(*arguments, **streams, **options)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def printed_by(*processes):
    """Wait until processes end without an error, and return their output."""
    printed = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    for process, text in zip(processes, printed, strict=True):
        assert process.returncode == 0, text
    return printed


def first_step(process):
    """Wait until a run has done its first step."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("step 1/"):
            return
    raise AssertionError("".join(lines))


def free_port():
    """A free port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def tasks_of_srun(start, *arguments, **variables):
    """Train as two tasks of srun, each on a simulated machine, with a port set by the user."""
    port = str(free_port())
    tasks = []
    for rank in range(2):
        slurm = {
            "SLURM_JOB_ID": "77",
            "SLURM_NTASKS": "2",
            "SLURM_NTASKS_PER_NODE": "1",
            "SLURM_NNODES": "2",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_NUM_NODES": "2",
            "SLURM_NODELIST": "127.0.0.1",
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": "0",
            "SLURM_NODEID": str(rank),
            "MASTER_PORT": port,
        }
        tasks.append(start("train", *arguments, variables=slurm | variables))
    return tasks


def folder_of(name):
    """The folder of the only run with a name."""
    (folder,) = Path("runs", name).iterdir()
    return folder


def test_torchrun_and_srun_train_the_weights_of_one_process(script, short, start, tmp_path):
    """torchrun on two simulated machines with FSDP2, and srun with init_from=. Each creates one run folder."""
    alone = script("train", *short, "name=straight").out
    weights = last(newest())["state_dict"]

    place = ("--nnodes=2", "--nproc_per_node=1", "--master_addr=127.0.0.1")
    place = (*place, f"--master_port={free_port()}")
    divided = (*RANK, *short, "name=torchrun", "trainer.strategy=fsdp2")
    machines = [start(*place, f"--node_rank={i}", *divided, program=torchrun) for i in range(2)]
    both = "".join(printed_by(*machines))
    assert both.count("done     4 steps") == 1
    sample = r"^sample .*"
    assert re.findall(sample, both, re.M) == re.findall(sample, alone, re.M) != []

    tuned = (*short, f"init_from={folder_of('straight')}", "trainer.max_steps=2")
    assert script("train", *tuned, "name=tuned").code == 0
    first, second = printed_by(*tasks_of_srun(start, *tuned, "name=srun"))
    assert "done     2 steps" in first
    assert second == ""

    for name, expected in (("torchrun", weights), ("srun", last(folder_of("tuned"))["state_dict"])):
        for key, tensor in last(folder_of(name))["state_dict"].items():
            torch.testing.assert_close(tensor, expected[key], atol=1e-6, rtol=0)


def test_a_mistake_is_told_once_and_every_process_ends(short, start):
    place = ("--standalone", "--nproc_per_node=2")
    run = start(*place, *RANK, *short, "trainer.max_step=2", program=torchrun)
    told = run.communicate(timeout=PATIENCE)[0]
    assert run.returncode != 0
    assert told.count("error: ") == told.count("trainer.max_step;") == 1


def test_a_run_that_all_ranks_give_up_is_told_once_and_the_next_job_begins(short, start, tmp_path):
    diverging = ("optimizer=adamw", "optimizer.lr=1e30,-1", "schedule.warmup_steps=0")
    ranks = (TWO, "trainer.max_bad_steps=1", "folder=runs/job/${hydra:job.num}")
    run = start("train", "-m", *short, *diverging, *ranks, "console=quiet")
    told = run.communicate(timeout=PATIENCE)[0].splitlines()
    assert run.returncode == 2
    assert told[0].startswith("error: 1 steps in a row had a non-finite loss")
    assert "its ranks" in told[1]
    assert "optimizer.lr=-1 " in told[2]
    assert len(told) == 3
    folder = tmp_path / "runs" / "job" / "0"
    failed = read_status(folder)
    assert (failed.state, failed.step, failed.exit_code) == ("failed", 2, 2)
    assert failed.reason == told[0].removeprefix("error: ")
    assert "1 steps in a row" in (folder / "train.log").read_text()


def test_no_rank_leaves_before_the_first_one_has_put_the_job_into_the_queue(short, start, tmp_path):
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f"#!/bin/sh\nsleep 1\ntouch {tmp_path}/asked\n")
    scontrol.chmod(0o755)
    path = f"{scontrol.parent}:{os.environ['PATH']}"

    typed = (*short, *ENDLESS, "trainer.requeue=true")
    tasks = tasks_of_srun(start, *typed, PATH=path)
    first_step(tasks[0])
    for task in tasks:
        task.send_signal(signal.SIGUSR1)
    assert tasks[1].wait(timeout=PATIENCE) == 128 + signal.SIGUSR1
    assert (tmp_path / "asked").exists()
    assert "requeue  job 77 requeued" in tasks[0].communicate(timeout=PATIENCE)[0]


def test_a_run_of_which_a_rank_hangs_ends_and_says_so(short, start):
    # One rank starts up to 3 seconds after the other, which must wait for it.
    tasks = tasks_of_srun(start, *short, *ENDLESS, "trainer.timeout=5")
    first_step(tasks[0])
    tasks[1].send_signal(signal.SIGSTOP)
    printed = tasks[0].communicate(timeout=PATIENCE)[0]
    assert tasks[0].returncode == 1
    assert re.search("error: another rank .* trainer.timeout", printed)
    assert "Traceback" not in printed


def test_the_launcher_hands_on_all_signals_and_a_rank_that_was_killed_is_named(
    script, short, monkeypatch
):
    """torch's launcher is simulated: it receives its settings and reports a lost rank."""
    settings = []

    def launcher(config, entrypoint):
        settings.append(config)

        def launch(*arguments):
            killed = ProcessFailure(local_rank=1, pid=1, exitcode=-signal.SIGKILL, error_file="")
            raise ChildFailedError("gptmini", {1: killed})

        return launch

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", launcher)
    result = script("train", *short, TWO)
    assert result.code == 1
    assert re.fullmatch("error: rank 1 .* SIGKILL; .* checkpoint\n", result.err)
    names = {"SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2"}
    assert names <= set(settings[0].signals_to_handle.split(","))


def ranks_of(process):
    """Process ids of the ranks that a run launched, in order."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return sorted(map(int, children))


def assert_gone(process):
    """Assert that a process exits within PATIENCE seconds."""
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{process}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@NEEDS_PROC
def test_ranks_whose_launcher_is_killed_save_and_end(short, start):
    run = start("train", *short, *ENDLESS, TWO)
    first_step(run)
    ranks = ranks_of(run)
    run.kill()
    found = re.search(r"stopped  by SIGTERM at step (\d+); saved as", run.stdout.read())
    assert last(newest())["global_step"] == int(found[1])
    for rank in ranks:
        assert_gone(rank)


def test_a_signal_to_the_command_saves_the_run_of_all_ranks(short, start, tmp_path):
    """Ranks find the user's own class in the working folder. A file there cannot replace a library."""
    (tmp_path / "ranked.py").write_text("import lightning\nclass Mine(lightning.Callback): pass\n")
    (tmp_path / "hydra.py").write_text("raise SystemExit('executed')")
    run = start("train", *short, *ENDLESS, TWO, "+callbacks.mine._target_=ranked.Mine")
    first_step(run)
    run.send_signal(signal.SIGINT)
    printed = run.communicate(timeout=PATIENCE)[0]
    assert run.returncode == 128 + signal.SIGINT
    found = re.search(r"^stopped  by SIGINT at step (\d+); saved as", printed, re.MULTILINE)
    assert last(newest())["global_step"] == int(found[1])
    told = [line.split()[0] for line in printed.splitlines() if not line.startswith("step ")]
    assert told == ["stopped", "next"], printed


def test_a_run_goes_on_with_more_processes_and_then_with_fewer(script, short):
    def state_of_run():
        run = last(newest())
        return run["global_step"], config_of(newest())["trainer"]["batch_size"]

    assert script("train", *short, "name=straight").code == 0
    expected = last(newest())

    # trainer.batch_size=auto finds each device's full share of the global batch of 4.
    at_once = "trainer.max_time=1e-3"  # stops after the first step
    stopped = script("train", *short, "name=moved", at_once, "trainer.batch_size=auto").out
    assert "stopped  by the time limit at step 1; saved as" in stopped
    assert state_of_run() == (1, 4)

    # A batch size that does not divide a device's share is lowered, with a note.
    assert script("train", "resume=runs/latest", TWO).code == 0
    with_more = (newest() / "train.log").read_text()
    assert "trainer.batch_size=4 does not divide the 2 sequences" in with_more
    assert "2 processes" in with_more
    assert "stopped  by the time limit at step 2; saved as" in with_more
    assert state_of_run() == (2, 2)

    fewer = ("resume=runs/latest", "trainer.devices=1", "trainer.max_time=null")
    assert "done     2 steps" in script("train", *fewer).out

    got = last(newest())
    assert got["global_step"] == 4
    torch.testing.assert_close(got["state_dict"], expected["state_dict"], atol=1e-5, rtol=0)
    moments, own = (run["optimizer_states"][0]["state"] for run in (got, expected))
    torch.testing.assert_close(moments, own, atol=1e-5, rtol=0)
