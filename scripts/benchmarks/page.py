"""Write the tables of docs/results.md from the JSON files in docs/results, without measuring anything.

In the page, everything from the line <!-- table: NAME PART ... --> to the line <!-- end --> is written here: the rows
of docs/results/NAME.json, of these parts alone if parts are named.
"""

import argparse
import re
from pathlib import Path

from gptmini.user_error import UserError

from .harness import RESULTS, ROOT, Table, cells, read_results

PAGE = ROOT / "docs" / "results.md"
TABLE = re.compile(r"(<!-- table: (\w+)([\w ]*) -->\n).*?(<!-- end -->)", re.DOTALL)
HEADINGS = ("what", "figure", "spread", "goal", "method")


def measure(table: Table, arguments: argparse.Namespace) -> None:
    """Write the page anew."""
    before = PAGE.read_text(encoding="utf-8")
    after = with_tables(before, RESULTS)
    PAGE.write_text(after, encoding="utf-8")
    print(f"{PAGE}: {'unchanged' if after == before else 'written'}")


def with_tables(page: str, results: Path) -> str:
    """The text of a page with the tables of the JSON files in a folder; UserError for a table without rows."""

    def written(found: re.Match) -> str:
        opening, name, parts, closing = found.groups()
        return f"{opening}\n{markdown(results / f'{name}.json', parts.split())}\n{closing}"

    return TABLE.sub(written, page)


def markdown(path: Path, parts: list[str]) -> str:
    """The rows of a JSON file as a table of Markdown, without columns that are empty, and the machine below it."""
    if not path.is_file():
        raise UserError(f"docs/results.md names {path}, which does not exist")
    results = read_results(path)
    rows = [cells(row) for row in results["rows"] if not parts or row["part"] in parts]
    if not rows:
        raise UserError(f"{path} has no rows of {' '.join(parts)}")

    columns = [i for i in range(len(HEADINGS)) if any(row[i] for row in rows)]
    lines = ["| " + " | ".join(HEADINGS[i] for i in columns) + " |", "|---" * len(columns) + "|"]
    for row in rows:
        lines.append("| " + " | ".join(row[i] for i in columns) + " |")
    if results["machine"]:
        lines += ["", f"On {results['machine']}."]
    return "\n".join([*lines, ""])
