"""Write the tables of docs/results.md from the JSON files in docs/results, without any measurement.

This command writes everything between the lines <!-- table: NAME PART ... --> and <!-- end -->: the rows of
docs/results/NAME.json, or only those of the named parts. A value that is the same in every row is written once below
the table. The machine of most tables is written once, after the line <!-- machine -->.
"""

import argparse
import re
from collections import Counter
from pathlib import Path

from gptmini.system.errors import UserError

from .harness import RESULTS, ROOT, Table, cells, read_results

PAGE = ROOT / "docs" / "results.md"
MACHINE = re.compile(r"(<!-- machine -->\n).*?(<!-- end -->)", re.DOTALL)
TABLE = re.compile(r"(<!-- table: (\w+)([\w ]*) -->\n).*?(<!-- end -->)", re.DOTALL)
HEADINGS = ("what", "figure", "spread", "goal", "method")


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Update the page."""
    before = PAGE.read_text(encoding="utf-8")
    after = with_tables(before, RESULTS)
    PAGE.write_text(after, encoding="utf-8")
    print(f"{PAGE}: {'unchanged' if after == before else 'written'}")


def with_tables(page: str, folder: Path) -> str:
    """Return a page with the tables of the JSON files in a folder; raise UserError if a table has no rows."""
    results = {path.stem: read_results(path) for path in sorted(folder.glob("*.json"))}
    machines = Counter(table["machine"] for table in results.values() if table["machine"])
    usual = machines.most_common(1)[0][0] if machines else ""

    def with_rows(match: re.Match) -> str:
        opening, name, parts, closing = match.groups()
        if name not in results:
            raise UserError(f"docs/results.md names {name}.json, but {folder} does not have it")
        return f"{opening}\n{markdown(results[name], parts.split(), usual)}\n{closing}"

    page = MACHINE.sub(rf"\1\nUnless a table names another machine: {usual}.\n\n\2", page)
    return TABLE.sub(with_rows, page)


def markdown(results: dict, parts: list[str], usual: str) -> str:
    """Format the rows that have a figure as a Markdown table. No parts means all parts.

    Columns with the same value in every row become a line below the table. usual is the machine that the page names.
    """
    chosen = [row for row in results["rows"] if not parts or row["part"] in parts]
    rows = [cells(row) for row in chosen if row["figure"] is not None]
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
