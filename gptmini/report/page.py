"""A run, or several beside each other, as one HTML page that needs no other file and no network."""

import base64
import html
import os
import re
from collections.abc import Iterator
from math import isfinite
from pathlib import Path

from gptmini.checks import UserError

MOST_POINTS = 500  # of a line: as many as a chart has pixels
MOST_TEXTS = 20  # under one heading
# Whatever an event file brings along, the page loads nothing from anywhere.
POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
    "style-src 'unsafe-inline'\">"
)
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #24292f; margin: 2rem auto; max-width: 1180px; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.5rem; border-bottom: 1px solid #d0d7de }
.charts { display: flex; flex-wrap: wrap; gap: 1rem } .charts img { width: 540px; max-width: 100% }
img { max-width: 100% } table { border-collapse: collapse; font-size: 13px }
td, th { border: 1px solid #d0d7de; padding: 2px 10px; text-align: left; font-weight: normal }
th { background: #f6f8fa } pre { background: #f6f8fa; padding: 1rem; overflow-x: auto; white-space: pre-wrap }
summary { cursor: pointer; color: #57606a }
"""


class ReportedRun:
    """One run folder, read whole."""

    def __init__(self, path: str) -> None:
        """Read a run, or the newest of those that a folder holds; UserError if there is none, or nothing to show."""
        import yaml

        from gptmini.report.reading import read_events
        from gptmini.report.tables import leaves
        from gptmini.run_folder import find_run, read_config

        runs = sorted(Path(path).glob("*/config.yaml"), key=os.path.getmtime)  # as in runs/demo
        whole = (Path(path) / "config.yaml").exists() or not runs
        self.folder = find_run(path if whole else runs[-1].parent)
        self.events = read_events(self.folder)
        self.tags = self.events.Tags()
        if not any(self.tags[kind] for kind in ("scalars", "tensors", "images")):
            raise UserError(f"{self.folder} has nothing to show yet: its event files hold nothing")
        try:
            self.config = dict(leaves(yaml.safe_load(read_config(self.folder))))
        except (yaml.YAMLError, ValueError, AttributeError, RecursionError):
            raise UserError(f"{self.folder / 'config.yaml'} is not the configuration of a run") from None
        self.name = ""

    def curve(self, tag: str) -> list[tuple[int, float]]:
        """Every (step, value) point; none for a tag that the run has not."""
        points = self.events.Scalars(tag) if tag in self.tags["scalars"] else []
        return [(event.step, event.value) for event in points]

    def texts(self, tag: str, most: int = MOST_TEXTS) -> list[tuple[int, str]]:
        """(step, HTML) of the newest texts under a tag, made safe as TensorBoard makes it."""
        from tensorboard.plugin_util import markdown_to_safe_html

        name = f"{tag}/text_summary"
        points = self.events.Tensors(name)[-most:] if name in self.tags["tensors"] else []
        texts = [(event.step, text) for event in points for text in event.tensor_proto.string_val[:1]]
        return [(step, markdown_to_safe_html(text.decode("utf-8", errors="replace"))) for step, text in texts]


def page_of(runs: list[ReportedRun], *, compare: bool) -> str:
    """The page of one run, or of several laid over each other."""
    title = " and ".join(run.name for run in runs)
    sections = comparison(runs) if compare else single(runs[0])
    body = "\n".join(f"<h2>{html.escape(heading)}</h2>\n{content}" for heading, content in sections if content)
    head = f'<meta charset="utf-8">{POLICY}<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    head += f"<title>{html.escape(title)}</title>"
    page = f"<!doctype html>\n<html lang=en><head>{head}</head>\n<body>\n"
    return f"{page}<h1>{html.escape(title)}</h1>\n{body}\n</body></html>\n"


def give_names(runs: list[ReportedRun]) -> None:
    """Call each run by the shortest name that tells it from the others; UserError for a run given twice."""
    folders = [run.folder.resolve() for run in runs]
    if len(set(folders)) < len(folders):
        raise UserError(f"runs to compare must differ, got {', '.join(map(str, folders))}")
    longer = [f"{folder.parent.name}/{folder.name}" for folder in folders]  # as TensorBoard calls them
    for names in ([folder.parent.name for folder in folders] if len(runs) > 1 else longer, longer, map(str, folders)):
        for run, name in zip(runs, names, strict=True):
            run.name = name
        if len({run.name for run in runs}) == len(runs):
            return


def single(run: ReportedRun) -> Iterator[tuple[str, str]]:
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
        yield heading, "".join(content for _, content in run.texts(tag, 1))


def comparison(runs: list[ReportedRun]) -> Iterator[tuple[str, str]]:
    """Headings and contents of a page on several runs."""
    yield "Where they stand", figures_table(runs)
    keys = sorted({key for run in runs for key in run.config})
    values = {key: [str(run.config.get(key, "")) for run in runs] for key in keys}
    differing = [[key, *row] for key, row in values.items() if len(set(row)) > 1]
    yield "What differs in their configurations", table([["", *(run.name for run in runs)], *differing])
    yield from charts(runs)
    samples = "".join(
        f"<h3>{html.escape(run.name)}</h3>{newest_first(run.texts('samples', 1))}"
        for run in runs
        if run.texts("samples")
    )
    yield "Samples", samples


def figures_table(runs: list[ReportedRun]) -> str:
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
            points = [(step, value) for step, value in run.curve(tag) if not choose or isfinite(value)]
            value = (choose(value for _, value in points) if choose else points[-1][1]) if points else None
            cells.append("" if value is None else form.format(value, step=points[-1][0]))
        rows.append([name, *cells])
    return table(rows)


def charts(runs: list[ReportedRun]) -> Iterator[tuple[str, str]]:
    """The charts of TensorBoard's layout, by category; one line for each run and tag."""
    from gptmini.report import drawing
    from gptmini.report.tags import LAYOUT

    for category, named in LAYOUT.items():
        pictures = []
        for title, patterns in named.items():
            lines = {}
            for run in runs:
                tags = [tag for tag in run.tags["scalars"] if any(re.search(pattern, tag) for pattern in patterns)]
                for tag in tags:
                    short = tag.rpartition("/")[0 if len(patterns) > 1 else 2] if len(tags) > 1 else ""
                    lines[run.name if len(runs) > 1 else "", short] = thinned(run.curve(tag))
            if lines:
                pictures.append(image("svg+xml", drawing.svg(drawing.curves(lines, title)), title))
        yield category, f'<div class="charts">{"".join(pictures)}</div>' if pictures else ""


def thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most MOST_POINTS of a curve's points, evenly, and its last."""
    stride = -(-len(points) // MOST_POINTS) or 1
    return points[::stride] + points[-1:] * (len(points) % stride != 1 and stride > 1)


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
