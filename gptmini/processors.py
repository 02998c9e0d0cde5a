"""What other programs do with this machine's processors, and how torch's threads wait for each other beside them.

torch shares each operation out among threads, and a thread that is done spins for milliseconds while it waits for the
next operation, because that is quicker than to sleep and be woken. Where another program takes the processor of one of
these threads, all the others spin until that thread gets a processor again, hundreds of times a second. A thread that
soon goes to sleep gives its processor away instead.

GNU's OpenMP library reads how long to spin from the environment when torch loads it, so the choice is made before torch
is imported.
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# Of Linux: a line for each processor, with how long it has worked in each way since the system was started, and how
# long it was idle. Other systems have no such file, and there nothing is chosen.
STATISTICS = Path("/proc/stat")
IDLE_COLUMNS = (3, 4)  # idle, and idle while a disk answers
GUEST_COLUMNS = 8  # columns from here on count time that others count already
# Which processors of a core share its arithmetic units, as in "0,8" or "0-1".
SIBLINGS = "/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"

# Turns of the waiting loop before a thread sleeps; GNU's OpenMP takes 300,000.
SPINS = "GOMP_SPINCOUNT"
SPINS_IN_COMPANY = "300"
# Variables by which a user says how threads wait, or how many there are. What the user has set stays as it is.
USERS_OWN = ("OMP_WAIT_POLICY", SPINS, "KMP_BLOCKTIME", "OMP_NUM_THREADS")
# Processors that other programs must take before they count; a quiet desktop takes less.
COMPANY = 0.5
SHORTEST = 0.1  # seconds between two readings; the system counts in hundredths of a second


@dataclass(frozen=True)
class Usage:
    """How much the processors that this process may use have worked, in seconds of one processor."""

    at: float  # seconds of a steady clock
    everyone: float  # work of all programs since the system was started
    own: float  # work of this process since it was started


@dataclass(frozen=True)
class Company:
    """Other programs that keep processors busy."""

    taken: float  # processors that they take, on average
    present: int  # processors that this process may use

    def __str__(self) -> str:
        """Return a clause for the user."""
        return f"other programs take {self.taken:.1f} of {self.present} processors"


# Beside whom the threads of this process were told to sleep soon; None if they were not.
_chosen_for: Company | None = None


def usage() -> Usage | None:
    """Read how much the processors have worked; None on a system that does not tell."""
    usable = _usable()
    ticks = 0

    try:
        for line in STATISTICS.read_text(encoding="ascii").splitlines():
            name, *columns = line.split()
            is_processor = name.startswith("cpu") and name[3:].isdigit()
            if is_processor and int(name[3:]) in usable:
                counts = [int(column) for column in columns[:GUEST_COLUMNS]]
                ticks += sum(counts) - sum(counts[column] for column in IDLE_COLUMNS)
    except (OSError, ValueError, IndexError):  # there is no such file, or it has another form
        return None

    return Usage(
        at=time.monotonic(),
        everyone=ticks / os.sysconf("SC_CLK_TCK"),
        own=time.process_time(),
    )


def company(before: Usage | None, after: Usage | None, *, n_threads: int) -> Company | None:
    """Return what other programs took of the processors between two readings; None if n_threads threads had room."""
    if before is None or after is None or after.at <= before.at:
        return None

    work_of_others = (after.everyone - before.everyone) - (after.own - before.own)
    taken = work_of_others / (after.at - before.at)
    present = len(_usable())
    if taken < COMPANY or present - taken >= n_threads:
        return None
    return Company(taken=taken, present=present)


def choose_waiting(before: Usage | None) -> None:
    """Tell the threads that torch will start to sleep soon while they wait, if other programs take their processors.

    To be called before torch is imported; afterwards, and where the user has chosen, it does nothing.

    Args:
        before: a reading of a while ago. If that is less than a tenth of a second, this waits for the rest of it.
    """
    global _chosen_for
    if before is None or "torch" in sys.modules or users_own():
        return

    missing = before.at + SHORTEST - time.monotonic()
    if missing > 0:
        time.sleep(missing)

    _chosen_for = company(before, usage(), n_threads=_n_cores())
    if _chosen_for is not None:
        os.environ[SPINS] = SPINS_IN_COMPANY


def chosen_for() -> Company | None:
    """The programs beside which choose_waiting told the threads to sleep soon; None if it did not."""
    return _chosen_for


def users_own() -> bool:
    """Whether the user has said how threads wait, or how many there are; what choose_waiting has set does not count."""
    return _chosen_for is None and any(name in os.environ for name in USERS_OWN)


def users_environment() -> dict[str, str]:
    """The environment without what choose_waiting has set, for a program that is to choose for itself."""
    environment = dict(os.environ)
    if _chosen_for is not None:
        del environment[SPINS]
    return environment


def n_processors() -> int:
    """Number of processors that this process may use."""
    return len(_usable()) or os.cpu_count() or 1


def _usable() -> set[int]:
    """Numbers of the processors that this process may use; none on a system that does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return set()
    return os.sched_getaffinity(0)


def _n_cores() -> int:
    """Number of cores that this process may use, which is the number of threads that torch starts."""
    cores: set[bytes | int] = set()
    for number in _usable():
        try:
            cores.add(Path(SIBLINGS.format(number=number)).read_bytes())
        except OSError:
            cores.add(number)
    return len(cores)
