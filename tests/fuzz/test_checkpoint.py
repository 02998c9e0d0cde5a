"""A broken checkpoint to sample from."""

import os
import pickle
import subprocess
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuzz.inputs import DAMAGE, PICKLED, RAN, changed, changes, damaged, fuzz, same
from fuzz.outcomes import load, outcome
from gptmini.checkpoint.file import read_checkpoint
from gptmini.model import GPTConfig
from gptmini.runs import find_training_state

pytestmark = pytest.mark.slow  # together they take minutes

DEFAULTS = {
    field.name: field.default for field in fields(GPTConfig) if field.default is not MISSING
}


@fuzz(100)
@given(damage=DAMAGE)
def test_a_checkpoint_of_damaged_bytes_is_refused_or_gives_the_same_model(written, damage):
    written.path.write_bytes(damaged(written.content, damage))
    own = written.whole["gptmini"]

    if loaded := outcome(load, written.path):
        assert same(loaded, (written.whole["state_dict"], own["config"], own["tokenizer"]))
        assert same(read_checkpoint(written.path), written.whole)


@fuzz(400)
@given(data=st.data())
def test_a_checkpoint_that_claims_junk_is_refused_or_gives_the_same_weights(written, data):
    broken = changed(written.whole, data.draw(changes(written.whole, PICKLED)))
    torch.save(broken, written.path)

    if loaded := outcome(load, written.path):
        claimed = DEFAULTS | broken["gptmini"]["config"]  # which may leave out a field
        # A whole number may stand for a float, and is one from then on.
        for name, value in loaded[1].items():
            if isinstance(value, float) and type(claimed[name]) is int:
                claimed[name] = float(claimed[name])
        assert same(loaded, (written.whole["state_dict"], claimed, broken["gptmini"]["tokenizer"]))


class Payload:
    """Unpickling this calls something."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


PAYLOADS = [
    Payload(os.mkdir, (RAN,)),
    Payload(os.system, (f"mkdir {RAN}",)),
    Payload(open, (RAN, "w")),
    Payload(eval, (f"__import__('os').mkdir('{RAN}')",)),
    Payload(exec, (f"import os; os.mkdir('{RAN}')",)),
    Payload(subprocess.call, (["mkdir", RAN],)),
    Payload(Path.touch, (Path(RAN),)),
    Payload(torch.save, (1, RAN)),
]


@fuzz(60)
@given(
    data=st.data(),
    payload=st.sampled_from(PAYLOADS),
    form=st.sampled_from(["zip", "old", "pickle"]),
)
def test_code_in_a_checkpoint_is_refused_and_never_runs(run, folder, data, payload, form):
    path = folder / "code" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    place, _ = data.draw(changes(run.checkpoint, [None]))
    broken = changed(run.checkpoint, (place, payload))

    if form == "pickle":
        path.write_bytes(pickle.dumps(broken))
    else:
        torch.save(broken, path, _use_new_zipfile_serialization=form == "zip")

    assert outcome(read_checkpoint, path) is None
    assert outcome(find_training_state, path) is None
    assert outcome(find_training_state, folder / "code") is None
    assert not Path(RAN).exists()
