"""The tests that need a GPU, run by pytest: a row for each."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from ..harness import ROOT, Table
from .setting import Setting, shortened

SHARE = 0.5  # of the time that is left, so that the parts behind the checks have some
# Starts of lines that pytest and Lightning print into a test's output.
NOT_OF_THE_TEST = ("---", "INFO", "GPU avail", "TPU avail")


def run_checks(table: Table, setting: Setting) -> None:
    """Run the tests that need a GPU, and add a row for each with the last line that it printed."""
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
        # The exception holds bytes in spite of text=True, or None if nothing was printed.
        add_finished(table, (error.stdout or b"").decode())
        table.add("those that are left", None, status="no time left")
        return

    if report.is_file():
        add_reported(table, report)
    else:
        said = shortened((result.stderr or result.stdout)[-200:])
        table.add("all of them", None, status="failed", error=said)


def add_finished(table: Table, output: str) -> None:
    """Add a row for each test that pytest's output says was done before time was over."""
    for name, status in re.findall(r"::test_(\S+) (PASSED|FAILED|SKIPPED|ERROR)", output):
        said = "failed" if status == "ERROR" else status.lower()
        table.add(name, said, status=said)


def add_reported(table: Table, report: Path) -> None:
    """Add a row for each test of a JUnit report: its seconds, its last line, and why it failed or was skipped."""
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
