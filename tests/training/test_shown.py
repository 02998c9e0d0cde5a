"""What a run shows: events, console, log, samples, and the files it leaves."""

import io
import re

import pytest
import torch
from events import EventLogger
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import gptmini
from gptmini.model.checkpoint import read_checkpoint
from gptmini.tokenizer import byte
from gptmini.training.callbacks import Samples, Scalars
from gptmini.training.checkpointing import RunCheckpoints

SAMPLING = {"prompt": "", "max_new_tokens": 9, "temperature": 1.0, "top_k": None, "top_p": None, "seed": 3}


def events(folder):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def test_events_hold_the_documented_tags_at_optimizer_steps(train, tmp_path):
    samples = Samples(byte([], []), **SAMPLING)
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
    training, validation = {"train/loss", "grad_norm", "lr"}, {"val/loss", "val/bits_per_byte"}
    assert set(read.Tags()["scalars"]) == training | validation | {"tokens_per_second"}
    assert read.Tags()["tensors"] == ["samples/text_summary"]
    for tag in training:
        assert [event.step for event in read.Scalars(tag)] == [1, 2, 4, 6]
    for tag in validation:
        assert [event.step for event in read.Scalars(tag)] == [3, 6]
    means = [(losses[i] + losses[i + 1]).item() / 2 for i in range(0, 12, 2)]  # two micro-steps a step
    assert [event.value for event in read.Scalars("train/loss")] == pytest.approx([means[0], *means[1::2]], rel=1e-6)
    assert read.Scalars("val/loss")[-1].value == pytest.approx(trainer.lightning_module.evaluation.loss)
    text = read.Tensors("samples/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert text == "\n".join("    " + line for line in samples.text.splitlines())
    assert all(event.value > 0 for event in read.Scalars("tokens_per_second"))


def test_learning_rate_shown_is_the_one_used(train, tmp_path):
    train(callbacks=[Scalars(1)], loggers=[EventLogger(str(tmp_path))])
    shown = [event.value for event in events(tmp_path).Scalars("lr")]
    # warm-up (s + 1) / 3, then 0.1 + 0.9 * (1 + cos(pi * (s - 2) / 3)) / 2, times 0.01
    assert shown == pytest.approx([0.01 * f for f in (1 / 3, 2 / 3, 1, 0.775, 0.325, 0.1)], rel=1e-5)


def test_event_folder_holds_nothing_but_events(train, tmp_path):
    train(callbacks=[Scalars(1)], loggers=[EventLogger(str(tmp_path / "run"))])
    assert all("tfevents" in path.name for path in (tmp_path / "run").iterdir())


@pytest.mark.parametrize("terminal", [False, True])
def test_console_names_step_losses_speed_and_time_left(train, shared_script, terminal):
    shown, kept = io.StringIO(), io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=80, soft_wrap=True, no_color=True)
    logger = shared_script("console").ConsoleLogger(console, Console(file=kept, soft_wrap=True), max_steps=6)
    train(callbacks=[Scalars(1)], loggers=[logger])
    last = re.compile(r"step 6/6  loss \d\.\d{4}  val loss \d\.\d{4}  [\d,]+ tokens/s  0 s left")
    assert last.search(kept.getvalue())
    assert last.search(shown.getvalue())
    assert ("━" in shown.getvalue()) == terminal
    assert "\x1b" not in kept.getvalue()


def test_best_last_and_previous_are_the_steps_they_name(train, tmp_path, checkpoints):
    trainer = train(callbacks=[checkpoints], max_steps=9, val_every_steps=5)
    folder = tmp_path / "checkpoints"
    steps = {path.stem: read_checkpoint(path)["global_step"] for path in folder.iterdir()}
    assert steps == {"best": 9, "last": 9, "previous": 8}  # the loss of so short a run falls throughout
    assert (folder / "best.ckpt").samefile(folder / "last.ckpt")
    assert checkpoints.best["loss"] == trainer.lightning_module.evaluation.loss


def test_a_checkpoint_alone_is_the_model_and_its_tokenizer(train, tmp_path, checkpoints):
    trainer = train("modern", callbacks=[checkpoints])
    model, tokenizer = gptmini.load(tmp_path)
    tokens = torch.tensor([tokenizer.encode("lazy")])
    expected = trainer.lightning_module.model.eval()(tokens)
    assert torch.equal(model(tokens), expected)


@pytest.mark.slow
def test_compiled_checkpoint_has_the_same_keys(train, tmp_path):
    keys = []
    for compile in (False, True):
        train(callbacks=[RunCheckpoints(1)], compile=compile, max_steps=1, val_every_steps=1)
        keys.append(list(read_checkpoint(tmp_path / "checkpoints" / "last.ckpt")["state_dict"]))
    assert keys[0] == keys[1]


def test_samples_differ_by_seed_and_show_documents_apart(train):
    texts = []
    for seed in (3, 3, 4):
        samples = Samples(byte([], []), **SAMPLING | {"seed": seed})
        train(callbacks=[samples])
        texts.append(samples.text)
    assert texts[0] == texts[1] != texts[2]
    assert "<|endoftext|>" not in "".join(texts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_steps": 0}, "max_steps must be a whole number above 0, got 0"),
        ({"max_steps": 2.5}, "max_steps must be a whole number above 0, got 2.5"),
        ({"gradient_clip": -1}, "gradient_clip must be a number above 0, or null for none, got -1"),
        (
            {"global_batch_size": 12, "batch_size": 8},
            "must be a multiple of trainer.batch_size times devices, got 12, 8",
        ),
        ({"val_tokens": "all"}, "val_tokens must be a whole number above 0, got 'all'"),
    ],
)
def test_settings_out_of_range_are_refused(train, change, message):
    with pytest.raises(ValueError, match=message):
        train(**change)
