"""Kill a sweep of pretended runs again and again, and check its results."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pretended_sweep
from pretended_sweep import table_of

TARGETS = ("the sweep", "a run", "everything")


def kill_often(folder, sampler, n_kills, chance, most_seconds=3):
    """Kill the sweep, one run, or all of them, n_kills times in total. Return the number of kills by target.

    Each kill comes at most most_seconds after the first run has started.
    """
    counts = dict.fromkeys(TARGETS, 0)
    while True:
        process = pretended_sweep.start(folder, sampler)
        while sum(counts.values()) < n_kills and process.poll() is None:
            # A kill before the first run would test little.
            while not runs_in(folder) and process.poll() is None:
                time.sleep(0.02)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=chance.uniform(0, most_seconds))
                break
            target = chance.choice(TARGETS)
            runs = runs_in(folder)
            chance.shuffle(runs)
            killed = {
                "the sweep": [process.pid],
                "a run": runs[:1],
                "everything": [process.pid, *runs],
            }[target]
            for pid in killed:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            counts[target] += bool(killed)
            if process.pid in killed:
                break
        if process.wait() == 0:
            return counts
        assert process.returncode == -signal.SIGKILL, process.returncode


def runs_in(folder):
    """Return the process ids of a sweep's runs, from /proc (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if (
                entry.name.isdigit()
                and f"folder={folder}/".encode() in (entry / "cmdline").read_bytes()
            ):
                found.append(int(entry.name))
    return found


def check(folder, n_trials):
    """Assert that no trial was lost, duplicated or trained twice."""
    rows = table_of(folder)
    assert [int(row["trial"]) for row in rows] == list(range(n_trials))
    assert {row["state"] for row in rows} == {"done"}
    assert len({json.dumps(row | {"trial": ""}) for row in rows}) == n_trials
    assert len(list(folder.glob("*/config.yaml"))) == n_trials
    for number in range(n_trials):
        lines = (folder / "notes" / f"{number}.jsonl").read_text().splitlines()
        notes = [json.loads(line) for line in lines]
        steps = [fact["saved"] for fact in notes if "saved" in fact]
        assert steps == sorted(set(steps))
        values = {str(fact["start"]) for fact in notes if "start" in fact}
        assert len(values) == 1
