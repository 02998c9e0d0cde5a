"""Whatever uses the model of a run uses the average of its weights."""

import json

import pytest
import torch
from safetensors.torch import load_file

from gptmini import load
from gptmini.runs import read_lines
from run_folders import last, newest

SIZES = ("model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.n_kv_heads=1")


def losses_of(run):
    """The validation losses of a run, by step."""
    return {line["step"]: line["val/loss"] for line in read_lines(run) if "val/loss" in line}


def test_evaluation_sampling_export_and_a_new_run_use_the_average(script, short):
    typed = (*short, "model=llama_tiny", *SIZES, "trainer.val_tokens=null")
    assert script("train", *typed, "trainer.ema_steps=3").code == 0
    run = newest()
    average = last(run)["state_dict"]
    state = last(run)["optimizer_states"][0]["state"]
    assert all(not torch.equal(state[name]["other_weights"], average[name]) for name in average)
    checkpoint = str(run / "checkpoints" / "last.ckpt")

    model, _ = load(checkpoint)  # this function loads the model for samples, too
    for name, weight in average.items():
        assert torch.equal(weight, model.get_parameter(name.removeprefix("model.")))

    (row,) = json.loads(script("evaluate", checkpoint, "--json").out)["models"]
    assert row["loss"]["value"] == pytest.approx(losses_of(run)[4], rel=1e-4)

    assert script("export", checkpoint, "out").code == 0
    exported = load_file("out/model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(exported, average["model.embedding.weight"][: len(exported)])

    # A run with trained weights starts with a validation.
    assert script("train", *typed, f"init_from={checkpoint}", "trainer.max_steps=1").code == 0
    assert losses_of(newest())[0] == pytest.approx(losses_of(run)[4], rel=1e-4)
