"""A broken run folder to go on with: its checkpoint, or the configuration beside it."""

import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fuzz.inputs import DAMAGE, JUNK, NESTED, PICKLED, RAN, changed, changes, damaged, fuzz, same
from fuzz.outcomes import load, outcome, refused
from gptmini.commands import launching, train
from gptmini.data.store import TokenStore
from gptmini.run_folder import find_training_state
from gptmini.training import RunCheckpoints, build_trainer


def go_on(run, path):
    """Best validation, model and optimizer state, by parameter, with which a run goes on from a file."""
    state, _ = find_training_state(path)
    plan = train.check_configuration(run.config)
    store = TokenStore(next(Path("data").iterdir()))
    fitted = train.build(plan, store, state)
    (kept,) = (callback for callback in fitted.callbacks if isinstance(callback, RunCheckpoints))
    build_trainer(
        plan.settings,
        run.path,
        device=plan.hardware.device,
        precision=plan.hardware.precision,
        callbacks=[kept],
        loggers=[],
        state=state,
    )
    module = fitted.module
    optimizer = module.configure_optimizers()
    names = module._names(optimizer)
    moments = {names[number]: kept for number, kept in optimizer.state_dict()["state"].items()}

    return kept.best, asdict(module.model.config), dict(module.state_dict()), moments


@pytest.mark.slow
@fuzz(400)
@given(data=st.data())
def test_a_run_goes_on_from_a_checkpoint_that_claims_junk_with_the_same_state_or_not_at_all(
    run, folder, data
):
    whole = {
        key: run.checkpoint[key]
        for key in ("global_step", "optimizer_states", "state_dict", "callbacks")
    }
    whole["gptmini"] = run.checkpoint["gptmini"] | {
        "tokenizer": {"kind": "byte_pair"}
    }  # its ranks have a test of their own
    torch.save(changed(run.checkpoint, data.draw(changes(whole, PICKLED))), folder / "resumed.ckpt")

    if state := outcome(go_on, run, folder / "resumed.ckpt"):
        best, config, *state = state
        assert config == run.checkpoint["gptmini"]["config"]
        assert same(state, [whole["state_dict"], whole["optimizer_states"][0]["state"]])
        if best is not None:
            figures = asdict(best)
            kinds = {"loss": float, "bits_per_byte": float, "step": int}
            assert {key: type(value) for key, value in figures.items()} == kinds
            assert all(map(math.isfinite, figures.values()))


def resume(run, content):
    """Whether a run with this in its config.yaml is refused, or else the configuration with which it goes on."""
    from omegaconf import OmegaConf

    (run.path / "config.yaml").write_bytes(content)
    read = []

    def act():
        config = launching.compose_checked("train", [f"resume={run.path}"])
        read.append(OmegaConf.to_container(config))
        train.train(config)

    return refused(act) or read[0] | {"resume": None}


def as_read(config):
    """What resume returns for a configuration that is taken as it stands: all of it but the version."""
    return {key: value for key, value in config.items() if key != "version"} | {"resume": None}


def test_what_is_whole_is_read(run, written):
    written.path.write_bytes(written.content)
    assert same(load(written.path)[0], written.whole["state_dict"])
    assert same(go_on(run, run.path / "checkpoints" / "last.ckpt")[2], run.checkpoint["state_dict"])
    assert same(resume(run, run.text.encode()), as_read(yaml.safe_load(run.text)))


@pytest.mark.slow
@fuzz(150)
@given(damage=DAMAGE)
def test_a_damaged_configuration_is_refused_or_resumed_as_it_reads(run, damage):
    content = damaged(run.text.encode(), damage)
    config = resume(run, content)
    assert config is True or same(config, as_read(yaml.safe_load(content)))


@pytest.mark.slow
@fuzz(200)
@given(data=st.data())
def test_a_configuration_that_holds_junk_is_refused_or_resumed_as_it_reads(run, data):
    original = yaml.safe_load(run.text)
    # known, and of another place
    elsewhere = [original["tokenizer"], original["trainer"], "gptmini.tokenizer.byte"]
    broken = changed(original, data.draw(changes(original, [*JUNK, *elsewhere])))
    config = resume(run, yaml.safe_dump(broken).encode())
    assert config is True or same(config, as_read(broken))


FOREIGN = [
    {"_target_": "os.mkdir", "path": RAN},
    {"_target_": "os.mkdir", "_args_": [RAN]},
    {"_target_": "os.getcwd"},
]

FOREIGN += [
    "${oc.create:{_target_: os.mkdir, path: ran}}",
    "${oc.decode:'{_target_: os.mkdir, path: ran}'}",
]

FOREIGN += [
    {"_target_": "${oc.decode:os.mkdir}", "path": RAN},
    [{"x": {"_target_": "os.mkdir", "path": RAN}}],
]


@fuzz(50)
@given(data=st.data())
def test_a_configuration_that_names_foreign_code_is_refused_and_nothing_runs(run, data):
    original = yaml.safe_load(run.text)
    broken = changed(original, data.draw(changes(original, FOREIGN)))
    assert resume(run, yaml.safe_dump(broken).encode()) is True
    assert not Path(RAN).exists()


ENDLESS = {"loop": "extra: &a [*a]", "loop of names": "extra: &a {x: *a}"}

ENDLESS["doubled"] = "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]\n" for i in range(9)
)

ENDLESS |= {name: f"extra: {nest}" for name, nest in NESTED.items()}


@pytest.mark.parametrize("more", ENDLESS.values(), ids=ENDLESS)
def test_a_configuration_that_is_endless_or_deep_is_refused_or_read_in_time(run, more):
    original = yaml.safe_load(run.text)
    config = resume(run, (run.text + more).encode())
    assert config is True or same(
        {key: config[key] for key in as_read(original)}, as_read(original)
    )
