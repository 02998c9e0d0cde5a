"""Run the GPU tests with pytest and add one row per test."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from ..harness import ROOT, Table
from .setting import Setting, shortened

SHARE = 0.5  # fraction of the remaining time for the checks, so that the later parts also get time
# Prefixes of lines that pytest and Lightning print, not the test.
NOT_OF_THE_TEST = ("---", "INFO", "GPU avail", "TPU avail")


def run_checks(table: Table, setting: Setting) -> None:
    """Run the GPU tests, and add a row for each test with its last line of output."""
    report = setting.folder / "checks.xml"
    options = ["-v", "-m", "gpu", "-p", "no:cacheprovider", "-o", "junit_logging=system-out"]
    environment = dict(os.environ)
    if setting.dry:
        environment["GPTMINI_GPU_CHECKS"] = "cpu"
    try:
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "tests/gpu", *options, f"--junitxml={report}"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=max(0.0, setting.left * SHARE),
        )
    except subprocess.TimeoutExpired as error:
        # The output is bytes in spite of text=True, or None if nothing was printed.
        add_finished(table, (error.stdout or b"").decode())
        table.add("those that are left", None, status="no time left")
        return

    if report.is_file():
        add_reported(table, report)
    else:
        message = shortened((result.stderr or result.stdout)[-200:])
        table.add("all of them", None, status="failed", error=message)


def add_finished(table: Table, output: str) -> None:
    """Add a row for each test that pytest finished before the time was over."""
    for name, status in re.findall(r"::test_(\S+) (PASSED|FAILED|SKIPPED|ERROR)", output):
        outcome = "failed" if status == "ERROR" else status.lower()
        table.add(name, outcome, status=outcome)


def add_reported(table: Table, report: Path) -> None:
    """Add a row for each test of a JUnit report: its seconds, last line, and reason for a failure or skip."""
    for case in ElementTree.parse(report).iter("testcase"):
        details: dict[str, float | str] = {"seconds": float(case.get("time", "0"))}
        for line in (case.findtext("system-out") or "").strip().splitlines():
            if line and not line.startswith(NOT_OF_THE_TEST):
                details["said"] = line

        status = "passed"
        for problem in case:
            if problem.tag in ("failure", "error", "skipped"):
                status = "skipped" if problem.tag == "skipped" else "failed"
                details["error"] = shortened(problem.get("message") or "")
        name = case.get("name", "").removeprefix("test_").replace("_", " ")
        table.add(name, status, status=status, **details)
