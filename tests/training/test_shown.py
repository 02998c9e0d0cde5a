"""What a run shows: events, console, log, samples, and the files it leaves."""

import re
import time
from itertools import pairwise

import pytest
import torch
from lightning import Callback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gptmini.training import EventLogger, Samples, Scalars

# Tags of the classic model, whose embedding is tied, by when they are logged.
TRAINING = {
    "train/loss",
    "train/lr/matrices",
    "train/lr/embedding",
    "train/lr/unembedding",
    "train/lr/scalars",
    "train/tokens",
    "train/passes",
    "weights/grad_norm",
    "weights/clipped",
    "weights/norm/embedding",
    "weights/norm/attention",
    "weights/norm/mlp",
    "weights/norm/norm",
    "weights/update_ratio/embedding",
    "weights/update_ratio/attention",
    "weights/update_ratio/mlp",
    "weights/update_ratio/norm",
    "work/memory_gb",
    "work/tokens_per_second",
    "work/ms/data",
    "work/ms/forward",
    "work/ms/backward",
    "work/ms/optimizer",
}
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
    return EventAccumulator(str(folder)).Reload()


def test_events_hold_the_documented_tags_at_optimizer_steps(train, tmp_path):
    samples = Samples(**SAMPLING)
    losses = []

    def watch(module):
        step = module.training_step

        def record(batch, batch_idx):
            losses.append(step(batch, batch_idx))
            return losses[-1]

        module.training_step = record

    logger = EventLogger(str(tmp_path))
    trainer = train(
        callbacks=[Scalars(every_steps=2), samples], loggers=[logger], batch_size=4, watch=watch
    )
    read = events(tmp_path)

    # Each tag comes at the steps at which it is logged.
    assert set(read.Tags()["scalars"]) == TRAINING | VALIDATION
    assert read.Tags()["tensors"] == ["samples/text_summary"]
    for tag in TRAINING:
        assert [event.step for event in read.Scalars(tag)] == [1, 2, 4, 6]
    for tag in VALIDATION:
        assert [event.step for event in read.Scalars(tag)] == [3, 6]

    # A point of the loss is the mean of the steps since the last point; a step has two micro-steps.
    means = [(losses[i] + losses[i + 1]).item() / 2 for i in range(0, 12, 2)]
    shown = [means[0], means[1], sum(means[2:4]) / 2, sum(means[4:6]) / 2]
    assert values(read, "train/loss") == pytest.approx(shown, rel=1e-6)

    n_tokens = trainer.datamodule.store.n_tokens("train")
    passes = [step * 40 / n_tokens for step in (1, 2, 4, 6)]
    assert values(read, "train/tokens") == [step * 8 * 5 for step in (1, 2, 4, 6)]
    assert values(read, "train/passes") == pytest.approx(passes)
    assert all(value > 0 for value in values(read, "work/tokens_per_second"))

    loss = trainer.lightning_module.evaluation.loss
    assert values(read, "val/loss")[-1] == pytest.approx(loss)
    assert values(read, "val/gap")[-1] == pytest.approx(loss - shown[-1])

    text = read.Tensors("samples/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert text == "\n".join("    " + line for line in samples.texts[0].splitlines())


def flat_weights(weights, names):
    """The named weights as one vector, without the rows that pad the vocabulary of 257."""
    parts = []
    for name in names:
        n_rows = 257 if name in ("embedding.weight", "unembedding.weight") else None
        parts.append(weights[name][:n_rows].flatten())
    return torch.cat(parts).double()


@pytest.mark.parametrize("kind", ["gpt2", "modern"])
def test_norms_and_changes_of_weights_are_those_of_the_step(train, tmp_path, kind):
    weights = []

    class Watch(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            parameters = module.model.named_parameters()
            weights.append({name: p.detach().clone() for name, p in parameters})

        def on_train_end(self, trainer, module):
            self.on_train_batch_start(trainer, module, None, 0)

    train(kind, callbacks=[Scalars(every_steps=1), Watch()], loggers=[EventLogger(str(tmp_path))])
    read = events(tmp_path)

    patterns = {
        "embedding": r"(position_)?embedding\.weight",
        "attention": r"blocks\.\d\.attention\.",
        "mlp": r"blocks\.\d\.mlp\.",
        "unembedding": r"unembedding\.weight",
        "norm": r"norm\.|blocks\.\d\.(attention|mlp)_norm",
    }
    if kind == "gpt2":
        del patterns["unembedding"]  # is the embedding
    else:
        del patterns["norm"]  # has no weights
    logged = [tag for tag in read.Tags()["scalars"] if "update_ratio" in tag]
    assert {tag.rpartition("/")[2] for tag in logged} == set(patterns)

    for name, pattern in patterns.items():
        own = [key for key in weights[0] if re.match(pattern, key)]
        flat = [flat_weights(step, own) for step in weights]

        norms = [w.norm().item() for w in flat[1:]]
        assert values(read, f"weights/norm/{name}") == pytest.approx(norms, rel=1e-5)
        ratios = [((new - old).norm() / new.norm()).item() for old, new in pairwise(flat)]
        assert values(read, f"weights/update_ratio/{name}") == pytest.approx(ratios, rel=1e-4)


def test_the_share_of_clipped_steps_is_of_those_since_the_last_point(train, tmp_path):
    norms = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer, module, *batch):
            norms.append(module.grad_norm.item())

    # At this limit the three of six steps with the smallest gradients are not clipped.
    train(callbacks=[Watch()])
    limit = sorted(norms)[2] * 1.0001
    norms.clear()

    logger = EventLogger(str(tmp_path))
    train(callbacks=[Scalars(every_steps=3), Watch()], loggers=[logger], gradient_clip=limit)
    clipped = [norm > limit for norm in norms]
    assert 0 < sum(clipped) < 6

    # The points are at steps 1, 3 and 6.
    shown = [clipped[0] / 1, sum(clipped[1:3]) / 2, sum(clipped[3:]) / 3]
    assert values(events(tmp_path), "weights/clipped") == pytest.approx(shown)
    shown = [norms[0], norms[2], norms[5]]
    assert values(events(tmp_path), "weights/grad_norm") == pytest.approx(shown)

    logger = EventLogger(str(tmp_path / "free"))
    train(callbacks=[Scalars(every_steps=3)], loggers=[logger], gradient_clip=None)
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
    train(
        callbacks=[Slow(), Scalars(every_steps=2)],
        loggers=[EventLogger(str(tmp_path))],
        batch_size=4,
    )
    read = events(tmp_path)

    # A step has two micro-steps, each of which sleeps.
    for part, least in (("data", 40), ("forward", 60), ("backward", 80), ("optimizer", 0)):
        spent = {event.step: event.value for event in read.Scalars(f"work/ms/{part}")}
        assert list(spent) == [1, 2, 4, 6]
        if part == "data":
            # The first of step 4's sleeps comes after a validation, and is not charged to any part.
            spent[4] += 20
        assert all(least < value < least + 5000 for value in spent.values())


def test_speed_is_of_the_clock_and_memory_of_the_system(train, tmp_path):
    class Slow(Callback):
        def on_train_batch_start(self, *_):
            time.sleep(0.1)

    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    scalars = Scalars(every_steps=2, peak_tflops=0.5)
    trainer = train(callbacks=[Slow(), scalars], loggers=[EventLogger(str(tmp_path))])
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9

    # A step has 40 tokens and takes at least a tenth of a second.
    read = events(tmp_path)
    speeds = values(read, "work/tokens_per_second")
    assert all(4 < speed < 400 for speed in speeds)
    flops = trainer.lightning_module.model.flops_per_token
    expected = [speed * flops / 0.5e12 for speed in speeds]
    assert values(read, "work/mfu") == pytest.approx(expected)
    for memory in values(read, "work/memory_gb"):
        assert before * 0.999 <= memory <= after * 1.001


def test_learning_rate_shown_is_the_one_used(train, tmp_path):
    train(callbacks=[Scalars(every_steps=1)], loggers=[EventLogger(str(tmp_path))])
    shown = values(events(tmp_path), "train/lr/matrices")

    # The warm-up is (s + 1) / 3; then comes 0.1 + 0.9 * (1 + cos(pi * (s - 2) / 3)) / 2.
    multipliers = (1 / 3, 2 / 3, 1, 0.775, 0.325, 0.1)
    assert shown == pytest.approx([0.01 * multiplier for multiplier in multipliers], rel=1e-5)
    assert shown == values(events(tmp_path), "train/lr/scalars")


def test_samples_differ_by_seed_and_show_documents_apart(train):
    texts = []
    for seed in (3, 3, 4):
        samples = Samples(**SAMPLING | {"seed": seed})
        train(callbacks=[samples])
        texts += samples.texts

    assert texts[0] == texts[1] != texts[2]
    assert "<|endoftext|>" not in "".join(texts)
