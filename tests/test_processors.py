"""What other programs take of the processors, and what is chosen for torch's threads beside them."""

import os
import subprocess
import sys
import time

import pytest

from gptmini import processors
from gptmini.processors import Company, Usage

# Two processors, as Linux's manual page proc_stat(5) describes them, in hundredths of a second: user, nice, system,
# idle, waiting for a disk, interrupts, soft interrupts, stolen, and two of guests that count in the first already.
STATISTICS = """\
cpu  300 30 60 1500 90 3 6 9 15 0
cpu0 100 10 20 1000 30 1 2 3 5 0
cpu1 200 20 40 500 60 2 4 6 10 0
intr 12345 1 2 3
ctxt 9
"""
OF_CPU0 = 100 + 10 + 20 + 1 + 2 + 3
OF_CPU1 = 200 + 20 + 40 + 2 + 4 + 6

# Says which variable a program would start torch with.
CHOOSING = """
import os, time
from gptmini import processors

before = processors.usage()
time.sleep(0.3)
processors.choose_waiting(before)
print(os.environ.get(processors.SPINS), processors.chosen_for())
"""


@pytest.fixture
def usable(monkeypatch, tmp_path):
    """Let this process use some processors of the two above; a number is its hundredths of a second."""
    (tmp_path / "stat").write_text(STATISTICS)
    monkeypatch.setattr(processors, "STATISTICS", tmp_path / "stat")
    monkeypatch.setattr(os, "sysconf", lambda name: 100)

    def use(*numbers):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(numbers), raising=False)

    return use


@pytest.fixture
def busy():
    """Start programs that never rest."""
    programs = []

    def start(number):
        for _ in range(number):
            programs.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))

    yield start
    for program in programs:
        program.kill()
        program.wait()


def test_usage_adds_up_what_the_usable_processors_have_worked(usable):
    usable(0, 1)
    assert processors.usage().everyone == (OF_CPU0 + OF_CPU1) / 100
    usable(1)
    assert processors.usage().everyone == OF_CPU1 / 100


@pytest.mark.parametrize(
    "content", ["\n\n", "cpu0\n", "cpu0 1 2\n", "cpu0 a b c d e f g h\n", "cpü0"]
)
def test_statistics_of_another_form_tell_nothing(usable, tmp_path, content):
    usable(0, 1)
    (tmp_path / "stat").write_text(content)
    assert processors.usage() is None


def test_a_system_without_statistics_tells_nothing(usable, monkeypatch, tmp_path):
    usable(0, 1)
    monkeypatch.setattr(processors, "STATISTICS", tmp_path / "absent")
    assert processors.usage() is None


@pytest.mark.parametrize(
    ("everyone", "own", "n_processors", "n_threads", "taken"),
    [
        (4.0, 2.0, 2, 2, 1.0),  # one of two processors is another program's
        (3.1, 2.0, 2, 2, 0.55),
        (2.9, 2.0, 2, 2, None),  # 0.45 processors: no more than a quiet desktop takes
        (4.0, 4.0, 2, 2, None),  # all work is this process's own
        (4.0, 2.0, 2, 1, None),  # the one thread has the other processor
        (12.0, 2.0, 16, 8, None),  # 5 of 16 are taken, and 8 threads find room in 11
        (24.0, 2.0, 16, 8, 11.0),
        (1.5, 2.0, 2, 2, None),  # readings of two clocks may differ by a little
    ],
)
def test_others_count_where_they_take_what_the_threads_need(
    usable, everyone, own, n_processors, n_threads, taken
):
    usable(*range(n_processors))
    before = Usage(at=10.0, everyone=100.0, own=1.0)
    after = Usage(at=12.0, everyone=100.0 + everyone, own=1.0 + own)

    found = processors.company(before, after, n_threads=n_threads)
    expected = None if taken is None else Company(pytest.approx(taken), n_processors)
    assert found == expected


def test_nothing_is_said_of_readings_that_are_absent_or_of_one_moment(usable):
    usable(0, 1)
    reading = Usage(at=10.0, everyone=100.0, own=1.0)
    for before, after in ((None, reading), (reading, None), (reading, reading)):
        assert processors.company(before, after, n_threads=2) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what its processors do")
def test_a_busy_program_counts_as_much_as_the_system_says_that_it_worked(busy):
    busy(2)
    before = processors.usage()
    time.sleep(0.5)
    after = processors.usage()

    # Two programs share the processors with whatever else runs, so at least one of them worked all the time.
    work = (after.everyone - before.everyone) / (after.at - before.at)
    assert 0.8 < work <= len(os.sched_getaffinity(0)) + 0.1


def chosen(**variables):
    own = {name: value for name, value in os.environ.items() if name not in processors.USERS_OWN}
    result = subprocess.run(
        [sys.executable, "-c", CHOOSING],
        env=own | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.split(maxsplit=1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what its processors do")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one thread waits for no other")
def test_threads_beside_busy_programs_sleep_soon_unless_the_user_says_otherwise(busy):
    present = len(os.sched_getaffinity(0))
    busy(2 * present)
    spins, company = chosen()
    assert spins == "300"
    assert company.endswith(f"of {present} processors\n")

    assert chosen(OMP_NUM_THREADS="2") == ["None", "None\n"]
    assert chosen(GOMP_SPINCOUNT="7") == ["7", "None\n"]


def test_nothing_is_chosen_once_torch_is_there(monkeypatch):
    import torch  # noqa: F401

    for name in processors.USERS_OWN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(processors, "company", lambda *rest, **options: Company(1.0, 2))
    processors.choose_waiting(Usage(at=0.0, everyone=0.0, own=0.0))
    assert processors.SPINS not in os.environ
    assert processors.chosen_for() is None
