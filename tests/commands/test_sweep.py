"""gptmini sweep trains a run for each value, whatever kills it, and says which is the best."""

import csv
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gptmini.commands import sweep_driver
from gptmini.search import Launcher
from run_folders import last

pytestmark = pytest.mark.slow  # together they take a minute

RATES = "optimizer.lr=0.01,0.03"
SPACE = (RATES, "model.n_layers=1,2")


class Forked:
    """A job in a process that is forked from the test's, whose libraries are imported."""

    def __init__(self, function):
        self._process = multiprocessing.get_context("fork").Process(target=quietly, args=[function])
        self._process.start()
        self.job_id = str(self._process.pid)

    def done(self):
        return not self._process.is_alive()


def quietly(function):
    """Call a function in a forked process, which prints nowhere."""
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
    function()


@pytest.fixture
def forked(monkeypatch):
    """Let the runs of a sweep be forked, and looked at often."""
    monkeypatch.setattr(Launcher, "submit", lambda self, job: Forked(job))
    monkeypatch.setattr(sweep_driver, "POLL", 0.05)


def rows(name="sweep"):
    """The rows of a sweep's table.csv."""
    with Path("runs", name, "sweep", "table.csv").open() as file:
        return list(csv.DictReader(file))


def figures(name="sweep"):
    """What does not depend on when a sweep was run: all but times and the places of runs."""
    kept = [row | {"run": "", "seconds": ""} for row in rows(name)]
    for row in kept:
        del row["run"], row["seconds"]
    return kept


def test_every_combination_is_trained_as_its_values_say(script, short, forked):
    result = script("sweep", *short, *SPACE, "--jobs", "2")
    assert result.code == 0, result.err

    table = rows()
    assert [row["state"] for row in table] == ["done"] * 4
    assert [(row["optimizer.lr"], row["model.n_layers"]) for row in table] == [
        ("0.01", "1"),
        ("0.01", "2"),
        ("0.03", "1"),
        ("0.03", "2"),
    ]
    best = min(table, key=lambda row: float(row["loss"]))
    assert f"best     val loss {float(best['loss']):.4f}, " in result.out
    assert f"trial {best['trial']}, {best['run']}" in result.out

    # The command that the sweep recommends trains the same weights.
    (line,) = [line for line in result.out.splitlines() if line.startswith("train ")]
    arguments = line.partition("train.py ")[2].split()
    assert RATES not in arguments
    assert script("train", *arguments, "trainer.threads=1").code == 0
    newest = max(Path("runs/sweep").glob("2*"), key=lambda run: run.stat().st_mtime)
    for name, weight in last(newest)["state_dict"].items():
        assert weight.equal(last(Path(best["run"]))["state_dict"][name])

    # Typed again, it trains nothing.
    before = sorted(Path("runs/sweep").iterdir())
    again = script("sweep", *short, *SPACE)
    assert again.code == 0
    assert "started" not in again.out
    assert sorted(Path("runs/sweep").iterdir()) == before


def test_a_trial_that_fails_is_recorded_with_its_reason_and_the_others_go_on(script, short, forked):
    wild = (*short, "optimizer=adamw", "optimizer.lr=1e30,0.01", "trainer.max_bad_steps=1")
    result = script("sweep", *wild, "schedule.warmup_steps=0")
    assert result.code == 1, result.err
    failed, done = rows()
    assert failed["state"] == "failed"
    assert "steps in a row" in failed["reason"]
    assert "failed   trial 0: 1 steps in a row" in result.out
    assert done["state"] == "done"

    # Typed again, the failure is not tried again.
    again = script("sweep", *wild, "schedule.warmup_steps=0")
    assert again.code == 1
    assert "started" not in again.out


def test_numbers_of_an_interval_are_drawn_and_trained(script, short, forked):
    drawn = "optimizer.lr=tag(log,interval(0.001,0.1))"
    space = (drawn, "model.n_layers=1,2", "sweep.sampler=random", "sweep.trials=3")
    result = script("sweep", *short, *space, "--jobs", "3", "sweep.seed=3")
    assert result.code == 0, result.err
    table = rows()
    assert len({row["optimizer.lr"] for row in table}) == 3
    assert all(0.001 <= float(row["optimizer.lr"]) <= 0.1 for row in table)

    # More trials are added by their number; the first ones stay.
    more = script("sweep", *short, *space[:3], "sweep.trials=4", "sweep.seed=3")
    assert more.code == 0, more.err
    assert rows()[:3] == table
    assert len(rows()) == 4


def test_tokens_that_differ_are_compared_by_bits_per_byte(script, short, forked):
    space = ("tokenizer=byte,char",)
    result = script("sweep", *short, *space)
    assert result.code == 0, result.err
    assert "trial  bits/byte  step" in result.out
    best = min(rows(), key=lambda row: float(row["bits_per_byte"]))
    assert f"best     {float(best['bits_per_byte']):.4f} bits per byte" in result.out


def test_a_pruner_ends_a_run_that_does_worse(script, short, forked):
    values = "optimizer.lr=0.03,1e-9"
    steps = ("trainer.max_steps=100", "trainer.val_every_steps=5", "optimizer=adamw")
    pruner = ("sweep.pruner=median", "sweep.pruner_startup=1")
    result = script("sweep", *short, values, *steps, *pruner, "callbacks.samples=null")
    assert result.code == 0, result.err
    assert [row["state"] for row in rows()] == ["done", "pruned"]
    assert int(rows()[1]["step"]) < 100
    # The run is saved where it was ended.
    assert last(Path(rows()[1]["run"]))["global_step"] < 100


def test_what_is_tried_cannot_change_amid_a_sweep(script, short, forked):
    assert script("sweep", *short, RATES).code == 0
    for other, message in [
        (("optimizer.lr=0.01,0.04",), "is a sweep with optimizer.lr=0.01,0.03, got 0.01,0.04"),
        ((*SPACE,), "is a sweep with model.n_layers=1, got None"),
        ((RATES, "trainer.max_steps=5"), "is a sweep with trainer.max_steps=4, got 5"),
        ((RATES, "sweep.seed=2"), "is a sweep with seed=1, got 2"),
    ]:
        result = script("sweep", *short, *other)
        assert result.code == 2
        assert message in result.err
        assert "name=OTHER begins another sweep" in result.err
    assert script("sweep", *short, RATES, "name=other").code == 0
    assert len(rows("other")) == 2


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["optimizer.lr=0.1"], "a sweep must vary something"),
        (["optimizer.lrr=0.1,0.2"], "no configuration here has the key optimizer.lrr"),
        (["optimizer.lr=0.1,fast"], "lr must be a finite number"),
        (["model.n_heads=2,3"], "d_model must be a multiple of n_heads"),
        (["sweep=nope", RATES], "sweep must be one of default, muon_lr, got nope"),
        (["sweep.trails=3", RATES], "the nearest is sweep.trials"),
        (["launcher=slurm", RATES], "launcher=slurm needs SLURM, and there is no srun here"),
        (["--jobs", "0", RATES], "launcher.jobs must be a whole number of at least 1"),
        (["resume=runs/latest", RATES], "a sweep goes on when it is typed again"),
        (["name=a,b", RATES], "name must be the same for all runs of a sweep"),
        (["callbacks.checkpoints=null", RATES], "which callbacks.checkpoints keeps"),
        (["--multirun", RATES], "unrecognized arguments: --multirun"),
        (["--job", "2", RATES], "unrecognized arguments: --job"),
        (["optimizer.lr=tag(lgo,interval(0.1,1))"], "the tag of optimizer.lr must be log, got lgo"),
        (["model.n_layers=range(1,10000000)"], "model.n_layers must have at most 1,000 values"),
        (["sweep.params.seed=3", RATES], "what is varied is typed by itself"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(script, short, typed, message):
    result = script("sweep", *short, *typed)
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert message in result.err
    assert not list(Path().glob("runs/*/sweep/trials"))


def test_a_text_without_a_word_is_told_before_anything_is_trained(script, short, tmp_path):
    (tmp_path / "my.txt").write_text("")
    result = script("sweep", *short, RATES)
    assert result.code == 2
    assert result.err == "error: my.txt must hold text, got none\n"
    assert not list(Path().glob("runs/*/sweep/*.yaml"))


def test_a_file_of_ones_own_describes_a_space(script, short, forked, tmp_path):
    own = tmp_path / "mine" / "sweep"
    own.mkdir(parents=True)
    (own / "rates.yaml").write_text(
        "defaults: [default, _self_]\nname: rates\nparams:\n  optimizer: adamw\n  optimizer.lr: [0.01, 0.02]\n"
    )
    result = script("sweep", "--config-dir", "mine", "sweep=rates", *short, "optimizer.eps=1e-7")
    assert result.code == 0, result.err
    assert [row["optimizer.lr"] for row in rows("rates")] == ["0.01", "0.02"]

    (own / "rates.yaml").write_text("defaults: [default, _self_]\ntrails: 3\n")
    result = script("sweep", "--config-dir", "mine", "sweep=rates", *short)
    assert result.code == 2
    assert "rates.yaml has the key sweep.trails" in result.err


def test_of_two_overrides_of_a_key_the_later_counts(script, short, forked):
    assert script("sweep", *short, RATES, "optimizer.lr=0.02,0.05", "seed=1,2", "seed=3").code == 0
    assert [row["optimizer.lr"] for row in rows()] == ["0.02", "0.05"]
    assert "seed" not in rows()[0]


def test_a_trial_on_another_text_is_not_compared(script, short, forked, tmp_path):
    drawn = (*short, "optimizer.lr=interval(0.01,0.02)", "sweep.sampler=random")
    assert script("sweep", *drawn, "sweep.trials=1").code == 0
    (tmp_path / "my.txt").write_text("Another text.\n" * 200)
    result = script("sweep", *drawn, "sweep.trials=2")
    assert result.code == 1
    assert "failed   trial 1: the text has changed since trial 0 was trained" in result.out


def test_a_checkpoint_that_is_damaged_later_costs_no_loss(script, short, forked, monkeypatch):
    def train_and_damage(job):
        job()
        (checkpoint,) = Path("runs/sweep").glob("*trial*/checkpoints/last.ckpt")
        checkpoint.write_bytes(b"")

    monkeypatch.setattr(Launcher, "submit", lambda self, job: Forked(lambda: train_and_damage(job)))
    drawn = ("optimizer.lr=interval(0.01,0.02)", "sweep.sampler=random", "sweep.trials=1")
    result = script("sweep", *short, *drawn)
    assert result.code == 0, result.err
    assert [row["state"] for row in rows()] == ["done"]


def test_a_folder_that_is_copied_names_its_own_runs(script, short, forked, tmp_path):
    assert script("sweep", *short, RATES).code == 0
    shutil.copytree("runs", "copy")
    shutil.rmtree("runs")
    result = script("sweep", *short, RATES, "runs_dir=copy")
    assert result.code == 0, result.err
    assert ", copy/sweep/" in result.out
    assert "started" not in result.out

    # A best run that is gone is told.
    best = min(rows_in("copy"), key=lambda row: float(row["loss"]))
    shutil.rmtree(best["run"])
    result = script("sweep", *short, RATES, "runs_dir=copy")
    assert result.code == 0, result.err
    assert "whose folder is gone" in result.out


def rows_in(folder):
    with Path(folder, "sweep", "sweep", "table.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_full_disk_is_tried_again_and_a_mistake_is_not(script, short, forked, monkeypatch):
    from gptmini.commands import fitting

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "finish_loggers", full)
        result = script("sweep", *short, RATES, "sweep.retries=1")
    assert result.code == 1
    assert result.out.count("again    trial 0 is not done: ") == 1
    assert result.out.endswith("gave up  2 of 2; the same command tries them again\n")
    assert [row["state"] for row in rows()] == ["waiting", "waiting"]
    assert "No space left on device (2 times)" in rows()[0]["reason"]

    # When there is room again, the same command goes on with both.
    result = script("sweep", *short, RATES, "sweep.retries=1")
    assert result.code == 0, result.err
    assert [(row["state"], row["reason"]) for row in rows()] == [("done", "")] * 2
    assert len([run for run in Path("runs/sweep").glob("2*") if run.is_dir()]) == 2


def test_a_sweep_is_compared_whole(script, short, forked):
    assert script("sweep", *short, RATES).code == 0
    result = script("report", "--compare", "runs/sweep")
    assert result.code == 0, result.err
    page = Path("compare.html").read_text()
    for row in rows():
        assert Path(row["run"]).name in page


def processes(folder):
    """The processes whose command line or environment belongs to a sweep in a folder, as Linux lists them."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            is_here = (entry / "cwd").resolve() == folder
        except OSError:
            continue
        if is_here:
            found.append(int(entry.name))
    return found


def kill(processes):
    """Kill processes, some of which may have ended."""
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs Linux's list of processes")
def test_kills_at_random_instants_lose_and_double_nothing(script, short, forked, tmp_path):
    space = (*short, RATES, "trainer.max_steps=30", "trainer.threads=1")
    assert script("sweep", *space, "name=undisturbed").code == 0

    # Processes of their own, started as a user starts them, by submitit.
    command = [sys.executable, "-m", "gptmini", "sweep", *space, "--jobs", "2", "name=killed"]
    chance = random.Random(1)
    with (tmp_path / "log").open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    # First one process that trains, if there is one yet, then all that are there.
    time.sleep(chance.uniform(4, 8))
    kill([pid for pid in processes(tmp_path.resolve()) if pid != process.pid][:1])
    time.sleep(chance.uniform(1, 4))
    kill(processes(tmp_path.resolve()))
    process.wait(timeout=60)

    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert figures("killed") == figures("undisturbed")
    for ours, theirs in zip(rows("killed"), rows("undisturbed"), strict=True):
        weights = last(Path(ours["run"]))["state_dict"]
        for name, weight in last(Path(theirs["run"]))["state_dict"].items():
            assert weights[name].equal(weight)
    runs = [path for path in Path("runs/killed").iterdir() if (path / "config.yaml").is_file()]
    assert len(runs) == 2


# A pretended SLURM: programs of its names on the path, which keep the process of each job in a file.
JOBS = """#!{python}
import os, re, subprocess, sys
state = "{state}"

def start(script, number):
    out = re.search(r"#SBATCH --output=(\\S+)", open(script).read())[1]
    environment = os.environ | dict(
        SLURM_JOB_ID=number, SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="1", SLURM_JOB_NAME="submitit",
        SLURM_NTASKS="1", SLURM_LOCALID="0", SLURM_NODEID="0", SLURM_JOB_NUM_NODES="1",
    )
    process = subprocess.Popen(
        ["bash", script], env=environment, stdout=open(out.replace("%j", number), "a"),
        stderr=subprocess.STDOUT, start_new_session=True,
    )
    open(state + "/" + number, "w").write(str(process.pid))
"""
SLURM = {
    # Starts the script that submitit has written, and prints the job's number.
    "sbatch": JOBS
    + """
number = str(1000 + len(os.listdir(state)))
script = state + "/../script-" + number
open(script, "w").write(open(sys.argv[-1]).read())
start(script, number)
print("Submitted batch job " + number)
""",
    # Starts a job's script again, under its old number.
    "scontrol": JOBS
    + """
assert sys.argv[1] == "requeue"
open(state + "/../requeued", "a").write(sys.argv[2] + " ")
start(state + "/../script-" + sys.argv[2], sys.argv[2])
""",
    # Runs Python, which comes after its options.
    "srun": """#!{python}
import os, sys
words = sys.argv[1:]
at = words.index("{python}")
os.execvp(words[at], words[at:])
""",
    "sacct": """#!{python}
import os
print("JobID|State|NodeList")
for number in os.listdir("{state}"):
    pid = open("{state}/" + number).read()
    state = "RUNNING" if os.path.exists("/proc/" + pid) else "COMPLETED"
    print(number + "|" + state + "|here")
""",
    "scancel": "#!{python}\n",
}


@pytest.fixture
def slurm(script, monkeypatch, tmp_path):  # script chooses the working folder
    """The folder of a pretended SLURM."""
    programs = tmp_path / "bin"
    programs.mkdir()
    state = tmp_path / "slurm" / "jobs"
    state.mkdir(parents=True)
    for name, text in SLURM.items():
        path = programs / name
        path.write_text(text.replace("{python}", sys.executable).replace("{state}", str(state)))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return state.parent


def test_jobs_of_slurm_train_the_runs(script, short, slurm, tmp_path):
    asks = (
        "launcher=slurm",
        "launcher.partition=gpu",
        "launcher.account=lab",
        "launcher.qos=high",
        "launcher.timeout_min=90",
        "launcher.cpus=3",
        "launcher.memory_gb=8",
        "launcher.setup=['export FROM_SETUP=1']",
        "launcher.options={constraint: h100}",
    )
    result = script("sweep", *short, RATES, *asks)
    assert result.code == 0, result.err
    assert [row["state"] for row in rows()] == ["done", "done"]

    # submitit has asked for what was typed.
    asked = (slurm / "script-1000").read_text()
    for option in (
        "--partition=gpu",
        "--account=lab",
        "--qos=high",
        "--time=90",
        "--cpus-per-task=3",
        "--mem=8GB",
        "--gpus-per-node=1",
        "--constraint=h100",
    ):
        assert f"#SBATCH {option}\n" in asked
    assert "\nexport FROM_SETUP=1\n" in asked

    # The jobs took their values from the sweep: each run folder keeps what was typed.
    labels = [Path(row["run"]).name.partition("_trial-")[2] for row in rows()]
    assert labels == ["0_lr-0.01", "1_lr-0.03"]


def wait_for(condition, seconds=90):
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_job_whose_time_ends_goes_on_and_one_outlives_the_sweep(short, slurm, tmp_path):
    steps = ("trainer.max_steps=300", "trainer.val_every_steps=300", "trainer.threads=1")
    drawn = ("optimizer.lr=interval(0.01,0.03)", "sweep.sampler=random", "sweep.trials=1")
    space = (*short, *drawn, *steps, "callbacks.checkpoints.every_steps=10")
    command = [sys.executable, "-m", "gptmini", "sweep", *space, "launcher=slurm", "--jobs", "1"]
    with (tmp_path / "log").open("w") as out:
        sweep = subprocess.Popen(command, stdout=out, stderr=out)
    process = tmp_path / "runs/sweep/sweep/trials/0000/process"
    wait_for(lambda: list(tmp_path.glob("runs/sweep/*_trial-0_*/checkpoints/last.ckpt")))

    # The sweep ends; its job goes on, and is told that its time is over, as submitit asks SLURM to tell it.
    sweep.send_signal(signal.SIGINT)
    assert sweep.wait(timeout=60) == 130
    assert "go on without the sweep" in (tmp_path / "log").read_text()
    os.kill(int(process.read_text()), signal.SIGUSR2)
    wait_for((slurm / "requeued").exists)
    assert (slurm / "requeued").read_text() == "1000 "

    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "started  trial 0" not in done.stdout  # its job was taken up
    assert [row["state"] for row in rows()] == ["done"]
    assert len([run for run in Path("runs/sweep").glob("2*") if run.is_dir()]) == 1
    assert last(Path(rows()[0]["run"]))["global_step"] == 300
