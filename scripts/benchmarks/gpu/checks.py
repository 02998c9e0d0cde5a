"""The tests that need a GPU, run by pytest: a row for each."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from .processes import ROOT, last_line
from .setting import Setting
from .table import Table, shortened

# Starts of lines that pytest and Lightning print into a test's output.
NOT_OF_THE_TEST = ("---", "INFO", "GPU avail", "TPU avail")


def run_checks(setting: Setting) -> None:
    """Run the tests that need a GPU, and add a row for each with the last line that it printed."""
    table = setting.table
    if table.left() <= 0:
        table.add("checks", "all of them", "no time left")
        return

    report = setting.folder / "checks.xml"
    environment = dict(os.environ)
    if setting.dry:
        environment["GPTMINI_GPU_CHECKS"] = "cpu"

    try:
        result = subprocess.run(
            pytest_command(report),
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=table.left() * setting.checks_share,
        )
    except subprocess.TimeoutExpired as error:
        # The exception holds bytes in spite of text=True, or None if nothing was printed.
        add_finished(table, (error.stdout or b"").decode())
        table.add("checks", "those that are left", "no time left")
        return

    if report.is_file():
        add_reported(table, report)
    else:
        table.add("checks", "all of them", "failed", error=last_line(result))


def pytest_command(report: Path) -> list[str]:
    """Return the command that runs the tests that need a GPU, and writes a JUnit report."""
    options = "-v -m gpu -p no:cacheprovider -o junit_logging=system-out"
    return [
        sys.executable,
        "-m",
        "pytest",
        "tests/gpu",
        *options.split(),
        f"--junitxml={report}",
    ]


def add_finished(table: Table, output: str) -> None:
    """Add a row for each test that pytest's output says was done before time was over."""
    for name, status in re.findall(r"::test_(\S+) (PASSED|FAILED|SKIPPED|ERROR)", output):
        table.add("checks", name, "failed" if status == "ERROR" else status.lower())


def add_reported(table: Table, report: Path) -> None:
    """Add a row for each test of a JUnit report: its seconds, its last line, and why it failed or was skipped."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    if not cases:
        table.add("checks", "all of them", "failed", error="no test was run")

    for case in cases:
        name = case.get("name", "").removeprefix("test_")
        figures = {"seconds": float(case.get("time", "0"))}
        said = last_line_of_test(case)
        if said:
            figures["said"] = said

        problem = problem_of_test(case)
        if problem is None:
            table.add("checks", name, "passed", **figures)
        else:
            status = "skipped" if problem.tag == "skipped" else "failed"
            reason = shortened(problem.get("message") or "")
            table.add("checks", name, status, **figures, error=reason)


def last_line_of_test(case: ElementTree.Element) -> str | None:
    """Return the last line that a test printed itself; None if it printed nothing."""
    said = None
    for line in (case.findtext("system-out") or "").strip().splitlines():
        if line and not line.startswith(NOT_OF_THE_TEST):
            said = line
    return said


def problem_of_test(case: ElementTree.Element) -> ElementTree.Element | None:
    """Return the element that says why a test failed or was skipped; None for a test that passed."""
    for child in case:
        if child.tag in ("failure", "error", "skipped"):
            return child
    return None
