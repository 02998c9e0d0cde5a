"""Tokens and time to a loss: gptmini train from scratch for several seeds, in turns with a peer's command.

Training time is the whole command's less that of the same command with one step, so it holds neither start-up nor
evaluation. The loss is that of the last step, over whatever the experiment validates on.
"""

import argparse
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gptmini.checks import UserError
from gptmini.commands.errors import Parser
from gptmini.commands.launching import compose_checked
from gptmini.commands.plan import check_configuration, open_tokens

TRAIN = Path(__file__).resolve().parent.parent / "train.py"
UNWATCHED = ("callbacks.samples=null", "callbacks.pictures=null")  # a peer writes neither


def seconds(command: list[str], folder: str = ".") -> float:
    """Time of a command; UserError, with the last line that it wrote, if it fails."""
    start = time.perf_counter()
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = (result.stderr or result.stdout).splitlines() or ["nothing said"]
        raise UserError(f"{shlex.join(command)} ended with exit code {result.returncode}: {lines[-1]}")
    return time.perf_counter() - start


def final_loss(runs: str) -> float:
    """Last validation loss of the newest run below a folder, in nats per token."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    newest = max(Path(runs).glob("*/*/config.yaml"), key=lambda path: path.stat().st_mtime).parent
    return EventAccumulator(str(newest)).Reload().Scalars("val/loss")[-1].value


def parse() -> argparse.Namespace:
    """The command line."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="as for gptmini train (experiment=shakespeare_char_cpu if none)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one run each (default: 1 2 3)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of ours (default: %(default)s)")
    parser.add_argument("--peer", help="a command to alternate with; give it its threads in the environment")
    parser.add_argument("--peer-brief", help="the same command with one step, for its training time")
    parser.add_argument("--peer-folder", default=".", help="where the peer's commands run (default: here)")
    arguments = parser.parse_args()
    if arguments.threads < 1:
        parser.error("--threads must be at least 1")
    if bool(arguments.peer) != bool(arguments.peer_brief):
        parser.error("--peer and --peer-brief go together")
    return arguments


def main() -> None:
    """Alternate the two for each seed, print a line for each run, then means and ratios."""
    arguments = parse()
    overrides = arguments.overrides
    if not any(override.startswith("experiment=") for override in overrides):
        overrides = ["experiment=shakespeare_char_cpu", *overrides]
    config = compose_checked("train", overrides)
    settings = check_configuration(config).settings
    open_tokens(config, None)  # prepared outside what is timed

    overrides = [*overrides, f"trainer.val_every_steps={settings.max_steps}"]  # validate once, at the end
    n_tokens = settings.max_steps * settings.global_batch_size * config.model.context_length
    print(f"{'ours':8} {n_tokens:,} tokens: {' '.join(overrides)}", flush=True)
    losses = []
    ours = []
    peers = []
    with tempfile.TemporaryDirectory() as runs:
        for seed in arguments.seeds:
            more = [f"seed={seed}", f"runs_dir={runs}", f"trainer.threads={arguments.threads}"]
            command = [sys.executable, str(TRAIN), *overrides, *UNWATCHED, *more]
            whole = seconds(command)
            loss = final_loss(runs)
            training = whole - seconds([*command, "trainer.max_steps=1"])
            losses.append(loss)
            ours.append((training, whole))
            print(f"seed {seed:3} val loss {loss:.4f}, {training:.2f} s training, {whole:.2f} s in all", flush=True)
            if arguments.peer:
                whole = seconds(shlex.split(arguments.peer), arguments.peer_folder)
                training = whole - seconds(shlex.split(arguments.peer_brief), arguments.peer_folder)
                peers.append((training, whole))
                print(f"{'peer':8} {training:.2f} s training, {whole:.2f} s in all", flush=True)

    print(f"{'mean':8} val loss {statistics.mean(losses):.4f} after {n_tokens:,} tokens")
    for name, column in (("training", 0), ("in all", 1)):
        line = f"{name:8} {statistics.median(times[column] for times in ours):.2f} s, median"
        if peers:
            ratios = sorted(peer[column] / own[column] for own, peer in zip(ours, peers, strict=True))
            line += f"; the peer takes {statistics.median(ratios):.2f} times as long"
            line += f", from {ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(line)


if __name__ == "__main__":
    main()
