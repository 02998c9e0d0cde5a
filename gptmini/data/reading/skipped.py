"""Problems with skipped records and chats."""

from dataclasses import dataclass, field

# Number of problems that are listed. More problems are only counted.
MOST_LISTED = 10_000


@dataclass
class SkippedRecords:
    """The number of skipped records, and the problems of the first MOST_LISTED of them."""

    n: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, n: int, problems: list[str]) -> None:
        """Add n records with these problems."""
        self.n += n
        self.problems += problems[: MOST_LISTED - len(self.problems)]

    def listed(self) -> str:
        """Return one line for each listed record, and a line with the number of the other records."""
        more = self.n - len(self.problems)
        lines = [*self.problems, *([f"and {more:,} more"] if more else [])]
        return "".join(f"{line}\n" for line in lines)

    def notes(self, noun: str, what: str) -> list[str]:
        """Return a list with a line such as "1 unreadable record was skipped; first error: ...", or an empty list."""
        if not self.n:
            return []
        subject = f"1 {noun} was" if self.n == 1 else f"{self.n:,} {noun}s were"
        return [f"{subject} {what}; first error: {self.problems[0]}"]
