"""The output of a run in a terminal, in a pipe and in train.log."""

import io
import math
import re
import time

import lightning as L
import pytest
from rich.console import Console

from gptmini.console.terminal import Screen
from gptmini.training.callbacks.scalars import Scalars
from gptmini.training.loggers.console import ConsoleLogger, sparkline
from gptmini.training.trainer_settings import TrainerSettings
from training.runs import SETTINGS

LOSSES = (5.25, 4.75, 4.875, 4.5)  # of validations after 10, 20, 30 and 40 steps
TRAINED = {"train/loss": 4.4375, "work/tokens_per_second": 12345.6, "train/tokens": 1_234_567_890}


class Encoded(io.TextIOWrapper):
    """The written bytes in an encoding."""

    def __init__(self, encoding):
        super().__init__(io.BytesIO(), encoding=encoding, errors="strict", write_through=True)

    def text(self):
        return self.buffer.getvalue().decode(self.encoding)


def steps(max_steps):
    """Settings of a run that validates only its last step."""
    return TrainerSettings(**SETTINGS | {"max_steps": max_steps, "val_every_steps": max_steps})


def watch(
    monkeypatch,
    *,
    terminal,
    encoding="utf-8",
    no_color=False,
    max_steps=40,
    losses=LOSSES,
    before=(),
    began=None,
):
    """The output of a run on the console and in train.log, and its logger."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")

    shown = Encoded(encoding)
    kept = io.StringIO()
    console = Console(
        file=shown, force_terminal=terminal, width=80, soft_wrap=True, highlight=False
    )
    logger = ConsoleLogger(Screen(console, kept), steps(max_steps), before)
    logger._start = began and (began, 0)

    for i, loss in enumerate(losses, start=1):
        step = max_steps * i // len(losses)
        validated = {"val/loss": loss, "val/bits_per_byte": loss / 2, "val/gap": loss - 4.4375}
        logger.log_metrics(TRAINED | {"train/tokens": 12_345 * (step - 1)}, step - 1)
        logger.log_metrics(validated, step)

    for line in logger.final_table():
        logger.print_line(line)
    logger.finalize("success")
    return shown.text(), kept.getvalue(), logger


@pytest.mark.parametrize("terminal", [False, True])
def test_a_validation_says_better_or_worse_and_the_way_of_the_loss(monkeypatch, terminal):
    shown, kept, _ = watch(monkeypatch, terminal=terminal, no_color=True)
    for text in (shown, kept):
        assert re.search(r"step 10/40  loss 4.4375  val loss 5.2500 ▁  \S", text)
        assert re.search(r"step 20/40  loss 4.4375  val loss 4.7500 ↓ █▁  \S", text)
        # 0.125 above the lowest loss, in a range of 0.5: step 1.75 of seven, rounded to 2.
        assert re.search(r"step 30/40  loss 4.4375  val loss 4.8750 ↑ █▁▃  \S", text)
        assert re.search(r"step 40/40  loss 4.4375  val loss 4.5000 ↓ █▃▅▁  0 s left", text)

    assert ("━" in shown) == terminal
    assert "\x1b" not in kept
    assert not re.search("\x1b\\[[0-9;]*3[0-9]m", shown)  # no colour

    coloured, kept, _ = watch(monkeypatch, terminal=True)
    assert "\x1b[32m↓" in coloured
    assert "\x1b[31m↑" in coloured
    assert "\x1b" not in kept


def test_a_step_with_a_validation_has_one_line(monkeypatch):
    now = iter(range(0, 1000, 10))  # ten seconds apart: every progress line is due
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    kept = io.StringIO()
    console = Console(file=io.StringIO(), width=80)
    logger = ConsoleLogger(Screen(console, kept), steps(4))
    for step in (1, 2, 3, 4):
        logger.log_metrics(TRAINED, step)
    logger.log_metrics({"val/loss": 4.5}, 4)

    lines = kept.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/4", "2/4", "3/4", "4/4"]
    assert "val loss 4.5000" in lines[-1]


def test_nothing_but_ascii_reaches_a_console_that_has_nothing_else(monkeypatch):
    # The encoding is strict: unsupported characters would raise an error.
    shown, kept, _ = watch(monkeypatch, terminal=False, encoding="ascii")
    assert "val loss 4.7500 v  0 s left" in shown
    assert "val loss 4.8750 ^  0 s left" in shown
    assert "val loss 4.8750 ^  0 s left" in kept


def test_the_final_table_has_first_last_and_best(monkeypatch):
    # The loss falls until the 30th validation and rises from then on.
    losses = [5.0 - i / 50 for i in range(30)] + [4.6 + i / 50 for i in range(20)]
    _, _, logger = watch(monkeypatch, terminal=False, max_steps=500, losses=losses)
    heading, *rows = logger.final_table()

    columns = ["step", "tokens", "train loss", "val loss", "bits/byte", "val-train"]
    assert heading.split("  ")[-1] == "val-train"
    assert [word for word in re.split("  +", heading.strip()) if word] == columns

    steps = [int(row.split()[0]) for row in rows]
    assert (steps[0], steps[-1], len(steps)) == (10, 500, 9)

    (best,) = (row for row in rows if row.endswith("best"))
    assert best.split() == ["300", "3,703,500", "4.4375", "4.4200", "2.2100", "-0.0175", "best"]


def test_validations_of_the_past_have_what_was_logged_last_before_them(monkeypatch):
    before = [
        {"step": 0, "setup/config": [["seed", "1"]]},
        {"step": 1, "train/loss": 9.0, "train/tokens": 64},
        {"step": 3, "train/loss": 8.0, "train/tokens": 192},
        {"step": 4, "val/loss": 6.0},
        {"step": 4, "samples": ["four"]},
        {"step": 8, "train/loss": 7.0},
        {"step": 8, "val/loss": 5.0},
        {"step": 9, "train/loss": 6.5},
    ]
    _, _, logger = watch(monkeypatch, terminal=False, losses=[], before=before)
    # All steps have equally many tokens, so the number is known at steps that did not log it.
    assert [row.split() for row in logger.final_table()[1:]] == [
        ["4", "256", "8.0000", "6.0000"],
        ["8", "512", "7.0000", "5.0000", "best"],
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_and_the_bar_fit_into_80_columns(monkeypatch, terminal):
    began = time.monotonic() - 40_000  # hours ago, so that hours are left
    losses = [9 - i / 9 for i in range(39)] + [math.nan]
    shown, kept, logger = watch(
        monkeypatch, terminal=terminal, max_steps=100_000, losses=losses, began=began
    )
    assert "val loss nan ↑ " in kept
    assert re.search(r"\d+ h \d\d min left", kept)
    assert max(len("losses   " + line) for line in logger.final_table()) <= 80

    plain = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", shown).replace("\r", "\n").splitlines()
    lines = [line.rstrip() for line in plain if re.match("step .*(tokens/s|val loss)", line)]
    assert max(map(len, lines)) <= 80
    # No line was cut short.
    assert all(line.endswith((" left", "tokens/s")) for line in lines)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], ""), ([3.0], "▁"), ([1.0, 1.0], "▁▁"), ([1, 8, 4.5], "▁█▅"), ([math.inf, 2, 1], "?█▁")],
)
def test_a_sparkline_goes_from_the_lowest_to_the_highest(values, expected):
    assert sparkline(values) == expected


class Recorder(L.Callback):
    """Stores how far the progress bar of a console is after each micro-step."""

    def __init__(self, logger):
        self.logger = logger
        self.shown = []

    def on_train_batch_end(self, trainer, *hook):
        bar = self.logger._bar
        self.shown.append(None if bar is None else bar.tasks[0].completed)


def test_the_bar_advances_in_every_step(train):
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    logger = ConsoleLogger(Screen(console), steps(6))
    recorder = Recorder(logger)
    # Scalars are logged after the steps 1, 4 and 6, and after the validations of the steps 3 and 6.
    callbacks = [Scalars(every_steps=4), logger.step_callback(), recorder]
    train(callbacks=callbacks, loggers=[logger], max_steps=6, val_every_steps=3, batch_size=4)
    # A step has two micro-steps.
    assert recorder.shown == [None, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]


@pytest.mark.parametrize(
    ("val", "train", "said"),
    [
        ([3.0, 2.0, 2.1, 2.2, 2.3], [3.0, 2.0, 1.9, 1.8, 1.7], [4]),
        ([2.0, 2.1, 2.0, 2.1, 2.2], [2.0, 1.9, 1.8, 1.7, 1.6], [5]),
        ([2.0, 2.1, 2.2, 2.3], [None, 1.9, 1.8, 1.7], [4]),  # the first is before the first step
        ([3.0, 2.0, 2.1, 2.2], [3.0, 2.0, 1.9, 1.9], []),
        ([3.0, 2.0, 2.1, 2.1], [3.0, 2.0, 1.9, 1.8], []),
        ([2.0, 2.1, math.nan, 2.2], [2.0, 1.9, 1.8, 1.7], []),
    ],
)
def test_overfitting_is_said_once_also_if_the_run_is_resumed(val, train, said):
    lines = []
    for step, (of_val, of_train) in enumerate(zip(val, train, strict=True), start=1):
        losses = {"val/loss": of_val, "train/loss": of_train}
        lines.append({"step": step, **{tag: losses[tag] for tag in losses if losses[tag]}})

    for n_before in range(len(lines)):
        kept = io.StringIO()
        logger = ConsoleLogger(Screen(Console(quiet=True), kept), steps(9), lines[:n_before])
        for line in lines[n_before:]:
            logger.log_metrics({tag: line[tag] for tag in line if tag != "step"}, line["step"])
        told = re.findall(r"step (\d)/9.*\noverfit ", kept.getvalue())
        assert told == [str(step) for step in said if step > n_before]
