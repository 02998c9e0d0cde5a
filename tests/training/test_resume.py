"""Bit for bit: N steps straight equal N steps with any number of kills and resumes between them."""

import math
import shutil

import lightning as L
import pytest
import torch

from gptmini.checkpoint.file import read_checkpoint
from gptmini.runs import adopt, find_training_state
from gptmini.training.checkpoints import RunCheckpoints, Stop
from gptmini.training.monitoring.samples import Samples
from gptmini.training.monitoring.scalars import Scalars
from training.watchers import Kill, KillAfter, Seen

STEPS = 11


class KillInValidation(L.Callback):
    """Ends the run inside its first validation."""

    def on_validation_batch_end(self, *hook):
        raise Kill


class Record:
    """Everything that a run logs, reads and samples, however often it is killed."""

    def __init__(self):
        self.seen = Seen()
        self.kept = {}

    def assert_same(self, other):
        assert self.seen.points == other.seen.points
        assert self.kept == other.kept


class Texts(L.Callback):
    """Keeps the batches that the run reads and the samples that it writes, by step."""

    def __init__(self, samples, kept):
        self.samples = samples
        self.kept = kept

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        place = ("batch", trainer.global_step, batch_idx % trainer.accumulate_grad_batches)
        self.kept[place] = tuple(batch[0].flatten().tolist())

    def on_validation_end(self, trainer, module):
        self.kept["sample", trainer.global_step] = self.samples.texts


def go(train, folder, record, *, kill=None, save_every=2, **options):
    """Start or resume the run in folder; returns the trainer, or None if it was killed."""
    state, warnings = find_training_state(folder)
    assert not warnings
    record.seen.resume(state.step if state else -1)
    if state:
        adopt(state.path, state.step, folder)

    samples = Samples(prompts=["The"], seed=3, max_new_tokens=5, temperature=0.8, top_k=20)
    callbacks = [
        Scalars(every_steps=1),
        samples,
        Texts(samples, record.kept),
        RunCheckpoints(every_steps=save_every),
    ]
    if kill:
        callbacks.append(kill)

    try:
        return train(
            callbacks=callbacks, loggers=[record.seen], folder=folder, state=state, **options
        )
    except Kill:
        return None


def assert_same(one, other):
    """Every weight and every number of the optimizer is equal, bit for bit."""
    weights = one.lightning_module.model.state_dict()
    other_weights = other.lightning_module.model.state_dict()
    assert weights.keys() == other_weights.keys()
    for name in weights:
        assert torch.equal(weights[name], other_weights[name]), name

    optimizer = one.optimizers[0].state_dict()
    other_optimizer = other.optimizers[0].state_dict()
    groups = zip(optimizer["param_groups"], other_optimizer["param_groups"], strict=True)
    for group, other_group in groups:
        # The learning rate follows from the step. A run that does no step sets none.
        assert group | {"lr": None} == other_group | {"lr": None}

    assert optimizer["state"].keys() == other_optimizer["state"].keys()
    for i, state in optimizer["state"].items():
        for key, value in state.items():
            assert torch.equal(value, other_optimizer["state"][i][key]), (i, key)


CASES = {
    "plain": {},
    "dropout": {"dropout": 0.3},
    "accumulation": {"batch_size": 2, "dropout": 0.1},
    "no clipping": {"gradient_clip": None},
    "hard clipping": {"gradient_clip": 0.01},
    "bf16": {"precision": "bf16", "dropout": 0.2},
    "often validated": {"val_every_steps": 1},
    "rarely validated": {"val_every_steps": 50},
    "muon": {"optimizer": "muon", "batch_size": 4},
    "an optimizer of one's own": {"optimizer": "sgd"},
}


@pytest.fixture
def run_folder(tmp_path):
    def make(name):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.yaml").write_text("")  # makes it a run folder
        return folder

    return make


# Every case on one thread, and one case on two; the plain case stays among the quick tests.
CASES_AND_THREADS = [
    pytest.param(case, 1, marks=pytest.mark.slow) for case in CASES if case != "plain"
]
CASES_AND_THREADS += [("plain", 1), pytest.param("accumulation", 2, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("case", "threads"), CASES_AND_THREADS)
@pytest.mark.parametrize("kind", ["gpt2", "modern"])
def test_kills_and_resumes_change_no_bit(train, run_folder, kind, case, threads):
    options = {"val_every_steps": 3} | CASES[case] | {"kind": kind, "max_steps": STEPS}
    micro_steps = 8 // options.get("batch_size", 8)
    kills = [
        KillAfter(1),
        KillAfter(4 * micro_steps),
        KillAfter(3 * micro_steps - micro_steps // 2),
    ]
    if options["val_every_steps"] == 3:  # at step 6, which is saved when its validation is done
        kills.append(KillInValidation())

    expected = Record()
    record = Record()
    folder = run_folder("killed")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        straight = go(train, run_folder("straight"), expected, **options)
        for kill in kills:
            assert go(train, folder, record, kill=kill, **options) is None
        resumed = go(train, folder, record, **options)
    finally:
        torch.set_num_threads(before)

    assert straight.global_step == resumed.global_step == STEPS
    assert_same(straight, resumed)
    record.assert_same(expected)
    assert straight.lightning_module.evaluation == resumed.lightning_module.evaluation


@pytest.mark.slow
def test_kills_and_resumes_change_no_bit_when_compiled(train, run_folder):
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler on a CPU")
    options = {"kind": "modern", "max_steps": 5, "compile": True, "dropout": 0.2}
    expected = Record()
    record = Record()
    folder = run_folder("killed")

    straight = go(train, run_folder("straight"), expected, **options)
    assert go(train, folder, record, kill=KillAfter(3), **options) is None
    torch.compiler.reset()  # as in a new process
    resumed = go(train, folder, record, **options)

    assert_same(straight, resumed)
    assert record.seen.points == expected.seen.points


def test_a_resume_at_every_single_step_changes_no_bit(train, run_folder):
    options = {
        "kind": "modern",
        "max_steps": STEPS,
        "dropout": 0.3,
        "val_every_steps": 4,
        "save_every": 1,
    }
    expected = Record()
    record = Record()
    folder = run_folder("killed")

    straight = go(train, run_folder("straight"), expected, **options)
    for _ in range(STEPS - 1):  # killed in the step after the one that is saved
        assert go(train, folder, record, kill=KillAfter(2), **options) is None
    resumed = go(train, folder, record, **options)

    assert_same(straight, resumed)
    record.assert_same(expected)
    assert math.isfinite(expected.seen.points["val/loss", STEPS])


class StopInValidation(L.Callback):
    """Asks to stop amid the validation that follows a step, as a signal does."""

    def __init__(self, step):
        self.step = step

    def on_validation_batch_end(self, trainer, *hook):
        if trainer.global_step == self.step:
            raise Stop(143, "SIGTERM")


@pytest.mark.parametrize("step", [4, 6])  # 6 is the last step
def test_a_validation_that_a_signal_ended_is_done_first_by_the_resumed_run(train, run_folder, step):
    options = {"max_steps": 6, "val_every_steps": 4, "save_every": 5, "dropout": 0.3}
    expected = Record()
    record = Record()
    folder = run_folder("stopped")
    straight = go(train, run_folder("straight"), expected, **options)

    with pytest.raises(SystemExit):
        go(train, folder, record, kill=StopInValidation(step), **options)
    state, _ = find_training_state(folder)
    assert state.step == step

    resumed = go(train, folder, record, **options)
    assert_same(straight, resumed)
    record.assert_same(expected)
    state, _ = find_training_state(folder)
    assert state.validated_step == 6


@pytest.mark.parametrize(
    "change",
    [
        lambda checkpoint: checkpoint.pop("optimizer_states"),
        # Files of the version before resuming did not have this number.
        lambda checkpoint: checkpoint["gptmini"].pop("validated_step"),
    ],
)
def test_a_file_that_lacks_part_of_the_training_state_is_refused(train, run_folder, change):
    folder = run_folder("one")
    train(max_steps=4, callbacks=[RunCheckpoints(every_steps=4)], folder=folder)
    path = folder / "checkpoints" / "last.ckpt"
    checkpoint = read_checkpoint(path)
    change(checkpoint)
    torch.save(checkpoint, path)

    wanted = r"last\.ckpt holds no training state that this version can go on from"
    with pytest.raises(ValueError, match=wanted):
        find_training_state(path)
