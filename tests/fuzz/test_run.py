"""A broken run folder to go on with: its checkpoint, or the configuration beside it."""

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fuzz.inputs import DAMAGE, NESTED, RAN, changed, changes, damaged, fuzz, same
from fuzz.outcomes import load, refused
from gptmini.commands.compose import compose
from gptmini.commands.resumed import going_on
from gptmini.commands.settings import build_settings
from gptmini.commands.train import assemble, train
from gptmini.data.store import TokenStore
from gptmini.runs import find_training_state
from gptmini.training import RunCheckpoints, build_trainer
from gptmini.training.moments import names_in

pytestmark = pytest.mark.slow  # together they take minutes


def go_on(run, path):
    """Best validation, configuration, weights and optimizer state with which a run goes on from a file."""
    state, _ = find_training_state(path)
    config, _ = going_on(*compose("train", [f"resume={run.path}"]))
    settings = build_settings(config)
    store = TokenStore(next(Path("data").iterdir()))

    module, _ = assemble(settings, store, state)
    (kept,) = (part for part in settings.callbacks if isinstance(part, RunCheckpoints))
    build_trainer(
        settings.trainer,
        run.path,
        device=settings.hardware.device,
        precision=settings.hardware.precision,
        callbacks=[kept],
        loggers=[],
        state=state,
    )

    optimizer = module.configure_optimizers()
    names = names_in(optimizer, module.parameters_by_name)
    state_of = optimizer.state_dict()["state"]
    moments = {names[number]: state_of[number] for number in state_of}
    return kept.best, asdict(module.model.config), dict(module.state_dict()), moments


# Keys that say where a run lies, which only the command line and gptmini's own configuration decide.
PLACES = {"data_dir": "data", "runs_dir": "runs", "resume": "runs/latest", "folder": None}


def resume(run, content):
    """Whether a run with this in its config.yaml is refused, or else the configuration with which it goes on."""
    (run.path / "config.yaml").write_bytes(content)
    read = []

    def act():
        config, typed = compose("train", [f"resume={run.path}", "trainer.max_steps=5"])
        read.append(OmegaConf.to_container(going_on(config, typed)[0]))
        train(config, typed)

    return refused(act) or read[0] | PLACES


def as_read(config):
    """What resume returns for a configuration that is taken as it stands, but for what is typed and says its place."""
    config = {key: value for key, value in config.items() if key not in ("version", "typed")}
    config["trainer"] = config["trainer"] | {"max_steps": 5}
    return config | PLACES


def test_what_is_whole_is_read(run, written):
    written.path.write_bytes(written.content)
    weights, _, _ = load(written.path)
    assert same(weights, written.whole["state_dict"])

    _, _, weights, _ = go_on(run, run.path / "checkpoints" / "last.ckpt")
    assert same(weights, run.checkpoint["state_dict"])
    assert same(resume(run, run.text.encode()), as_read(yaml.safe_load(run.text)))


@pytest.mark.slow
@fuzz(150)
@given(damage=DAMAGE)
def test_a_damaged_configuration_is_refused_or_resumed_as_it_reads(run, damage):
    content = damaged(run.text.encode(), damage)
    config = resume(run, content)
    assert config is True or same(config, as_read(yaml.safe_load(content)))


FOREIGN = [
    {"_target_": "os.mkdir", "path": RAN},
    {"_target_": "os.mkdir", "_args_": [RAN]},
    {"_target_": "os.getcwd"},
    "${oc.create:{_target_: os.mkdir, path: ran}}",
    "${oc.decode:'{_target_: os.mkdir, path: ran}'}",
    {"_target_": "${oc.decode:os.mkdir}", "path": RAN},
    [{"x": {"_target_": "os.mkdir", "path": RAN}}],
]


@fuzz(50)
@given(data=st.data())
def test_a_configuration_that_names_foreign_code_is_refused_and_nothing_runs(run, data):
    original = yaml.safe_load(run.text)
    # What was typed is text, which nobody computes.
    configuration = {key: value for key, value in original.items() if key != "typed"}
    broken = changed(original, data.draw(changes(configuration, FOREIGN)))
    assert resume(run, yaml.safe_dump(broken).encode()) is True
    assert not Path(RAN).exists()


def multiplied():
    """A list of nine lists of nine lists and so on, nine deep, which YAML writes in nine lines."""
    lines = ["a0: &a0 [" + ", ".join(["x"] * 9) + "]\n"]
    for i in range(1, 9):
        lines.append(f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 9) + "]\n")
    return "".join(lines)


ENDLESS = {
    "loop": "extra: &a [*a]",
    "loop of names": "extra: &a {x: *a}",
    "doubled": multiplied(),
}
ENDLESS |= {name: f"extra: {nest}" for name, nest in NESTED.items()}


@pytest.mark.parametrize("more", ENDLESS.values(), ids=ENDLESS)
def test_a_configuration_that_is_endless_or_deep_is_refused_or_read_in_time(run, more):
    original = yaml.safe_load(run.text)
    config = resume(run, (run.text + more).encode())

    if config is not True:
        expected = as_read(original)
        assert same({key: config[key] for key in expected}, expected)
