"""Code in a checkpoint or in a configuration of a run folder is refused and never runs."""

import os
import pickle
from pathlib import Path

import pytest
import torch
import yaml

from commands.resuming.readings import assert_refused, snapshot
from run_folders import config_of, last, newest


class Payload:
    """Unpickling this leaves a file."""

    def __reduce__(self):
        return os.system, ("touch executed",)


@pytest.mark.parametrize("kind", ["archive", "pickle"])
def test_a_checkpoint_with_code_in_it_is_refused_everywhere_and_not_run(
    complete, resume, script, kind
):
    complete()
    checkpoint = last(newest()) | {"more": Payload()}
    for path in newest().glob("checkpoints/*.ckpt"):
        if kind == "archive":
            torch.save(checkpoint, path)
        else:
            path.write_bytes(pickle.dumps(checkpoint))

    for run in ("runs/latest", "runs/latest/checkpoints/best.ckpt"):
        for result in (resume(run=run), script("sample", run), script("evaluate", run)):
            assert_refused(result, "best.ckpt")
    assert not Path("executed").exists()


# A call that is not on Hydra's own list of what Hydra refuses.
CALL = "{_target_: shutil.copyfile, src: my.txt, dst: executed}"

# A block of config.yaml, and what stands in its place.
CONFIGS = {
    "a shell": ("optimizer", "{_target_: os.system, command: touch executed}"),
    "a block": ("optimizer", CALL),
    "one callback more": ("callbacks", f"{{more: {CALL}}}"),
    "deep inside": (
        "optimizer",
        f"{{_target_: gptmini.optim.adamw, _partial_: true, lr: [{{a: {CALL}}}]}}",
    ),
    "its name by reference": (
        "optimizer",
        CALL.replace("shutil.copyfile", "'${called}'") + "\ncalled: shutil.copyfile",
    ),
    "its name made": (
        "optimizer",
        CALL.replace("shutil.copyfile", "'${oc.decode:shutil.copyfile}'"),
    ),
    "made": ("optimizer", f'"${{oc.create:{CALL}}}"'),
    "made, one callback more": ("callbacks", f'{{more: "${{oc.create:{CALL}}}"}}'),
    "made, behind a backslash": ("optimizer", f"'\\${{oc.create:{CALL}}}'"),
    "made, behind two backslashes": ("optimizer", f"'\\\\${{oc.create:{CALL}}}'"),
    "its argument in a list": (
        "optimizer",
        "{_target_: shutil.copyfile, _args_: [my.txt, executed]}",
    ),
    "Python in YAML": ("optimizer", "!!python/object/apply:os.system [touch executed]"),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_configuration_that_calls_something_else_is_refused_and_not_run(complete, resume, kind):
    complete()
    block, text = CONFIGS[kind]
    path = newest() / "config.yaml"
    config = config_of(newest())
    del config[block]
    path.write_text(yaml.safe_dump(config) + f"{block}: {text}\n")
    before = snapshot(newest())

    try:
        assert_refused(resume())
    finally:
        assert not Path("executed").exists()

    assert snapshot(newest()) == before


@pytest.mark.parametrize("backslashes", ["", "\\", "\\\\", "\\\\\\"])
def test_no_value_of_a_stored_configuration_is_read_from_the_environment(
    complete, resume, monkeypatch, backslashes
):
    monkeypatch.setenv("TOKEN", "secret")
    complete()
    folder = newest()
    config = config_of(folder)
    config["callbacks"]["samples"]["prompts"] = [f"Line {backslashes}${{oc.env:TOKEN}}"]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))

    result = resume("trainer.max_steps=9", run=folder)
    assert_refused(result, "must hold plain values")
    assert "secret" not in (folder / "train.log").read_text()
