"""Write the tables of docs/results.md from the JSON files in docs/results, without measuring anything.

In the page, everything from the line <!-- table: NAME PART ... --> to the line <!-- end --> is written here: the rows
of docs/results/NAME.json, of these parts alone if parts are named. What is the same in every row of a table stands once
below it. The machine of most tables stands once in the page, after the line <!-- machine -->.
"""

import argparse
import re
from collections import Counter
from pathlib import Path

from gptmini.user_error import UserError

from .harness import RESULTS, ROOT, Table, cells, read_results

PAGE = ROOT / "docs" / "results.md"
MACHINE = re.compile(r"(<!-- machine -->\n).*?(<!-- end -->)", re.DOTALL)
TABLE = re.compile(r"(<!-- table: (\w+)([\w ]*) -->\n).*?(<!-- end -->)", re.DOTALL)
HEADINGS = ("what", "figure", "spread", "goal", "method")


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Write the page anew."""
    before = PAGE.read_text(encoding="utf-8")
    after = with_tables(before, RESULTS)
    PAGE.write_text(after, encoding="utf-8")
    print(f"{PAGE}: {'unchanged' if after == before else 'written'}")


def with_tables(page: str, folder: Path) -> str:
    """The text of a page with the tables of the JSON files in a folder; UserError for a table without rows."""
    results = {path.stem: read_results(path) for path in sorted(folder.glob("*.json"))}
    machines = Counter(found["machine"] for found in results.values() if found["machine"])
    usual = machines.most_common(1)[0][0] if machines else ""

    def written(found: re.Match) -> str:
        opening, name, parts, closing = found.groups()
        if name not in results:
            raise UserError(f"docs/results.md names {name}.json, which {folder} lacks")
        return f"{opening}\n{markdown(results[name], parts.split(), usual)}\n{closing}"

    page = MACHINE.sub(rf"\1\nUnless a table names another machine: {usual}.\n\n\2", page)
    return TABLE.sub(written, page)


def markdown(results: dict, parts: list[str], usual: str) -> str:
    """Rows as a table of Markdown, without columns that are empty or the same in every row, and what is so below it.

    Args:
        results: what a benchmark has saved.
        parts: those whose rows are wanted; empty for all.
        usual: the machine that the page names.
    """
    rows = [cells(row) for row in results["rows"] if not parts or row["part"] in parts]
    if not rows:
        raise UserError(f"{results['benchmark']}.json has no rows of {' '.join(parts)}")

    columns = []
    below = []
    for i, heading in enumerate(HEADINGS):
        different = {row[i] for row in rows}
        if i == 0 or len(different) > 1 or len(rows) == 1:
            columns.append(i)
        elif different != {""}:
            below.append(f"{heading.capitalize()} of every row: {rows[0][i]}.")
    columns = [i for i in columns if any(row[i] for row in rows)]

    lines = ["| " + " | ".join(HEADINGS[i] for i in columns) + " |", "|---" * len(columns) + "|"]
    for row in rows:
        lines.append("| " + " | ".join(row[i] for i in columns) + " |")
    if results["machine"] not in ("", usual):
        below.append(f"On {results['machine']}.")
    if below:
        lines += ["", " ".join(below)]
    return "\n".join([*lines, ""])
