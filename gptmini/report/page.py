"""One run, or a comparison of runs, as a single HTML page without other files or network access."""

import base64
import html
import math
import re
from collections.abc import Iterator

from gptmini.console.numbers import duration
from gptmini.report.reported_run import ReportedRun
from gptmini.report.tags import LAYOUT

MOST_VERSIONS = 20  # maximum number of validations whose samples are on the page

# The policy in the head keeps a browser from loading anything, whatever the run's files contain.
PAGE = """<!doctype html>
<html lang=en><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{style}</style>
<title>{title}</title></head>
<body>
<h1>{title}</h1>
{body}</body></html>
"""
STYLE = """
:root {
  color-scheme: light dark;
  --line: light-dark(#d0d7de, #3d444d);
  --panel: light-dark(#f6f8fa, #161b22);
}
body {
  background: light-dark(#fff, #0d1117);
  color: light-dark(#24292f, #e6edf3);
  font: 15px/1.5 system-ui, sans-serif;
  margin: 1rem auto;
  max-width: 1180px;
  overflow-wrap: anywhere;
  padding: 0 1rem;
}
h1 { font-size: 1.5rem }
h2 { font-size: 1.15rem; margin-top: 2.5rem; border-bottom: 1px solid var(--line) }
.charts { display: flex; flex-wrap: wrap; gap: 1rem }
.charts img { width: 370px }
img { max-width: 100% }
.picture { overflow-x: auto }
@media (max-width: 700px) { .picture img { max-width: none } }
table { border-collapse: collapse; display: block; font-size: 13px; overflow-x: auto; overflow-wrap: normal }
td, th { border: 1px solid var(--line); padding: 2px 10px; text-align: left; font-weight: normal }
th, pre { background: var(--panel) }
pre { padding: 1rem; white-space: pre-wrap }
summary { cursor: pointer; color: light-dark(#57606a, #9198a1) }
/* Charts are drawn on white. In the dark, light and dark change places, and the hues stay. Black becomes the page. */
@media (prefers-color-scheme: dark) {
  img { filter: invert(1) hue-rotate(180deg); mix-blend-mode: screen }
}
"""


# Rows of the summary by heading. Each row has the tag of a scalar, the point to show, and the format.
FIGURES = {
    "best val loss, nats per token": ("val/loss", "lowest", "{value:.4f}"),
    "best bits per byte": ("val/bits_per_byte", "lowest", "{value:.4f}"),
    "last val loss": ("val/loss", "last", "{value:.4f}"),
    "last train loss": ("train/loss", "last", "{value:.4f}"),
    "steps": ("train/loss", "last", "{step:,}"),
    "tokens seen": ("train/tokens", "last", "{value:,.0f}"),
    "tokens per second": ("work/tokens_per_second", "last", "{value:,.0f}"),
}


def page_of(runs: list[ReportedRun], *, compare: bool) -> str:
    """If `compare`, return the HTML page that compares the runs. Otherwise, return the page of the first run."""
    sections = _sections_of_several_runs(runs) if compare else _sections_of_one_run(runs[0])
    body = [
        f"<h2>{html.escape(heading)}</h2>\n{content}\n" for heading, content in sections if content
    ]
    title = html.escape(" and ".join(run.name for run in runs))
    return PAGE.format(title=title, style=STYLE, body="".join(body))


def _sections_of_one_run(run: ReportedRun) -> Iterator[tuple[str, str]]:
    yield "Summary", figures_table([run])
    yield from charts([run])

    yield "Samples", newest_first(samples(run, MOST_VERSIONS))
    for tag, pictures in run.pictures.items():
        # The first and the last image show what training changed; all images would make the page large.
        ends = [pictures[0], pictures[-1]] if len(pictures) > 1 else pictures
        # zoom/attention is named "Attention".
        name = tag.partition("/")[2].replace("_", " ").capitalize()
        images = []
        for step, path in ends:
            shown = image("png", path.read_bytes(), name)
            images.append((step, f'<div class="picture">{shown}</div>'))
        yield name, newest_first(images)

    setup = {"Model": "setup/model", "Data": "setup/data", "Configuration": "setup/config"}
    for heading, tag in setup.items():
        yield heading, "".join(table(rows) for _, rows in run.values(tag)[-1:])


def _sections_of_several_runs(runs: list[ReportedRun]) -> Iterator[tuple[str, str]]:
    yield "Summary", figures_table(runs)
    yield "Configuration differences", _differences_table(runs)
    yield from charts(runs)

    texts = []
    for run in runs:
        newest = samples(run, 1)
        if newest:
            texts.append(f"<h3>{html.escape(run.name)}</h3>{newest_first(newest)}")
    yield "Samples", "".join(texts)


def samples(run: ReportedRun, most: int) -> list[tuple[int, str]]:
    """Return the latest samples of a run as (step, HTML), oldest first. `most` is the maximum number of samples."""
    versions = []
    for step, texts in run.values("samples")[-most:]:
        blocks = [f"<pre>{html.escape(text)}</pre>" for text in texts]
        versions.append((step, "\n".join(blocks)))
    return versions


def figures_table(runs: list[ReportedRun]) -> str:
    """Return an HTML table of time, best and last losses, steps and speed, with a column for each run.

    A cell is empty if the run has not logged the value.
    """
    rows = [
        ["", *(run.name for run in runs)],
        ["started", *(run.started for run in runs)],
        [
            "duration of the last start",
            *("" if run.seconds is None else duration(run.seconds) for run in runs),
        ],
    ]
    for heading, (tag, which, form) in FIGURES.items():
        cells = []
        for run in runs:
            points = run.curves.get(tag, [])
            if which == "lowest":
                finite = [point for point in points if math.isfinite(point[1])]
                points = sorted(finite, key=lambda point: point[1], reverse=True)
            step, value = points[-1] if points else (0, 0.0)
            cells.append(form.format(step=step, value=value) if points else "")
        rows.append([heading, *cells])
    return table(rows)


def _differences_table(runs: list[ReportedRun]) -> str:
    rows = [["", *(run.name for run in runs)]]
    for key in sorted(set().union(*(run.config for run in runs))):
        values = [str(run.config.get(key, "")) for run in runs]
        if len(set(values)) > 1:
            rows.append([key, *values])
    return table(rows)


def charts(runs: list[ReportedRun]) -> Iterator[tuple[str, str]]:
    """Yield the name and the HTML of each category of LAYOUT that has charts, with a curve for each run and tag."""
    from gptmini.report import drawing  # matplotlib takes half a second

    for category, patterns_of_charts in LAYOUT.items():
        pictures = []
        for title, patterns in patterns_of_charts.items():
            lines = _lines(runs, patterns)
            if lines:
                chart = drawing.svg(drawing.curves(lines, title))
                pictures.append(image("svg+xml", chart, title))

        if pictures:
            yield category, f'<div class="charts">{"".join(pictures)}</div>'


def _lines(
    runs: list[ReportedRun], patterns: list[str]
) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Return the points of the curves whose tags match one of the patterns, by (name of the run, tag).

    The name is empty if there is only one run, and the tag is empty if only one tag matches.
    """
    matches = re.compile("|".join(patterns)).search
    tags = {tag for run in runs for tag in run.curves if matches(tag)}

    lines = {}
    for run in runs:
        for tag, points in run.curves.items():
            if tag in tags:
                run_name = run.name if len(runs) > 1 else ""
                lines[run_name, tag if len(tags) > 1 else ""] = points
    return lines


def newest_first(versions: list[tuple[int, str]]) -> str:
    """Return the HTML of samples or images of several validations. Only the latest is open; a click opens another.

    The versions are (step, HTML), oldest first.
    """
    if not versions:
        return ""

    *earlier, (step, newest) = versions
    parts = [f"<p>step {step:,}</p>{newest}"]
    for step, content in reversed(earlier):
        parts.append(f"<details><summary>step {step:,}</summary>{content}</details>")
    return "".join(parts)


def image(kind: str, data: bytes, description: str = "") -> str:
    """Return the HTML of an image embedded in the page. kind is the MIME subtype, such as 'png'."""
    encoded = base64.b64encode(data).decode()
    return f'<img src="data:image/{kind};base64,{encoded}" alt="{html.escape(description)}">'


def table(rows: list[list[str]]) -> str:
    """Return the HTML of a table. The first row has the headings."""
    lines = []
    for i, row in enumerate(rows):
        kind = "th" if i == 0 else "td"
        cells = [f"<{kind}>{html.escape(text)}</{kind}>" for text in row]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"
