"""What a training run says of itself when it begins, goes on and ends."""

from collections.abc import Callable
from pathlib import Path


def announce(say: Callable, store, written: bool, module, hardware, folder: Path, runs_dir: str) -> None:
    """Say what is trained, on what, and where it can be watched."""
    n_train, n_val = store.n_tokens("train"), store.n_tokens("val")
    say(
        "data",
        f"{store.folder}, {'prepared now' if written else 'prepared before'}",
        f"{n_train:,} tokens to train on, {n_val:,} held out; {1 / store.tokens_per_byte('train'):.2f} bytes a token",
    )
    model = module.model
    say("model", f"{model.n_parameters:,} parameters, {model.flops_per_token / 1e6:.1f} MFLOP a token")
    say("machine", str(hardware))
    say("run", str(folder), f"watch it: tensorboard --logdir {runs_dir}")


def announce_resume(say: Callable, path: Path | None, checkpoint: dict | None, module) -> None:
    """Say from where the run goes on, and what a new number of steps does to the learning rate."""
    if checkpoint is None:
        say("resume", "nothing was saved yet: from the first step")
        return
    step, before, now = checkpoint["global_step"], checkpoint["gptmini"]["max_steps"], module.settings.max_steps
    done = step == now and checkpoint["gptmini"]["validated_step"] == step
    say("resume", f"{path}, step {step} of {now}{'; it is complete, trainer.max_steps= goes further' if done else ''}")
    if before != now:
        rates = [module.peak_lr * module.schedule(step, max_steps=max_steps) for max_steps in (before, now)]
        change = f"the learning rate of the next step was {rates[0]:.3g}, is {rates[1]:.3g}"
        say("", f"max_steps was {before}, is {now}: {change}")


def conclude(say: Callable, lines, callbacks: list, module, folder: Path) -> None:
    """Say how good it became, step by step and at best, show samples, and name the commands that come next."""
    import math

    from gptmini.training.checkpointing import RunCheckpoints
    from gptmini.training.monitoring.samples import Samples

    say("losses", *lines.final_table())
    for callback in callbacks:
        if isinstance(callback, RunCheckpoints) and callback.best is None:
            saved = module.evaluation is not None and math.isfinite(module.evaluation.loss)
            reason = "it could not be saved" if saved else "no validation loss was finite; try a lower optimizer.lr"
            say("best", f"none: {reason}")
        elif isinstance(callback, RunCheckpoints):
            best = callback.best
            say("best", f"val loss {best['loss']:.4f}, {best['bits_per_byte']:.4f} bits per byte, step {best['step']}")
        if isinstance(callback, Samples):
            for text in callback.texts:
                say("sample", *text.splitlines())
    say("next", *(f"python scripts/{name}.py {folder}" for name in ("sample", "evaluate", "report")))
