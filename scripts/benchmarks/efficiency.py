"""Tokens and time to a loss: gptmini train from scratch for several seeds, in turns with a peer's command.

Training time is the time of the whole command less the time of the same command with one step, so that it holds neither
start-up nor evaluation. The loss is that of the last step, over whatever the experiment validates on.
"""

import argparse
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from gptmini.commands.compose import compose
from gptmini.commands.errors import Parser
from gptmini.commands.resumed import going_on
from gptmini.commands.settings import build_settings
from gptmini.commands.tokens import open_tokens
from gptmini.model import check_seed
from gptmini.user_error import UserError

TRAIN = Path(__file__).resolve().parent.parent / "train.py"
UNWATCHED = ("callbacks.samples=null", "callbacks.pictures=null")  # a peer writes neither


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of a run."""

    training: float
    in_all: float  # of the whole command


def main() -> None:
    """Train gptmini and the peer in turns, print a line for each run, then means and ratios."""
    arguments = parse_arguments()
    overrides = arguments.overrides
    if not any(override.startswith("experiment=") for override in overrides):
        overrides = ["experiment=shakespeare_char_cpu", *overrides]
    config, typed = compose("train", overrides)
    config, typed = going_on(config, typed)
    parts = build_settings(config)
    settings = parts.trainer
    # Prepare the tokens, so that no run that is timed prepares them.
    open_tokens(config, typed, parts)

    # Validate once, at the end.
    overrides = [*overrides, f"trainer.val_every_steps={settings.max_steps}"]
    n_tokens = settings.max_steps * settings.global_batch_size * config.model.context_length
    print(f"{'ours':8} {n_tokens:,} tokens: {' '.join(overrides)}", flush=True)

    losses = []
    ours: list[Times] = []
    peers: list[Times] = []
    with tempfile.TemporaryDirectory() as runs:
        for seed in arguments.seeds:
            command = [
                sys.executable,
                str(TRAIN),
                *overrides,
                *UNWATCHED,
                f"seed={seed}",
                f"runs_dir={runs}",
                f"trainer.threads={arguments.threads}",
            ]
            in_all = seconds(command)
            loss = final_loss(runs)
            brief = seconds([*command, "trainer.max_steps=1"])
            times = Times(training=in_all - brief, in_all=in_all)
            losses.append(loss)
            ours.append(times)
            print(f"seed {seed:3} val loss {loss:.4f}, {described(times)}", flush=True)

            if arguments.peer:
                times = time_peer(arguments)
                peers.append(times)
                print(f"{'peer':8} {described(times)}", flush=True)

    print(f"{'mean':8} val loss {statistics.mean(losses):.4f} after {n_tokens:,} tokens")
    print_times("training", [times.training for times in ours], [times.training for times in peers])
    print_times("in all", [times.in_all for times in ours], [times.in_all for times in peers])


def parse_arguments() -> argparse.Namespace:
    """Read and check the command line."""
    parser = Parser(prog="benchmark.py efficiency", description=__doc__.splitlines()[0])
    parser.add_argument(
        "overrides",
        nargs="*",
        help="overrides as for gptmini train (experiment=shakespeare_char_cpu if none names one)",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[1, 2, 3],
        help="seeds, with one run for each (default: 1 2 3)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="CPU threads of gptmini (default: %(default)s)",
    )
    parser.add_argument(
        "--peer",
        help="a command to alternate with, which sets its threads itself",
    )
    parser.add_argument(
        "--peer-brief",
        help="the peer's command with one step, from which its training time follows",
    )
    parser.add_argument(
        "--peer-folder",
        default=".",
        help="the folder in which the peer's commands run (default: this one)",
    )

    arguments = parser.parse_args()
    if arguments.threads < 1:
        parser.error("--threads must be at least 1")
    for seed in arguments.seeds:
        check_seed(seed=seed)
    if bool(arguments.peer) != bool(arguments.peer_brief):
        parser.error("--peer and --peer-brief go together")
    if not Path(arguments.peer_folder).is_dir():
        parser.error(f"--peer-folder must be a folder, got {arguments.peer_folder}")
    return arguments


def time_peer(arguments: argparse.Namespace) -> Times:
    """Run the peer's two commands."""
    in_all = seconds(shlex.split(arguments.peer), arguments.peer_folder)
    brief = seconds(shlex.split(arguments.peer_brief), arguments.peer_folder)
    return Times(training=in_all - brief, in_all=in_all)


def seconds(command: list[str], folder: str = ".") -> float:
    """Return the seconds that a command takes in a folder.

    Raises:
        UserError: the command failed; the message has the last line that it wrote.
    """
    start = time.perf_counter()
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = (result.stderr or result.stdout).splitlines() or ["nothing said"]
        raise UserError(
            f"{shlex.join(command)} ended with exit code {result.returncode}: {lines[-1]}"
        )
    return time.perf_counter() - start


def final_loss(runs: str) -> float:
    """Return the last validation loss of the newest run below a folder, in nats per token."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    configs = Path(runs).glob("*/*/config.yaml")
    newest = max(configs, key=lambda path: path.stat().st_mtime).parent
    events = EventAccumulator(str(newest)).Reload()
    return events.Scalars("val/loss")[-1].value


def described(times: Times) -> str:
    """Return the end of a run's line."""
    return f"{times.training:.2f} s training, {times.in_all:.2f} s in all"


def print_times(name: str, ours: list[float], peers: list[float]) -> None:
    """Print the median of some seconds, and their ratios to the peer's, turn by turn, if there is a peer."""
    line = f"{name:8} {statistics.median(ours):.2f} s, median"
    if peers:
        ratios = [peer / own for own, peer in zip(ours, peers, strict=True)]
        line += f"; the peer takes {statistics.median(ratios):.2f} times as long"
        line += f", from {min(ratios):.2f} to {max(ratios):.2f}"
    print(line)


if __name__ == "__main__":
    main()
