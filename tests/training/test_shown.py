"""The logged values of a run against its actual steps, and samples by seed."""

import re
import time
from itertools import pairwise

import pytest
import torch
from lightning import Callback

from gptmini.training.callbacks.samples import Samples
from gptmini.training.callbacks.scalars import Scalars
from training.watchers import Figures, Seen

SAMPLING = {
    "prompts": [""],
    "max_new_tokens": 9,
    "temperature": 1.0,
    "top_k": None,
    "top_p": None,
    "seed": 3,
}


def test_figures_are_logged_at_some_optimizer_steps_and_losses_are_means_since_the_last(train):
    seen = Seen()
    figures = Figures()
    trainer = train(callbacks=[Scalars(every_steps=2), figures], loggers=[seen], batch_size=4)

    for tag in seen.tags():
        is_of_validation = tag.startswith("val/")
        assert list(seen.values(tag)) == ([3, 6] if is_of_validation else [1, 2, 3, 4, 6])

    losses = figures.losses
    means = {
        1: losses[1],
        2: losses[2],
        3: losses[3],
        4: losses[4],
        6: (losses[5] + losses[6]) / 2,
    }
    assert seen.values("train/loss") == pytest.approx(means, rel=1e-6)

    # A step has eight windows of five tokens.
    n_tokens = trainer.datamodule.store.n_tokens("train")
    assert seen.values("train/tokens") == {step: step * 8 * 5 for step in (1, 2, 3, 4, 6)}
    passes = {step: step * 40 / n_tokens for step in (1, 2, 3, 4, 6)}
    assert seen.values("train/passes") == pytest.approx(passes)

    # The gap is the difference to the latest point of train/loss.
    validations = figures.validations
    assert seen.values("val/loss") == validations
    gaps = {3: validations[3] - means[3], 6: validations[6] - means[6]}
    assert seen.values("val/gap") == pytest.approx(gaps, rel=1e-5)


def flat_weights(weights, names):
    """The named weights as one vector, without the padding of the vocabulary of 257."""
    parts = []
    for name in names:
        n_rows = 257 if name in ("embedding.weight", "unembedding.weight") else None
        parts.append(weights[name][:n_rows].flatten())
    return torch.cat(parts).double()


@pytest.mark.parametrize("kind", ["gpt2", "modern"])
def test_norms_and_changes_of_weights_are_those_of_the_step(train, kind):
    weights = []

    class Watch(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            parameters = module.model.named_parameters()
            weights.append({name: p.detach().clone() for name, p in parameters})

        def on_train_end(self, trainer, module):
            self.on_train_batch_start(trainer, module, None, 0)

    seen = Seen()
    train(kind, callbacks=[Scalars(every_steps=1), Watch()], loggers=[seen])

    patterns = {
        "embedding": r"(position_)?embedding\.weight",
        "attention": r"blocks\.\d\.attention\.",
        "mlp": r"blocks\.\d\.mlp\.",
        "unembedding": r"unembedding\.weight",
        "norm": r"norm\.|blocks\.\d\.(attention|mlp)_norm",
    }
    if kind == "gpt2":
        del patterns["unembedding"]  # tied to the embedding
    else:
        del patterns["norm"]  # has no weights
    logged = [tag for tag in seen.tags() if "update_ratio" in tag]
    assert {tag.rpartition("/")[2] for tag in logged} == set(patterns)

    for name, pattern in patterns.items():
        own = [key for key in weights[0] if re.match(pattern, key)]
        flat = [flat_weights(step, own) for step in weights]

        norms = [w.norm().item() for w in flat[1:]]
        shown = list(seen.values(f"weights/norm/{name}").values())
        assert shown == pytest.approx(norms, rel=1e-5)

        ratios = [((new - old).norm() / new.norm()).item() for old, new in pairwise(flat)]
        shown = list(seen.values(f"weights/update_ratio/{name}").values())
        assert shown == pytest.approx(ratios, rel=1e-4)


def test_the_share_of_clipped_steps_is_of_those_since_the_last_point(train):
    # At this limit, three of six steps are not clipped: those with the smallest gradients.
    free = Figures()
    seen = Seen()
    train(callbacks=[Scalars(every_steps=3), free], loggers=[seen], gradient_clip=None)
    assert seen.values("weights/clipped") == {}
    limit = sorted(free.norms.values())[2] * 1.0001

    figures = Figures()
    seen = Seen()
    train(callbacks=[Scalars(every_steps=3), figures], loggers=[seen], gradient_clip=limit)
    norms = figures.norms
    clipped = {step: norm > limit for step, norm in norms.items()}
    assert 0 < sum(clipped.values()) < 6

    shares = {
        1: clipped[1] / 1,
        3: (clipped[2] + clipped[3]) / 2,
        6: (clipped[4] + clipped[5] + clipped[6]) / 3,
    }
    assert seen.values("weights/clipped") == pytest.approx(shares)
    shown = {step: norms[step] for step in (1, 3, 6)}
    assert seen.values("weights/grad_norm") == pytest.approx(shown)


@pytest.mark.slow
def test_parts_and_speed_are_of_the_clock_and_memory_of_the_system(train):
    class Slow(Callback):
        def on_train_batch_start(self, *_):
            time.sleep(0.02)

        def on_before_backward(self, *_):
            time.sleep(0.03)

        def on_after_backward(self, *_):
            time.sleep(0.04)

    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    # The callback's hook runs before that of Scalars, so its sleep counts for the part that ends there.
    seen = Seen()
    callbacks = [Slow(), Scalars(every_steps=2, peak_tflops=0.5)]
    trainer = train(callbacks=callbacks, loggers=[seen], batch_size=4)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9

    # A step has two micro-steps, and each sleeps.
    for part, least in (("data", 40), ("forward", 60), ("backward", 80), ("optimizer", 0)):
        spent = seen.values(f"work/ms/{part}")
        assert list(spent) == [1, 2, 3, 4, 6]
        if part == "data":
            # The first sleep of step 4 follows a validation, and counts for no part.
            spent[4] += 20
        assert all(least < value < least + 5000 for value in spent.values())

    # A step has 40 tokens and takes at least 0.18 s. The speed is unknown at the start and after a validation, until a
    # micro-step has ended.
    speeds = seen.values("work/tokens_per_second")
    assert list(speeds) == [1, 2, 3, 4, 6]
    assert all(4 < speed < 40 / 0.18 for speed in speeds.values())
    flops = trainer.lightning_module.model.flops_per_token
    expected = {step: speed * flops / 0.5e12 for step, speed in speeds.items()}
    assert seen.values("work/mfu") == pytest.approx(expected)
    for memory in seen.values("work/memory_gb").values():
        assert before * 0.999 <= memory <= after * 1.001


def test_the_learning_rate_shown_is_the_one_used(train):
    seen = Seen()
    train(callbacks=[Scalars(every_steps=1)], loggers=[seen])

    # The warm-up is (s + 1) / 3, then 0.1 + 0.9 * (1 + cos(pi * (s - 2) / 3)) / 2.
    multipliers = (1 / 3, 2 / 3, 1, 0.775, 0.325, 0.1)
    expected = {step: 0.01 * multiplier for step, multiplier in enumerate(multipliers, 1)}
    assert seen.values("train/lr/matrices") == pytest.approx(expected, rel=1e-5)
    assert seen.values("train/lr/matrices") == seen.values("train/lr/scalars")


def test_samples_differ_by_seed_and_show_documents_apart(train):
    texts = []
    for seed in (3, 3, 4):
        samples = Samples(**SAMPLING | {"seed": seed})
        train(callbacks=[samples])
        texts += samples.texts

    assert texts[0] == texts[1] != texts[2]
    assert "<|endoftext|>" not in "".join(texts)
