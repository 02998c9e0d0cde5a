"""What a run shows: events, console, log, samples, and the files it leaves."""

import time
from functools import partial
from itertools import pairwise

import pytest
import torch
from lightning import Callback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import gptmini
from gptmini.model.checkpoint import read_checkpoint
from gptmini.tokenizer import byte
from gptmini.training.checkpointing import RunCheckpoints
from gptmini.training.monitoring.events import EventLogger
from gptmini.training.monitoring.samples import Samples
from gptmini.training.monitoring.scalars import Scalars

KINDS = ("embedding", "attention", "mlp", "norm")  # of the classic model, tied
TRAINING = {f"train/{name}" for name in ("loss", "lr/matrices", "lr/scalars", "tokens", "passes")}
TRAINING |= {"weights/grad_norm", "weights/clipped", "work/memory_gb", "work/tokens_per_second"}
TRAINING |= {f"weights/{name}/{kind}" for name in ("norm", "update_ratio") for kind in KINDS}
TRAINING |= {f"work/ms/{part}" for part in ("data", "forward", "backward", "optimizer")}
VALIDATION = {"val/loss", "val/bits_per_byte", "val/gap"}
SAMPLING = {
    "prompts": [""],
    "max_new_tokens": 9,
    "temperature": 1.0,
    "top_k": None,
    "top_p": None,
    "seed": 3,
}


def values(read, tag):
    return [event.value for event in read.Scalars(tag)]


def events(folder):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def test_events_hold_the_documented_tags_at_optimizer_steps(train, tmp_path):
    samples = Samples(byte([]), **SAMPLING)
    losses = []

    def watch(module):
        step = module.training_step

        def record(batch, batch_idx):
            losses.append(step(batch, batch_idx))
            return losses[-1]

        module.training_step = record

    logger = EventLogger(str(tmp_path))
    trainer = train(callbacks=[Scalars(2), samples], loggers=[logger], batch_size=4, watch=watch)
    read = events(tmp_path)

    assert set(read.Tags()["scalars"]) == TRAINING | VALIDATION
    assert read.Tags()["tensors"] == ["samples/text_summary"]
    for tag in TRAINING:
        assert [event.step for event in read.Scalars(tag)] == [1, 2, 4, 6]
    for tag in VALIDATION:
        assert [event.step for event in read.Scalars(tag)] == [3, 6]

    # two micro-steps a step
    means = [(losses[i] + losses[i + 1]).item() / 2 for i in range(0, 12, 2)]
    # of the steps since the last point
    shown = [means[0], means[1], sum(means[2:4]) / 2, sum(means[4:6]) / 2]
    assert values(read, "train/loss") == pytest.approx(shown, rel=1e-6)
    assert values(read, "train/tokens") == [step * 8 * 5 for step in (1, 2, 4, 6)]

    n_tokens = trainer.datamodule.store.n_tokens("train")
    assert values(read, "train/passes") == pytest.approx(
        [step * 40 / n_tokens for step in (1, 2, 4, 6)]
    )

    loss = trainer.lightning_module.evaluation.loss
    assert values(read, "val/loss")[-1] == pytest.approx(loss)
    assert values(read, "val/gap")[-1] == pytest.approx(loss - shown[-1])

    text = read.Tensors("samples/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert text == "\n".join("    " + line for line in samples.texts[0].splitlines())
    assert all(value > 0 for value in values(read, "work/tokens_per_second"))


@pytest.mark.parametrize("kind", ["gpt2", "modern"])
def test_norms_and_changes_of_weights_are_those_of_the_step(train, tmp_path, kind):
    weights = []

    class Watch(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            weights.append(
                {name: p.detach().clone() for name, p in module.model.named_parameters()}
            )

        def on_train_end(self, trainer, module):
            self.on_train_batch_start(trainer, module, None, 0)

    train(kind, callbacks=[Scalars(1), Watch()], loggers=[EventLogger(str(tmp_path))])
    read = events(tmp_path)
    kinds = {
        "embedding": ("embedding.weight", "position_embedding.weight"),
        "attention": tuple(
            f"blocks.{i}.attention.{name}" for i in (0, 1) for name in ("qkv", "output")
        ),
        "mlp": tuple(f"blocks.{i}.mlp.{name}" for i in (0, 1) for name in ("input", "output")),
        "unembedding": ("unembedding.weight",),
        "norm": (
            "norm.",
            *(f"blocks.{i}.{name}_norm" for i in (0, 1) for name in ("attention", "mlp")),
        ),
    }
    absent = {"gpt2": "unembedding", "modern": "norm"}[kind]  # tied, and without weights

    assert {
        tag.split("/")[2] for tag in read.Tags()["scalars"] if "ratio" in tag
    } == kinds.keys() - {absent}

    for name in kinds.keys() - {absent}:
        own = [key for key in weights[0] if key.startswith(kinds[name])]
        # the others are padding
        rows = dict.fromkeys(("embedding.weight", "unembedding.weight"), 257)
        flat = [
            torch.cat([step[key][: rows.get(key)].flatten() for key in own]).double()
            for step in weights
        ]
        assert values(read, f"weights/norm/{name}") == pytest.approx(
            [w.norm().item() for w in flat[1:]], rel=1e-5
        )
        ratios = [((new - old).norm() / new.norm()).item() for old, new in pairwise(flat)]
        assert values(read, f"weights/update_ratio/{name}") == pytest.approx(ratios, rel=1e-4)


def test_the_share_of_clipped_steps_is_of_those_since_the_last_point(train, tmp_path):
    norms = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer, module, *batch):
            norms.append(module.grad_norm.item())

    train(callbacks=[Watch()])
    # of six steps the three with the smallest gradients are not clipped
    limit = sorted(norms)[2] * 1.0001
    norms.clear()
    train(
        callbacks=[Scalars(3), Watch()], loggers=[EventLogger(str(tmp_path))], gradient_clip=limit
    )
    clipped = [norm > limit for norm in norms]

    assert 0 < sum(clipped) < 6

    # points at steps 1, 3 and 6
    shown = [clipped[0] / 1, sum(clipped[1:3]) / 2, sum(clipped[3:]) / 3]
    assert values(events(tmp_path), "weights/clipped") == pytest.approx(shown)
    assert values(events(tmp_path), "weights/grad_norm") == pytest.approx(
        [norms[i] for i in (0, 2, 5)]
    )

    train(callbacks=[Scalars(3)], loggers=[EventLogger(str(tmp_path / "free"))], gradient_clip=None)
    assert "weights/clipped" not in events(tmp_path / "free").Tags()["scalars"]


def test_parts_of_a_step_take_what_they_are_made_to_take(train, tmp_path):
    class Slow(Callback):
        def on_train_batch_start(self, *_):
            time.sleep(0.02)

        def on_before_backward(self, *_):
            time.sleep(0.03)

        def on_after_backward(self, *_):
            time.sleep(0.04)

    # A callback's hook runs before Scalars's, so that what it sleeps is charged to the part that ends there.
    train(callbacks=[Slow(), Scalars(2)], loggers=[EventLogger(str(tmp_path))], batch_size=4)
    read = events(tmp_path)
    # two micro-steps each
    for part, least in (("data", 40), ("forward", 60), ("backward", 80), ("optimizer", 0)):
        steps, spent = zip(
            *((event.step, event.value) for event in read.Scalars(f"work/ms/{part}")), strict=True
        )
        assert steps == (1, 2, 4, 6)
        if part == "data":
            # what comes between a validation and step 4 is no one's
            spent = (*spent[:2], spent[2] + 20, spent[3])
        assert all(least < value < least + 5000 for value in spent)


def test_tokens_a_second_are_those_of_the_clock(train, tmp_path):
    class Slow(Callback):
        def on_train_batch_start(self, *_):
            time.sleep(0.1)

    # 40 tokens in a tenth of a second
    train(callbacks=[Slow(), Scalars(2)], loggers=[EventLogger(str(tmp_path))])
    assert all(4 < value < 400 for value in values(events(tmp_path), "work/tokens_per_second"))


def test_utilisation_is_of_the_peak_that_was_given(train, tmp_path):
    trainer = train(callbacks=[Scalars(2, peak_tflops=0.5)], loggers=[EventLogger(str(tmp_path))])
    read = events(tmp_path)
    flops = trainer.lightning_module.model.flops_per_token
    expected = [speed * flops / 0.5e12 for speed in values(read, "work/tokens_per_second")]
    assert values(read, "work/mfu") == pytest.approx(expected)


def test_peak_memory_is_the_systems(train, tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    train(callbacks=[Scalars(6)], loggers=[EventLogger(str(tmp_path))])
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9

    assert all(
        before * 0.999 <= value <= after * 1.001
        for value in values(events(tmp_path), "work/memory_gb")
    )


@pytest.mark.parametrize("value", [0, -1, "fast", True, float("inf"), float("nan")])
def test_a_peak_that_no_device_has_is_refused(value):
    wanted = "peak_tflops must be a finite number above 0, or null for the maker's"
    with pytest.raises(ValueError, match=f"^{wanted}, got {value!r}$"):
        Scalars(1, peak_tflops=value)


def test_learning_rate_shown_is_the_one_used(train, tmp_path):
    train(callbacks=[Scalars(1)], loggers=[EventLogger(str(tmp_path))])
    shown = values(events(tmp_path), "train/lr/matrices")
    assert shown == values(events(tmp_path), "train/lr/scalars")
    # warm-up (s + 1) / 3, then 0.1 + 0.9 * (1 + cos(pi * (s - 2) / 3)) / 2, times 0.01
    assert shown == pytest.approx(
        [0.01 * f for f in (1 / 3, 2 / 3, 1, 0.775, 0.325, 0.1)], rel=1e-5
    )


def test_event_folder_holds_nothing_but_events(train, tmp_path):
    train(callbacks=[Scalars(1)], loggers=[EventLogger(str(tmp_path / "run"))])
    assert all("tfevents" in path.name for path in (tmp_path / "run").iterdir())


def test_best_last_and_previous_are_the_steps_they_name(train, tmp_path, checkpoints):
    trainer = train(callbacks=[checkpoints], max_steps=9, val_every_steps=5)
    folder = tmp_path / "checkpoints"
    steps = {path.stem: read_checkpoint(path)["global_step"] for path in folder.iterdir()}

    # the loss of so short a run falls throughout
    assert steps == {"best": 9, "last": 9, "previous": 8}
    assert (folder / "best.ckpt").samefile(folder / "last.ckpt")
    assert checkpoints.best.loss == trainer.lightning_module.evaluation.loss


def test_a_checkpoint_alone_is_the_model_and_its_tokenizer(train, tmp_path, checkpoints):
    trainer = train("modern", callbacks=[checkpoints])
    model, tokenizer = gptmini.load(tmp_path)
    tokens = torch.tensor([tokenizer.encode("lazy")])
    expected = trainer.lightning_module.model.eval()(tokens)
    assert torch.equal(model(tokens), expected)


def test_compiled_checkpoint_has_the_same_keys(train, tmp_path, monkeypatch):
    # names do not depend on it
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    keys = []
    for compile in (False, True):
        train(callbacks=[RunCheckpoints(1)], compile=compile, max_steps=1, val_every_steps=1)
        keys.append(list(read_checkpoint(tmp_path / "checkpoints" / "last.ckpt")["state_dict"]))
    assert keys[0] == keys[1]


def test_samples_differ_by_seed_and_show_documents_apart(train):
    texts = []
    for seed in (3, 3, 4):
        samples = Samples(byte([]), **SAMPLING | {"seed": seed})
        train(callbacks=[samples])
        texts += samples.texts

    assert texts[0] == texts[1] != texts[2]
    assert "<|endoftext|>" not in "".join(texts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_steps": 0}, "trainer.max_steps must be a whole number of at least 1, got 0"),
        (
            {"global_batch_size": 10**19},
            "trainer.global_batch_size must be a whole number from 1 to 2147483648, got 10000000000000000000",
        ),
        ({"max_steps": 2.5}, "trainer.max_steps must be a whole number of at least 1, got 2.5"),
        (
            {"gradient_clip": -1},
            "gradient_clip must be a finite number above 0, or null for no limit, got -1",
        ),
        (
            {"global_batch_size": 12, "batch_size": 8},
            "must be a multiple of trainer.batch_size times devices, got 12, 8",
        ),
        (
            {"val_tokens": "all"},
            "val_tokens must be a whole number of at least 1, or null for all, got 'all'",
        ),
    ],
)
def test_settings_out_of_range_are_refused(train, change, message):
    with pytest.raises(ValueError, match=message):
        train(**change)
