"""N steps without interruption equal N steps with any number of kills and resumes, bit for bit."""

import shutil
import signal

import lightning as L
import pytest
import torch

from gptmini.runs.resume import find_training_state, make_latest
from gptmini.training.callbacks.checkpoints import RunCheckpoints, Stop
from gptmini.training.callbacks.samples import Samples
from gptmini.training.callbacks.scalars import Scalars
from training.watchers import Kill, KillAfter, Seen

STEPS = 11


class InValidation(L.Callback):
    """Ends the run inside the validation of a step, by a kill or by a stop request."""

    def __init__(self, step, error):
        self.step = step
        self.error = error

    def on_validation_batch_end(self, trainer, *hook):
        if trainer.global_step == self.step:
            raise self.error


class Texts(L.Callback):
    """Stores the run's batches and samples, by step."""

    def __init__(self, samples, kept):
        self.samples = samples
        self.kept = kept

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        place = ("batch", trainer.global_step, batch_idx % trainer.accumulate_grad_batches)
        self.kept[place] = tuple(batch[0].flatten().tolist())

    def on_validation_end(self, trainer, module):
        self.kept["sample", trainer.global_step] = self.samples.texts


class Run:
    """A run that starts or resumes in its folder, and all its logs, batches and samples."""

    def __init__(self, train, folder, *, save_every=2, **options):
        folder.mkdir()
        (folder / "config.yaml").write_text("")  # makes it a run folder
        self.train = train
        self.folder = folder
        self.save_every = save_every
        self.options = options
        self.seen = Seen()
        self.kept = {}

    def go(self, *ends):
        """Train from the latest checkpoint until a callback ends the run; return whether the run is complete."""
        state, warnings = find_training_state(self.folder)
        assert not warnings
        self.seen.resume(state.step if state else -1)
        if state:
            make_latest(state.path, state.step, self.folder)

        samples = Samples(prompts=["The"], seed=3, max_new_tokens=5, temperature=0.8, top_k=20)
        callbacks = [
            Scalars(every_steps=1),
            samples,
            Texts(samples, self.kept),
            RunCheckpoints(every_steps=self.save_every),
            *ends,
        ]
        where = {"loggers": [self.seen], "folder": self.folder, "state": state}
        try:
            self.trainer = self.train(callbacks=callbacks, **where, **self.options)
        except (Kill, Stop):
            return False
        return True


def assert_same(run, other):
    """Assert that weights, optimizer state, evaluation, curves, batches and samples are equal bit for bit."""
    assert run.seen.same_every_time() == other.seen.same_every_time()
    assert run.kept == other.kept
    one = run.trainer
    other = other.trainer
    assert one.global_step == other.global_step == run.options["max_steps"]
    assert one.lightning_module.evaluation == other.lightning_module.evaluation
    weights = one.lightning_module.model.state_dict()
    other_weights = other.lightning_module.model.state_dict()
    assert weights.keys() == other_weights.keys()
    for name in weights:
        assert torch.equal(weights[name], other_weights[name]), name

    optimizer = one.optimizers[0].state_dict()
    other_optimizer = other.optimizers[0].state_dict()
    groups = zip(optimizer["param_groups"], other_optimizer["param_groups"], strict=True)
    for group, other_group in groups:
        # The learning rate depends on the step. A run without a step does not set it.
        assert group | {"lr": None} == other_group | {"lr": None}

    assert optimizer["state"].keys() == other_optimizer["state"].keys()
    for i, state in optimizer["state"].items():
        for key, value in state.items():
            assert torch.equal(value, other_optimizer["state"][i][key]), (i, key)


CASES = {
    "accumulation": {"kind": "modern", "batch_size": 2, "dropout": 0.1, "gradient_clip": None},
    "bf16": {"precision": "bf16", "dropout": 0.2, "gradient_clip": 0.01, "ema_steps": 3},
    "rarely validated": {"val_every_steps": 50, "ema_steps": 4},
    "often validated": {"kind": "modern", "val_every_steps": 1, "dropout": 0.3},
    "muon": {"kind": "modern", "optimizer": "muon", "batch_size": 4, "ema_steps": 5},
    "an optimizer of one's own": {"optimizer": "sgd", "ema_steps": 2},
}


@pytest.fixture
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


# Only one case uses two threads, which are slow if other programs run too.
SLOW_CASES = [
    pytest.param(case, 2 if case == "rarely validated" else 1, marks=pytest.mark.slow)
    for case in CASES
]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "threads"), [("plain", 1), *SLOW_CASES], indirect=["threads"])
@pytest.mark.usefixtures("threads")
def test_kills_and_resumes_change_no_bit(train, tmp_path, case):
    options = {"kind": "gpt2", "val_every_steps": 3} | CASES.get(case, {}) | {"max_steps": STEPS}
    micro_steps = 8 // options.get("batch_size", 8)
    kills = [
        KillAfter(1),
        KillAfter(4 * micro_steps),
        KillAfter(3 * micro_steps - micro_steps // 2),
    ]
    if options["val_every_steps"] == 3:  # at step 6, which is saved after its validation
        kills.append(InValidation(6, Kill()))

    straight = Run(train, tmp_path / "straight", **options)
    assert straight.go()
    killed = Run(train, tmp_path / "killed", **options)
    for kill in kills:
        assert not killed.go(kill)
    assert killed.go()
    assert_same(straight, killed)


@pytest.mark.slow
def test_kills_and_resumes_change_no_bit_when_compiled(train, tmp_path):
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler on a CPU")
    options = {
        "kind": "modern",
        "sizes": {"n_layers": 1},  # halves the compile time
        "max_steps": 5,
        "compile": True,
        "dropout": 0.2,
    }
    straight = Run(train, tmp_path / "straight", **options)
    assert straight.go()
    killed = Run(train, tmp_path / "killed", **options)
    assert not killed.go(KillAfter(3))
    torch.compiler.reset()  # as in a new process
    assert killed.go()
    assert_same(straight, killed)


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 6])  # 6 is the last step
def test_a_validation_that_a_signal_ended_is_done_first_by_the_resumed_run(train, tmp_path, step):
    options = {"max_steps": 6, "val_every_steps": 4, "dropout": 0.3}
    straight = Run(train, tmp_path / "straight", save_every=5, **options)
    assert straight.go()

    stopped = Run(train, tmp_path / "stopped", save_every=5, **options)
    assert not stopped.go(InValidation(step, Stop(signal.SIGTERM)))
    state, _ = find_training_state(stopped.folder)
    assert state.step == step

    assert stopped.go()
    assert_same(straight, stopped)
    state, _ = find_training_state(stopped.folder)
    assert state.validated_step == 6
