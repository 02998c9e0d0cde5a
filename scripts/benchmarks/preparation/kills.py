"""A preparation that is killed at random instants, and started again."""

import argparse
import random
import shutil
import signal
import subprocess
import sys

from .commands import run
from .texts import SEPARATOR, text_of


def kills(arguments: argparse.Namespace) -> None:
    """Kills at random instants: every folder must be the same, byte for byte."""
    text = text_of(arguments, arguments.megabytes)
    draw = random.Random(0)
    root = arguments.folder / "killed"
    shutil.rmtree(root, ignore_errors=True)
    command = [
        *(sys.executable, "-m", "gptmini", "prepare", "data=text", "tokenizer=gpt2"),
        *(f"data.path={text}", f"data.separator='{SEPARATOR}'", f"data_dir={root}"),
    ]
    seconds = run(*command).seconds
    (folder,) = root.glob("text-*")
    wanted = {path.name: path.read_bytes() for path in folder.iterdir()}
    print(f"  {seconds:.1f} s without a kill")

    n_kills = 0
    n_finished = 0
    n_same = 0
    while n_kills < arguments.kills:
        shutil.rmtree(folder)
        while True:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            try:
                process.wait(timeout=draw.uniform(0, seconds))
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                n_kills += 1
        n_finished += 1
        n_same += {path.name: path.read_bytes() for path in folder.iterdir()} == wanted
    print(f"  {n_kills} kills, {n_finished} folders, {n_same} the same")
    shutil.rmtree(root)
