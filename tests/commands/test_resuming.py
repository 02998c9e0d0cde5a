"""What a user sees of resume=: whatever ended a run, it goes on in its folder to the same weights, best and curves."""

import errno
import math
import os
import pickle
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer, record_writer

import gptmini
from gptmini.commands.stored import RESUMABLE
from gptmini.model.checkpoint import read_checkpoint
from gptmini.optim.schedules import trapezoid
from gptmini.report.reading import read_overrides, read_scalars
from gptmini.run_folder import locked
from gptmini.training.checkpointing import AtomicCheckpointIO
from gptmini.training.monitoring import events
from gptmini.training.monitoring.samples import Samples
from gptmini.training.monitoring.scalars import Scalars

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
LONG = ("trainer.max_steps=7", "trainer.batch_size=2", "model.dropout=0.2", "callbacks.checkpoints.every_steps=3")
EACH = ("trainer.val_every_steps=3", "callbacks.checkpoints.every_steps=1")  # after 5 steps: last 5, previous 4, best 3
STRAIGHT = {}  # folders of uninterrupted runs, by their overrides


class Kill(BaseException):
    """Ends a run like SIGKILL: nothing of ours may answer it."""


def die():
    raise Kill


@contextmanager
def when(step, act, hook="on_train_batch_start", owner=Scalars):
    """Act once, in a hook of a callback, after so many optimizer steps; if none is named, as the next one begins."""
    before = getattr(owner, hook)
    with pytest.MonkeyPatch.context() as patch:

        def then(self, trainer, *rest):
            before(self, trainer, *rest)
            if trainer.global_step == step:
                patch.undo()
                act()

        patch.setattr(owner, hook, then)
        yield


@contextmanager
def killed(step, *where):
    with when(step, die, *where), pytest.raises(Kill):
        yield


@pytest.fixture(autouse=True)
def _event_files_are_named_in_their_order(monkeypatch):
    """Files of one process and second are told apart by a number, which TensorBoard sorts as text: 10 before 9."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(100))


@pytest.fixture
def begin(script, short):
    return lambda *overrides: script("train", *short, *LONG, *overrides)


@pytest.fixture
def resume(script):
    return lambda *overrides, run="runs/latest": script("train", f"resume={run}", *overrides)


@pytest.fixture
def straight(begin, tmp_path_factory):
    def folder(*overrides):
        if overrides not in STRAIGHT:
            assert begin(*overrides).code == 0
            STRAIGHT[overrides] = shutil.copytree(newest(), tmp_path_factory.mktemp("straight") / "run")
        return STRAIGHT[overrides]

    return folder


def newest():
    return Path("runs/latest/config.yaml").resolve().parent


def last(folder, name="last"):
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)


def curves(folder):
    """Scalars but time and memory, texts and images as [(step, value), ...] by tag, as TensorBoard reads the folder."""
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "images": 0}).Reload()
    tags = read.Tags()
    points = {tag: read.Scalars(tag) for tag in tags["scalars"] if not tag.startswith("work/")}
    points = {tag: [(event.step, event.value) for event in found] for tag, found in points.items()}
    points |= {tag: [(e.step, list(e.tensor_proto.string_val)) for e in read.Tensors(tag)] for tag in tags["tensors"]}
    return points | {tag: [(e.step, e.encoded_image_string) for e in read.Images(tag)] for tag in tags["images"]}


def steps(folder, tag):
    return [step for step, _ in curves(folder)[tag]]


def assert_same(folder, other):
    """Weights, moments and best bit for bit; curves, samples and the configuration point for point, each once."""
    for name in ("last", "best"):
        one, two = last(folder, name), last(other, name)
        assert one["global_step"] == two["global_step"]
        assert one["callbacks"] == two["callbacks"]
        assert one["state_dict"].keys() == two["state_dict"].keys()
        assert all(torch.equal(weight, two["state_dict"][key]) for key, weight in one["state_dict"].items())
        for i, state in one["optimizer_states"][0]["state"].items():
            moments = two["optimizer_states"][0]["state"][i]
            assert all(torch.equal(value, moments[key]) for key, value in state.items())
    assert curves(folder) == curves(other)
    assert steps(folder, "train/lr/matrices") == [1, 2, 3, 4, 5, 6, 7]
    assert steps(folder, "setup/config/text_summary") == [0]


def snapshot(folder):
    """Name and bytes of every file but the log and the lock."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("train.log", ".lock")]
    return {path.relative_to(folder): path.read_bytes() for path in files}


def assert_refused(result, *said):
    assert result.code == 2
    assert re.fullmatch(r"error: [^\n]+\n", result.err)
    assert all(text in result.err for text in said), result.err


def assert_whole(folder):
    """Every checkpoint can be read, and nothing half written is left."""
    for path in folder.glob("checkpoints/*.ckpt"):
        read_checkpoint(path)
    assert list(folder.rglob("*.tmp")) == []


KILLS = {
    "before the first checkpoint": (1, "on_train_batch_end"),
    "after its step is saved": (3,),
    "amid a validation": (4, "on_validation_batch_end"),
    "before its step is saved": (5, "on_train_batch_end"),
    "amid a step": (5, "on_before_optimizer_step"),
    "between a validation and its save": (6, "on_validation_end", Samples),
    "before the last save": (7, "on_validation_end", Samples),
}


@pytest.mark.parametrize("kill", KILLS)
def test_a_killed_run_resumes_to_the_same_weights_best_and_events(straight, begin, resume, kill):
    reference = straight()
    with killed(*KILLS[kill]):
        begin()
    result = resume()
    assert result.code == 0
    assert ("nothing was saved yet: from the first step" in result.out) == (kill == "before the first checkpoint")
    assert_same(newest(), reference)


def test_pictures_of_a_resumed_run_are_drawn_once_and_equal(script, watched, resume, tmp_path_factory):
    assert script("train", *watched, *LONG, *EACH).code == 0
    reference = shutil.copytree(newest(), tmp_path_factory.mktemp("watched") / "run")
    with killed(6, "on_validation_end", Samples):
        script("train", *watched, *LONG, *EACH)
    assert resume().code == 0
    seen = curves(newest())
    assert [step for step, _ in seen["zoom/attention"]] == [3, 6, 7]
    assert [step for step, _ in seen["zoom/mispredicted/text_summary"]] == [3, 6, 7]
    assert seen == curves(reference)
    (tokens,) = newest().glob("plugins/*/embedding.tsv")
    assert tokens.read_text() == next(reference.glob("plugins/*/embedding.tsv")).read_text()


def test_any_number_of_kills_change_nothing(straight, begin, resume):
    reference = straight()
    for i, kill in enumerate(KILLS.values()):
        with killed(*kill):
            resume() if i else begin()
    assert resume().code == 0
    assert_same(newest(), reference)


@pytest.mark.parametrize("missing", [1, 30, 150])
def test_events_that_end_amid_a_record_are_made_good(straight, begin, resume, missing):
    reference = straight()
    with killed(5, "on_train_batch_end", Samples):
        begin()
    (events,) = newest().glob("events.*")
    os.truncate(events, events.stat().st_size - missing)  # of step 5, which is later than the newest checkpoint
    assert resume().code == 0
    assert_same(newest(), reference)


@pytest.mark.parametrize("where", [("on_validation_batch_end", Scalars), ("on_validation_end", Samples)])
def test_a_kill_amid_the_validation_that_a_stop_left_over_logs_it_once(straight, begin, resume, where):
    reference = straight()
    with when(6, lambda: signal.raise_signal(signal.SIGTERM), "on_train_batch_end"):
        assert begin().code == 143
    with killed(6, *where):
        resume()
    assert resume().code == 0
    assert_same(newest(), reference)


ASIDE = {
    "{run}": [],
    "{run}/checkpoints/last.ckpt": [],
    "{run}/checkpoints/previous.ckpt": ["last"],
    "{run}/checkpoints/best.ckpt": ["last", "previous"],
    "runs/latest/checkpoints/best.ckpt": ["last", "previous"],
}


@pytest.mark.parametrize("name", ASIDE)
def test_a_run_goes_on_from_any_of_its_files_and_later_ones_are_set_aside(straight, begin, resume, name):
    reference = straight(*EACH)
    with killed(5):
        begin(*EACH)
    folder, aside = newest(), ASIDE[name]
    before = {file: last(folder, file)["global_step"] for file in ("last", "previous", "best")}
    assert before == {"last": 5, "previous": 4, "best": 3}
    result = resume(run=name.format(run=folder.relative_to(Path.cwd())))
    assert result.code == 0
    assert_same(folder, reference)
    assert {path.name for path in folder.glob("*/set-aside*")} == {
        f"set-aside-{file}-{before[file]}.ckpt" for file in aside
    }
    said = re.findall(r"^warning  \S*/set-aside-(\w+)-\d+\.ckpt is of a later step.* set aside$", result.out, re.M)
    assert said == aside
    assert all(last(folder, f"set-aside-{file}-{before[file]}")["global_step"] == before[file] for file in aside)


def test_a_complete_run_resumes_to_nothing_but_the_news(begin, resume):
    begin()
    before, points = snapshot(newest() / "checkpoints"), curves(newest())
    for _ in range(2):
        result = resume()
        assert result.code == 0
        assert "last.ckpt, step 7 of 7; it is complete, trainer.max_steps= goes further\n" in result.out
        assert re.search(r"^done     0 steps in ", result.out, re.M)
    assert snapshot(newest() / "checkpoints") == before
    assert curves(newest()) == points


def test_more_steps_follow_the_longer_schedule_and_are_kept(begin, resume):
    begin()
    shape = {"warmup_steps": 2, "final_fraction": 0.0, "decay_fraction": 0.7}
    was, now = ([0.03 * trapezoid(step, max_steps=n, **shape) for step in range(12)] for n in (7, 12))
    with killed(9):
        resume("trainer.max_steps=12")
    said = f"max_steps was 7, is 12: the learning rate of the next step was {was[7]:.3g}, is {now[7]:.3g}\n"
    assert said in (newest() / "train.log").read_text()
    assert yaml.safe_load((newest() / "config.yaml").read_text())["trainer"]["max_steps"] == 12
    result = resume()
    assert result.code == 0
    assert "step 9 of 12\n" in result.out
    assert "max_steps was" not in result.out
    assert last(newest())["global_step"] == 12
    assert steps(newest(), "train/lr/matrices") == list(range(1, 13))
    assert [rate for _, rate in curves(newest())["train/lr/matrices"]] == pytest.approx([*was[:7], *now[7:]], rel=1e-6)


def test_fewer_steps_than_are_done_are_refused_and_nothing_changes(begin, resume):
    begin()
    before = snapshot(newest())
    assert_refused(resume("trainer.max_steps=6"), "trainer.max_steps must be at least the 7 done, got 6")
    assert snapshot(newest()) == before


REFUSED = (
    "optimizer.lr=1 seed=2 name=other model=gpt2 data=pydoc tokenizer=byte runs_dir=there trainer.global_batch_size=8 "
    "trainer.gradient_clip=2 trainer.precision=bf16 callbacks.samples.seed=2 ~callbacks.samples +trainer.foo=1 "
    "~trainer.max_steps +trainer.max_steps=9 trainer={max_steps:9} callbacks.scalars._target_=os.system"
)


@pytest.mark.parametrize("override", REFUSED.split())
def test_an_override_that_would_change_the_past_is_refused_by_name(begin, resume, override):
    begin()
    before = snapshot(newest())
    assert_refused(resume(override), f"error: {override} would change the past of ", "takes only trainer.max_steps, ")
    assert snapshot(newest()) == before


def micro_steps_since(folder):
    return last(folder)["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["ready"]


ALLOWED = {  # of a run killed at step 5 and resumed at step 4 of 7: the value given, and what it must do
    "trainer.max_steps": (6, lambda folder, out: last(folder)["global_step"] == 6),
    "trainer.max_time": (0.001, lambda folder, out: "stopped  by the time limit at step 5; saved as" in out),
    "trainer.max_bad_steps": (2, lambda folder, out: True),  # tried below
    "trainer.val_every_steps": (1, lambda folder, out: steps(folder, "val/loss") == [2, 4, 5, 6, 7]),
    "trainer.batch_size": (4, lambda folder, out: micro_steps_since(folder) == 3),
    "trainer.device": ("cpu", lambda folder, out: "machine  cpu, " in out),
    "trainer.devices": (1, lambda folder, out: micro_steps_since(folder) == 6),
    "trainer.compile": (False, lambda folder, out: ", eager, " in out),
    "trainer.threads": (2, lambda folder, out: torch.get_num_threads() == 2),
    "callbacks.scalars.every_steps": (4, lambda folder, out: steps(folder, "train/lr/matrices") == [1, 2, 3, 4, 7]),
    "callbacks.scalars.peak_tflops": (1, lambda folder, out: "work/mfu" in read_scalars(folder)),
    "callbacks.checkpoints.every_steps": (5, lambda folder, out: last(folder, "previous")["global_step"] == 5),
    "callbacks.samples": ("null", lambda folder, out: steps(folder, "samples/text_summary") == [2, 4]),
    "callbacks.pictures": ("null", lambda folder, out: not list(folder.glob("plugins"))),
    "console": ("quiet", lambda folder, out: out == ""),
}


def test_every_override_that_a_resumed_run_takes_is_tried_here():
    assert set(ALLOWED) == set(RESUMABLE)


@pytest.mark.parametrize("key", ALLOWED)
def test_an_override_of_how_it_is_computed_and_watched_takes_effect_and_is_kept(begin, resume, key):
    with killed(5):
        begin()
    value, took_effect = ALLOWED[key]
    try:
        result = resume(f"{key}={value}")
        assert result.code == 0
        assert took_effect(newest(), result.out), result.out
    finally:
        torch.set_num_threads(1)
    assert re.search(
        rf"^ *{key.rpartition('.')[2]}: {str(value).lower()}$", (newest() / "config.yaml").read_text(), re.M
    )


def test_a_new_limit_of_bad_steps_is_the_one_that_counts(begin, resume, monkeypatch):
    with killed(5):
        begin()
    monkeypatch.setattr("gptmini.model.loss.next_token_loss", lambda logits, targets: logits.sum() * math.nan)
    assert_refused(resume("trainer.max_bad_steps=2"), "2 steps in a row, to step 6, ")


@pytest.mark.parametrize("part", ["scalars", "checkpoints"])
def test_a_part_that_a_run_was_begun_without_cannot_be_given_an_interval(begin, resume, part):
    begin(f"~callbacks.{part}")
    before = snapshot(newest())
    assert_refused(resume(f"callbacks.{part}.every_steps=1"), f"callbacks.{part}")
    assert snapshot(newest()) == before


def flip(path, *, in_tensor):
    """Change one bit: amid the largest tensor, or of the step that the file says it is of."""
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        content = max(map(archive.read, archive.infolist()), key=len)
        if not in_tensor:
            content = next(archive.read(entry) for entry in archive.infolist() if entry.filename.endswith("data.pkl"))
    step = content.find(b"K\5", content.find(b"global_step"))
    raw[raw.index(content) + (len(content) // 2 if in_tensor else step + 1)] ^= 4
    path.write_bytes(raw)


DAMAGES = {
    "a bit of a tensor": lambda path: flip(path, in_tensor=True),
    "a bit of the step": lambda path: flip(path, in_tensor=False),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
}
RARE = ("trainer.val_every_steps=4", "callbacks.checkpoints.every_steps=5")  # after 5 steps: last 5, best 4


@pytest.mark.parametrize(("often", "used"), [(EACH, "previous.ckpt, step 4 of 7"), (RARE, "best.ckpt, step 4 of 7")])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_last_is_named_and_the_newest_good_file_used(straight, begin, resume, damage, often, used):
    reference = straight(*often)
    with killed(5):
        begin(*often)
    DAMAGES[damage](newest() / "checkpoints" / "last.ckpt")
    result = resume()
    assert result.code == 0
    assert re.search(r"^warning  \S*/checkpoints/last\.ckpt is ", result.out, re.M)
    assert f"/checkpoints/{used}" in result.out
    assert_same(newest(), reference)


def test_when_all_are_damaged_nothing_is_written(begin, resume):
    with killed(5):
        begin(*EACH)
    for name, damage in zip(("last", "previous", "best"), ("a bit of a tensor", "truncated", "empty"), strict=True):
        DAMAGES[damage](newest() / "checkpoints" / f"{name}.ckpt")
    before = snapshot(newest())
    assert_refused(resume(), "no checkpoint to resume from: ", "last.ckpt", "previous.ckpt", "best.ckpt")
    assert snapshot(newest()) == before


def test_a_run_that_another_process_trains_is_refused_and_the_process_named(begin, resume):
    with killed(5):
        begin()
    before = snapshot(newest())
    with locked(newest()):
        assert_refused(resume(), f"is being trained by process {os.getpid()}; stop it first")
    assert snapshot(newest()) == before
    assert resume().code == 0


@pytest.mark.parametrize(
    ("name", "step"), [*(("SIGTERM", step) for step in (0, 3, 4, 7)), ("SIGINT", 5), ("SIGUSR1", 5), ("time", 4)]
)
def test_a_stop_saves_its_step_says_how_to_go_on_and_changes_nothing(straight, begin, resume, monkeypatch, name, step):
    reference = straight("trainer.max_time=05:00")
    code, reason, clock = (
        (0, "the time limit", time.monotonic) if name == "time" else (128 + signal.Signals[name], name, 0)
    )

    def stop():
        if clock:
            monkeypatch.setattr(time, "monotonic", lambda: clock() + 301)
        else:
            signal.raise_signal(signal.Signals[name])

    with when(step, stop, "on_train_batch_end" if step else "on_train_start"):
        result = begin("trainer.max_time=05:00")
    assert result.code == code
    said = (
        rf"^stopped  by {reason} at step {step}; saved as \S+/last.ckpt\nnext     python scripts/train.py resume=(\S+)$"
    )
    assert last(newest())["global_step"] == step
    assert resume(run=re.search(said, result.out, re.M)[1]).code == 0
    assert_same(newest(), reference)


@pytest.mark.parametrize("second", ["at once", "while writing", "while flushing"])
def test_a_second_ctrl_c_ends_at_once_and_leaves_no_torn_file(straight, begin, resume, second):
    reference = straight()

    def interrupt(*descriptor):
        signal.raise_signal(signal.SIGINT)

    def write(checkpoint, file):
        file.write(b"the beginning")
        interrupt()

    with pytest.MonkeyPatch.context() as patch:
        parts = {"at once": interrupt, "while writing": lambda: patch.setattr(torch, "save", write)}
        parts["while flushing"] = lambda: patch.setattr(os, "fsync", interrupt)
        with when(5, lambda: [interrupt(), parts[second]()], "on_train_batch_end"):
            result = begin()
    assert result.code == 130
    assert re.search(r"^stopped  by .+ at step 5; \S+/last.ckpt is the newest checkpoint$", result.out, re.M)
    assert_whole(newest())
    assert resume().code == 0
    assert_same(newest(), reference)


def launch(*arguments):
    """A training process of its own that has begun to train."""
    command = [sys.executable, "scripts/train.py", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (line := process.stdout.readline()).startswith("step"):
        assert line, process.communicate(timeout=60)
    return process


def finish(process, *numbers):
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.001)
    out, err = process.communicate(timeout=60)
    assert err == ""
    return process.returncode, out


@pytest.mark.slow
def test_real_signals_stop_a_real_process_and_the_printed_command_goes_on(script, short, tmp_path):
    (tmp_path / "scripts").symlink_to(SCRIPTS)
    arguments, step = [*short, "trainer.max_steps=1000000", "trainer.val_every_steps=1000000"], 0
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        code, out = finish(launch(*arguments), number)
        assert code == 128 + number
        said = re.search(r"at step (\d+); saved as (\S+)\nnext     python scripts/train.py (resume=\S+)\n", out)
        assert int(said[1]) == read_checkpoint(Path(said[2]))["global_step"] > step
        step, arguments = int(said[1]), shlex.split(said[3])
    code, out = finish(launch(*arguments), signal.SIGINT, signal.SIGINT)
    assert code == 130
    assert_whole(newest())


def full(*arguments, **more):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half(checkpoint, file):
    file.write(b"the beginning")
    full()


FAULTS = {
    "opened": (Path, "open", full),
    "written": (torch, "save", half),
    "flushed": (os, "fsync", full),
    "linked": (os, "link", full),
    "renamed": (Path, "replace", full),
}


@pytest.fixture
def faulty(monkeypatch):
    """Let saves fail in one of their parts, if fails(step, name); returns last.ckpt as it is before each such save."""

    def arm(part, fails):
        save, seen = AtomicCheckpointIO.save_checkpoint, []

        def failing(self, checkpoint, path, storage_options=None):
            with pytest.MonkeyPatch.context() as patch:
                if fails(checkpoint["global_step"], Path(path).stem):
                    seen.append((newest() / "checkpoints" / "last.ckpt").read_bytes())
                    patch.setattr(*FAULTS[part])
                save(self, checkpoint, path)

        monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", failing)
        return seen

    return arm


@pytest.mark.parametrize("part", FAULTS)
def test_a_save_that_fails_is_said_leaves_the_old_file_and_training_goes_on(straight, begin, faulty, part):
    reference = straight(*EACH)
    seen = faulty(part, lambda step, name: step in (4, 5))
    with when(5, lambda: seen.append((newest() / "checkpoints" / "last.ckpt").read_bytes())):
        result = begin(*EACH)
    assert result.code == 0
    for step in (4, 5):
        said = rf"^last\.ckpt not saved at step {step}: No space left on device; \S+/last\.ckpt is as it was$"
        assert re.search(said, result.out, re.M)
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert_whole(newest())
    assert_same(newest(), reference)


@pytest.mark.parametrize("part", FAULTS)
def test_a_last_save_that_fails_ends_in_one_line_with_the_earlier_file_intact(straight, begin, resume, faulty, part):
    reference, room = straight(*EACH), []
    seen = faulty(part, lambda step, name: step == 7 and not room)
    assert_refused(begin(*EACH), "No space left on device")
    assert last(newest())["global_step"] == 6
    assert (newest() / "checkpoints" / "last.ckpt").read_bytes() == seen[0]
    assert_whole(newest())
    room.append("again")
    assert resume().code == 0
    assert_same(newest(), reference)


def test_a_best_that_could_not_be_saved_is_not_called_a_divergence(begin, faulty):
    faulty("written", lambda step, name: name == "best" and step > 2)
    result = begin("callbacks.checkpoints.every_steps=2", "trainer.val_every_steps=7")
    assert "best.ckpt not saved at step 7: No space left on device" in result.out
    assert "diverged" not in result.out


def test_a_checkpoint_larger_than_the_system_allows_is_said(begin):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # between the tokens and a checkpoint of 170 kB
    try:
        result = begin()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_refused(result, "last.ckpt: File too large")
    for name, step in (("best", 2), ("last", 3), ("best", 4), ("last", 6), ("last", 7)):
        assert f"{name}.ckpt not saved at step {step}: File too large; nothing is saved yet\n" in result.out
    assert list((newest() / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("outage", [(0, 4), (3, 5)])  # from a step to a step
def test_a_disk_that_is_full_for_a_while_costs_points_but_neither_the_run_nor_what_it_is(begin, monkeypatch, outage):
    write, now = record_writer.RecordWriter.write, {"step": 0, "failed": 0}
    began = Scalars.on_train_batch_start

    def step(self, trainer, *rest):
        now["step"] = trainer.global_step
        began(self, trainer, *rest)

    def guarded(self, data):
        if outage[0] <= now["step"] < outage[1]:
            now["failed"] += 1
            full()
        write(self, data)

    monkeypatch.setattr(events, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(Scalars, "on_train_batch_start", step)
    monkeypatch.setattr(record_writer.RecordWriter, "write", guarded)
    result = begin()
    assert result.code == 0, result.err
    assert now["failed"]
    assert "events   not written: No space left on device" in result.out
    seen = curves(newest())
    assert steps(newest(), "setup/config/text_summary") == [0]
    assert "custom_scalars__config__" in seen
    assert read_overrides(newest())
    assert seen["train/loss"][-1][0] == 7
    assert [path for path in newest().glob("events.*") if not path.stat().st_size] == []


@pytest.mark.parametrize(("owner", "name"), [(os, "open"), (Path, "write_text"), (Path, "open")])
def test_a_run_folder_that_cannot_be_written_is_refused_in_one_line(begin, resume, owner, name):
    with killed(5):
        begin()
    before, call, folder = snapshot(newest()), getattr(owner, name), newest()

    def guarded(path, *rest, **more):  # so that it holds for root too
        reading = not rest or rest[0] in ("r", "rb") or rest[0] == os.O_RDONLY
        if (name != "write_text" and reading) or not Path(path).absolute().is_relative_to(folder):
            return call(path, *rest, **more)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, guarded)
        assert_refused(resume(), str(folder.relative_to(Path.cwd())), "Read-only file system")
    assert snapshot(folder) == before


@pytest.mark.parametrize("part", ["events", "checkpoints"])
def test_a_resume_that_cannot_take_back_what_is_later_changes_nothing(begin, resume, monkeypatch, part):
    with killed(5):
        begin(*EACH)
    before, replace = snapshot(newest()), Path.replace
    if part == "events":
        monkeypatch.setattr(record_writer.RecordWriter, "write", full)
    else:
        monkeypatch.setattr(Path, "replace", lambda path, to: full() if path.suffix == ".ckpt" else replace(path, to))
    assert_refused(resume(run="runs/latest/checkpoints/best.ckpt"), "No space left on device")
    assert snapshot(newest()) == before


def keys(tree):
    """Every key of nested dicts, lists and tuples."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield str(key)
        if isinstance(value, dict | list | tuple):
            yield from keys(value)


def test_no_file_of_a_run_holds_random_state(straight):
    folder = straight()
    found = {key for name in ("last", "previous", "best") for key in keys(last(folder, name))}
    found |= {*keys(yaml.safe_load((folder / "config.yaml").read_text())), *curves(folder)}
    found |= set(EventAccumulator(str(folder)).Reload().Tags()["scalars"])
    assert {"optimizer_states", "exp_avg", "seed", "train/loss"} <= found
    assert [key for key in found if re.search("rng|random", key, re.I)] == []


def test_a_run_of_before_versions_were_written_is_refused_in_one_line(begin, resume):
    begin()
    path = newest() / "config.yaml"
    path.write_text("".join(line for line in path.open() if not line.startswith("version:")))
    before = snapshot(newest())
    assert_refused(resume(), "was begun by gptmini 0.1.0, which ", " cannot go on with; install gptmini 0.1.0")
    assert snapshot(newest()) == before


def test_files_name_the_version_that_wrote_them(begin):
    begin()
    assert last(newest())["gptmini"]["version"] == gptmini.__version__
    assert yaml.safe_load((newest() / "config.yaml").read_text())["version"] == gptmini.__version__


def test_the_optimizers_state_is_stored_by_the_names_of_the_weights(begin):
    begin()
    checkpoint = last(newest())
    (optimizer,) = checkpoint["optimizer_states"]
    assert set(optimizer["state"]) == set(checkpoint["state_dict"])
    for name, moments in optimizer["state"].items():
        shapes = {key: tuple(tensor.shape) for key, tensor in moments.items() if key != "step"}
        assert set(shapes.values()) == {tuple(checkpoint["state_dict"][name].shape)}, name


class Payload:
    def __reduce__(self):
        return os.system, ("touch executed",)


@pytest.mark.parametrize("kind", ["archive", "pickle"])
def test_a_checkpoint_with_code_in_it_is_refused_everywhere_and_not_run(begin, resume, script, kind):
    begin()
    checkpoint = last(newest()) | {"more": Payload()}
    for path in newest().glob("checkpoints/*.ckpt"):
        torch.save(checkpoint, path) if kind == "archive" else path.write_bytes(pickle.dumps(checkpoint))
    for run in ("runs/latest", "runs/latest/checkpoints/best.ckpt"):
        for result in (resume(run=run), script("sample", run), script("evaluate", run)):
            assert_refused(result, "best.ckpt")
    assert not Path("executed").exists()


CALL = "{_target_: shutil.copyfile, src: my.txt, dst: executed}"  # not on Hydra's own list of what it refuses
CONFIGS = {  # a block of config.yaml, and what stands there instead
    "a shell": ("optimizer", "{_target_: os.system, command: touch executed}"),
    "a block": ("optimizer", CALL),
    "one callback more": ("callbacks", f"{{more: {CALL}}}"),
    "deep inside": ("optimizer", f"{{_target_: gptmini.optim.adamw, _partial_: true, lr: [{{a: {CALL}}}]}}"),
    "its name by reference": (
        "optimizer",
        CALL.replace("shutil.copyfile", "'${called}'") + "\ncalled: shutil.copyfile",
    ),
    "its name made": ("optimizer", CALL.replace("shutil.copyfile", "'${oc.decode:shutil.copyfile}'")),
    "made": ("optimizer", f'"${{oc.create:{CALL}}}"'),
    "made, one callback more": ("callbacks", f'{{more: "${{oc.create:{CALL}}}"}}'),
    "made, behind a backslash": ("optimizer", f"'\\\\${{oc.create:{CALL}}}'"),
    "its argument in a list": ("optimizer", "{_target_: shutil.copyfile, _args_: [my.txt, executed]}"),
    "Python in YAML": ("optimizer", "!!python/object/apply:os.system [touch executed]"),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_configuration_that_calls_something_else_is_refused_and_not_run(begin, resume, kind):
    begin()
    block, text = CONFIGS[kind]
    path = newest() / "config.yaml"
    config = yaml.safe_load(path.read_text())
    del config[block]
    path.write_text(yaml.safe_dump(config) + f"{block}: {text}\n")
    before = snapshot(newest())
    try:
        assert_refused(resume())
    finally:
        assert not Path("executed").exists()
    assert snapshot(newest()) == before
