"""gptmini.training against plain training loops, and its promised properties."""

import copy
import math
import os
from functools import partial

import lightning as L
import pytest
import torch
from torch.nn import functional as F

from gptmini.data import prepare
from gptmini.data.prepared.batches import gather
from gptmini.data.prepared.order import step_sequences, window_starts
from gptmini.model import GPT
from gptmini.optim import CosineSchedule
from gptmini.system.errors import UserError
from gptmini.tokenizer import byte
from gptmini.training.budget.timing import measure_module
from gptmini.training.callbacks.samples import Samples
from toys import Documents
from training.runs import HELD_OUT, TEXT
from training.watchers import Figures


def weights(trainer):
    """A copy of a trainer's trained weights."""
    return copy.deepcopy(trainer.lightning_module.model.state_dict())


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def assert_close(first, second, atol):
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=atol, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "batch_size", "clip"), [("gpt2", 8, 1.0), ("modern", 1, 0.01), ("modern", 4, None)]
)
def test_a_run_equals_a_loop_written_out(train, store, kind, batch_size, clip):
    initial = {}
    figures = Figures()
    trainer = train(
        kind,
        batch_size=batch_size,
        gradient_clip=clip,
        callbacks=[figures],
        watch=lambda module: initial.update(copy.deepcopy(module.model.state_dict())),
        dtype=torch.float64,
    )

    model = GPT(trainer.lightning_module.model.config).double()
    model.load_state_dict(initial)
    groups = [{"params": [p for p in model.parameters() if p.ndim == 2], "weight_decay": 0.1}]
    others = [p for p in model.parameters() if p.ndim == 1]
    if others:
        groups.append({"params": others, "weight_decay": 0.0})
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8)

    data = store.tokens("train")
    schedule = CosineSchedule(warmup_steps=2, final_fraction=0.1)
    losses = []
    norms = []
    for step in range(6):
        # The full batch at once, whatever the run's number of micro-steps.
        sequences = step_sequences(step, 0, global_batch_size=8, batch_size=8, rank=0, n_ranks=1)
        starts = window_starts(sequences, n_tokens=len(data), context_length=5, seed=1)
        tokens, targets = gather(data, starts, 5)

        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf)

        for group in optimizer.param_groups:
            group["lr"] = 0.01 * schedule(step, max_steps=6)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())

    assert list(figures.losses.values()) == pytest.approx(losses, abs=1e-10)
    assert list(figures.norms.values()) == pytest.approx(norms, abs=1e-9)
    assert_close(weights(trainer), dict(model.state_dict()), atol=1e-9)


@pytest.mark.parametrize("batch_size", [4, 1])
def test_the_number_of_micro_steps_changes_no_dropout(train, tmp_path, batch_size):
    options = {"dropout": 0.3, "dtype": torch.float64}
    whole = weights(train(batch_size=8, folder=tmp_path / "whole", **options))
    split = weights(train(batch_size=batch_size, folder=tmp_path / "split", **options))
    assert_close(whole, split, atol=1e-11)


def test_dropout_acts_and_follows_from_the_seed_however_often_it_is_evaluated(train):
    rarely = weights(train(val_every_steps=6, dropout=0.3))
    often = weights(train(val_every_steps=1, dropout=0.3))
    assert_equal(rarely, often)

    without = weights(train(dropout=0.0))
    assert any(not torch.equal(rarely[name], without[name]) for name in rarely)


@pytest.mark.parametrize("split", ["train", "val"])
def test_tokens_that_are_cut_short_end_a_run_with_one_line(train, tmp_path, split):
    store, _ = prepare(Documents([TEXT], [HELD_OUT]), byte, tmp_path)

    class Cut(L.Callback):
        def on_validation_start(self, trainer, pl_module):
            os.truncate(store.folder / f"{split}.bin", 0)

    with pytest.raises(UserError, match=rf"{split}\.bin was truncated .* 0 of "):
        train(tokens=store, callbacks=[Cut()])


def test_validation_is_weighed_by_token_over_the_whole_split(train, store):
    trainer = train(batch_size=2)  # 161 targets: 32 windows of 5 and one of 1
    model = trainer.lightning_module.model.eval()
    data = torch.from_numpy(store.tokens("val").astype("int64"))

    nats = 0.0
    for start in range(0, len(data) - 1, 5):
        tokens = data[start : start + 5][None]
        targets = data[start + 1 : start + 6]
        logits = model(tokens[:, : len(targets)])
        nats += F.cross_entropy(logits[0], targets, reduction="sum").item()

    evaluation = trainer.lightning_module.evaluation
    assert evaluation.n_tokens == len(data) - 1
    assert evaluation.loss == pytest.approx(nats / (len(data) - 1), rel=1e-5)

    bits = evaluation.loss / math.log(2) * len(data) / store.n_bytes("val")
    assert evaluation.bits_per_byte == pytest.approx(bits)


@pytest.mark.parametrize(
    ("max_steps", "batch_size", "expected"), [(7, 4, [3, 6, 7]), (6, 8, [3, 6])]
)
def test_a_validation_follows_the_last_step_and_none_is_done_twice(
    train, max_steps, batch_size, expected
):
    figures = Figures()
    train(max_steps=max_steps, val_every_steps=3, batch_size=batch_size, callbacks=[figures])
    assert list(figures.validations) == expected


@pytest.mark.slow
def test_a_traced_loss_trains_to_the_same_weights_under_the_same_names(train, monkeypatch):
    # This backend traces the forward and backward pass like every backend. test_resume.py tests inductor's code.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    sizes = {"smear": 3, "mlp_smear": 2}
    options = {"sizes": sizes, "dropout": 0.2, "max_steps": 3}
    traced = train("modern", compile=True, **options).lightning_module.state_dict()
    eager = train("modern", **options).lightning_module.state_dict()
    assert traced.keys() == eager.keys()
    assert_close(traced, eager, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "precision"), [("gpt2", "bf16"), ("modern", "bf16_stream")])
def test_the_loss_is_compiled_once_whatever_validation_and_samples_do(
    train, monkeypatch, kind, precision
):
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    samples = Samples(prompts=["fox"], seed=1, max_new_tokens=3)

    train(
        kind,
        compile=True,
        precision=precision,
        max_steps=5,
        batch_size=4,
        val_every_steps=2,
        callbacks=[samples],
        dropout=0.1,
        watch=partial(measure_module, seconds=0),  # like a run with a time budget
    )

    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert not counters["recompile_limit"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "modern"])
def test_bf16_trains_float32_weights_to_nearly_the_loss_of_float32(train, kind):
    losses = {}
    for precision in ("fp32", "bf16", "bf16_stream"):
        trainer = train(kind, precision=precision, max_steps=12, val_every_steps=12)
        module = trainer.lightning_module
        assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
        assert trainer.optimizers[0].param_groups[0]["fused"]
        losses[precision] = module.evaluation.loss

    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.01)
    assert losses["bf16_stream"] == pytest.approx(losses["fp32"], rel=0.01)
    assert len(set(losses.values())) == 3


def test_activations_that_are_computed_again_train_the_same_weights(train, tmp_path):
    calls = []

    def watch(module):
        calls.clear()
        attention = module.model.blocks[0].attention
        attention.register_forward_hook(
            lambda *call: calls.append(torch.is_grad_enabled()) if module.training else None
        )

    options = {"kind": "modern", "dropout": 0.1, "watch": watch}
    kept = weights(train(folder=tmp_path / "kept", **options))
    n_kept = calls.count(True)
    again = weights(train(folder=tmp_path / "again", checkpoint_activations=True, **options))
    assert calls.count(True) == 2 * n_kept > 0
    assert_equal(kept, again)


def test_gradients_are_freed_when_their_step_is_done(train):
    trainer = train(batch_size=4)
    assert all(parameter.grad is None for parameter in trainer.lightning_module.parameters())
