"""A run, or several beside each other, as one self-contained HTML page: python scripts/report.py RUN [options]."""

import argparse
import base64
import html
import os
import re
from collections.abc import Iterator
from pathlib import Path

from command_line import Parser, one_line_errors

MOST_POINTS = 500  # of a line: more than a chart of 500 pixels can show
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #24292f; margin: 2rem auto; max-width: 1180px; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.5rem; border-bottom: 1px solid #d0d7de }
.charts { display: flex; flex-wrap: wrap; gap: 1rem } .charts img { width: 540px; max-width: 100% }
img { max-width: 100% } table { border-collapse: collapse; font-size: 13px }
td, th { border: 1px solid #d0d7de; padding: 2px 10px; text-align: left; font-weight: normal }
th { background: #f6f8fa } pre { background: #f6f8fa; padding: 1rem; overflow-x: auto; white-space: pre-wrap }
summary { cursor: pointer; color: #57606a }
"""


class Run:
    """One run folder, read whole."""

    def __init__(self, path: str) -> None:
        """Read a run, or the newest of those that a folder holds; ValueError if there is none, or nothing to show."""
        import yaml
        from run_folder import find_run
        from tables import leaves
        from tags import read_events

        runs = sorted(Path(path).glob("*/config.yaml"), key=os.path.getmtime)  # as in runs/demo
        whole = (Path(path) / "config.yaml").exists() or not runs
        self.folder = find_run(path if whole else runs[-1].parent)
        self.name = f"{self.folder.parent.name}/{self.folder.name}"  # as TensorBoard calls it
        self.events = read_events(self.folder)
        self.tags = self.events.Tags()
        if not self.tags["scalars"]:
            raise ValueError(f"{self.folder} has nothing to show yet: its event files hold no curve")
        self.config = dict(leaves(yaml.safe_load((self.folder / "config.yaml").read_text(encoding="utf-8"))))

    def curve(self, tag: str) -> list[tuple[int, float]]:
        """(step, value) points, at most MOST_POINTS and the last; none for a tag that the run has not."""
        points = self.events.Scalars(tag) if tag in self.tags["scalars"] else []
        thinned = points[:: max(1, len(points) // MOST_POINTS)]
        return [(event.step, event.value) for event in [*thinned, *points[-1:]]]

    def texts(self, tag: str) -> list[tuple[int, str]]:
        """(step, HTML) of everything that was written under a tag, made safe as TensorBoard makes it."""
        from tensorboard.plugin_util import markdown_to_safe_html

        name = f"{tag}/text_summary"
        points = self.events.Tensors(name) if name in self.tags["tensors"] else []
        return [(event.step, markdown_to_safe_html(event.tensor_proto.string_val[0])) for event in points]


def parse() -> argparse.Namespace:
    """Read the command line; argparse refuses what does not fit."""
    parser = Parser(description="Write a run's curves, samples, pictures and configuration as one HTML page.")
    parser.add_argument("run", nargs="?", help="run folder, as in runs/latest, or runs/NAME for its newest run")
    parser.add_argument("--compare", nargs="+", metavar="RUN", help="runs to lay over each other instead")
    parser.add_argument("--out", type=Path, help="file (default: report.html in the run, or compare.html here)")
    arguments = parser.parse_args()
    if (arguments.run is None) == (arguments.compare is None):
        parser.error("name a run, or several after --compare")
    return arguments


def main() -> None:
    """Read the runs, write the page, say where it is."""
    arguments = parse()
    runs = [Run(path) for path in arguments.compare or [arguments.run]]
    if len({run.folder.parent for run in runs}) == len(runs) > 1:
        for run in runs:
            run.name = run.folder.parent.name  # legends have little room
    out = arguments.out or (Path("compare.html") if arguments.compare else runs[0].folder / "report.html")
    title = " and ".join(run.name for run in runs)
    sections = comparison(runs) if arguments.compare else single(runs[0])
    body = "\n".join(f"<h2>{html.escape(heading)}</h2>\n{content}" for heading, content in sections if content)
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>'
    )
    page = f"<!doctype html>\n<html lang=en><head>{head}<style>{STYLE}</style></head>\n<body>\n"
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(f"{page}<h1>{html.escape(title)}</h1>\n{body}\n</body></html>\n", encoding="utf-8")
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    print(f"{out}, {out.stat().st_size / 1e6:.1f} MB")


def single(run: Run) -> Iterator[tuple[str, str]]:
    """Headings and contents of a page on one run."""
    yield "Where it stands", figures_table([run])
    yield from charts([run])
    for heading, tag in (("Samples", "samples"), ("What it mispredicts most", "zoom/mispredicted")):
        yield heading, newest_first(run.texts(tag))
    for tag in run.tags["images"]:
        images = [(event.step, image("png", event.encoded_image_string)) for event in run.events.Images(tag)]
        first_and_last = images[:1] * (len(images) > 1) + images[-1:]
        yield tag.partition("/")[2].replace("_", " ").capitalize(), newest_first(first_and_last)
    for heading, tag in (("Model", "setup/model"), ("Data", "setup/data"), ("Configuration", "setup/config")):
        yield heading, "".join(content for _, content in run.texts(tag)[-1:])


def comparison(runs: list[Run]) -> Iterator[tuple[str, str]]:
    """Headings and contents of a page on several runs."""
    yield "Where they stand", figures_table(runs)
    keys = sorted({key for run in runs for key in run.config})
    values = {key: [str(run.config.get(key, "")) for run in runs] for key in keys}
    differing = [[key, *row] for key, row in values.items() if len(set(row)) > 1]
    yield "What differs in their configurations", table([["", *(run.name for run in runs)], *differing])
    yield from charts(runs)
    samples = "".join(
        f"<h3>{html.escape(run.name)}</h3>{newest_first(run.texts('samples')[-1:])}"
        for run in runs
        if run.texts("samples")
    )
    yield "Samples", samples


def figures_table(runs: list[Run]) -> str:
    """The last and the best of what counts, a column for each run."""
    rows = [["", *(run.name for run in runs)]]
    for name, tag, choose, form in (
        ("best val loss, nats per token", "val/loss", min, "{:.4f}"),
        ("best bits per byte", "val/bits_per_byte", min, "{:.4f}"),
        ("last val loss", "val/loss", None, "{:.4f}"),
        ("last train loss", "train/loss", None, "{:.4f}"),
        ("steps", "train/loss", None, "{step:,}"),
        ("tokens seen", "train/tokens", None, "{:,.0f}"),
        ("tokens per second", "work/tokens_per_second", None, "{:,.0f}"),
    ):
        cells = []
        for run in runs:
            points = run.curve(tag)
            value = (choose(value for _, value in points) if choose else points[-1][1]) if points else None
            cells.append("" if value is None else form.format(value, step=points[-1][0]))
        rows.append([name, *cells])
    return table(rows)


def charts(runs: list[Run]) -> Iterator[tuple[str, str]]:
    """The charts of TensorBoard's layout, by category; one line for each run and tag."""
    import drawing
    from tags import LAYOUT

    for category, named in LAYOUT.items():
        pictures = []
        for title, patterns in named.items():
            lines = {}
            for run in runs:
                tags = [tag for tag in run.tags["scalars"] if any(re.search(pattern, tag) for pattern in patterns)]
                for tag in tags:
                    short = tag.rpartition("/")[0 if len(patterns) > 1 else 2] if len(tags) > 1 else ""
                    lines[run.name if len(runs) > 1 else "", short] = run.curve(tag)
            if lines:
                pictures.append(image("svg+xml", drawing.svg(drawing.curves(lines, title)), title))
        yield category, f'<div class="charts">{"".join(pictures)}</div>' if pictures else ""


def newest_first(versions: list[tuple[int, str]]) -> str:
    """The newest of (step, HTML), and the others to be opened."""
    *earlier, last = versions or [(0, "")]
    opened = (f"<details><summary>step {step:,}</summary>{content}</details>" for step, content in reversed(earlier))
    return f"<p>step {last[0]:,}</p>{last[1]}{''.join(opened)}" if versions else ""


def image(kind: str, data: bytes, description: str = "") -> str:
    """An image inside the page."""
    encoded = base64.b64encode(data).decode()
    return f'<img src="data:image/{kind};base64,{encoded}" alt="{html.escape(description)}">'


def table(rows: list[list[str]]) -> str:
    """Rows under their headings."""
    kinds = ["th", *["td"] * (len(rows) - 1)]
    lines = (
        "".join(f"<{kind}>{html.escape(text)}</{kind}>" for text in row) for kind, row in zip(kinds, rows, strict=True)
    )
    return f"<table><tr>{'</tr><tr>'.join(lines)}</tr></table>"


if __name__ == "__main__":
    with one_line_errors():
        main()
