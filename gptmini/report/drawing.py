"""Draw the figures of a run: attention maps and curves.

The figures do without pyplot, so that no window opens. They use SETTINGS instead of the user's matplotlib settings.
"""

import io
import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import font_manager, rc_context
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from gptmini.console.printable import printable

FUTURE = "#eceff2"  # for positions that a token cannot attend to, and for grid lines

# matplotlib settings of every figure.
SETTINGS = {
    "figure.dpi": 100,  # an image of 10 inches fits TensorBoard's widest card
    "font.size": 7,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.xmargin": 0.01,
    "axes.formatter.limits": (-3, 5),
    "grid.color": FUTURE,
    "legend.frameon": False,
    "svg.fonttype": "none",  # store letters as text, drawn with the viewer's fonts
}

# Size of a chart of curves without its legend, in inches. A phone is wide enough for it, at 100 pixels per inch.
CURVES = (3.7, 2.6)
STYLES = ("-", "--", ":", "-.")  # line styles of the tags if a chart has several runs
LEGEND_WIDTH = 58  # characters of 7 points that fit side by side below a chart of curves
LEGEND_SAMPLE = 6  # width of the line sample before each label of the legend, in characters
LEGEND_ROW = 0.16  # height of a row, in inches
# On a linear scale, a value this many times the median would flatten all other values.
DWARFING = 10

MOST_COLUMNS = 4  # number of attention maps side by side
LONGEST_LABEL = 12  # maximum number of characters in the label of a token
VISIBLE = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥"}  # white space in a label, and its symbol

# Sizes in a figure of attention maps, in inches. matplotlib could compute them, but that takes as long as drawing.
LEAST_MAP = 2.3  # side of a map
MOST_MAP = 4.2
LABEL_HEIGHT = 0.125  # of a token's label
LABEL_WIDTH = 0.065  # of one character of a label
GAP = 0.1  # between neighbouring maps
TITLE = 0.35  # between rows of maps
HEADING = 0.7  # above all maps
SCALE = 0.9  # to the right of all maps, for the colour scale


@rc_context(SETTINGS)
def attention_maps(
    maps: Mapping[tuple[int, int], np.ndarray], labels: Sequence[str], title: str
) -> Figure:
    """Draw the attention weights of each head as a square map.

    Row i of a map shows how much token i attends to each token. Cells of later tokens are grey, because token i cannot
    attend to them.

    Args:
        maps: weights (T, T) from 0 to 1, by (layer, head). Layers and heads are counted from 0.
        labels: texts of the T tokens.
    """
    n_tokens = len(labels)
    heads_of_layer = Counter(layer for layer, _ in maps)
    n_columns = min(MOST_COLUMNS, max(heads_of_layer.values()))
    n_rows = math.ceil(len(maps) / n_columns)
    names = [_token_name(label) for label in labels]

    side = min(MOST_MAP, max(LEAST_MAP, LABEL_HEIGHT * n_tokens))
    margin = 0.2 + LABEL_WIDTH * max(map(len, names))  # left of and below the maps, for the labels
    width = margin + n_columns * side + (n_columns - 1) * GAP + SCALE
    height = HEADING + n_rows * side + (n_rows - 1) * TITLE + margin
    figure = Figure(figsize=(width, height))
    figure.subplots_adjust(
        left=margin / width,
        right=1 - SCALE / width,
        bottom=margin / height,
        top=1 - HEADING / height,
        wspace=GAP / side,
        hspace=TITLE / side,
    )

    places = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    future = np.triu(np.ones((n_tokens, n_tokens), dtype=bool), k=1)  # (T, T)
    # Use a square-root scale, because weights below 0.1 look white on a linear scale.
    norm = PowerNorm(0.5, vmin=0, vmax=1)
    for i, ((layer, head), weights) in enumerate(maps.items()):
        axes = places[i]
        axes.imshow(
            np.ma.array(weights, mask=future), cmap="Blues", norm=norm, interpolation="nearest"
        )
        axes.set_facecolor(FUTURE)
        axes.set_title(f"layer {layer}, head {head}", fontsize=8, loc="center")
        axes.grid(visible=False)
        axes.tick_params(length=0)

        # Maps in one row or column share their labels. Invisible axes save drawing time.
        begins_row = i % n_columns == 0
        axes.yaxis.set_visible(begins_row)
        if begins_row:
            axes.set_yticks(range(n_tokens), names, family="monospace")
        ends_column = i + n_columns >= len(maps)
        axes.xaxis.set_visible(ends_column)
        if ends_column:
            axes.set_xticks(range(n_tokens), names, family="monospace", rotation=90)

    for axes in places[len(maps) :]:
        axes.set_visible(False)
    # All maps have the same colours, so one colour scale is enough.
    scale = figure.add_axes((1 - 0.65 / width, 0.25, 0.12 / width, 0.5))
    figure.colorbar(places[0].images[0], cax=scale, ticks=(0, 0.05, 0.2, 0.5, 1))
    heading = f"{title}: attention from each row's token to each column's token"
    figure.suptitle(heading, fontsize=9, wrap=True)
    return figure


@rc_context(SETTINGS)
def curves(lines: Mapping[tuple[str, str], Sequence[tuple[int, float]]], title: str) -> Figure:
    """Draw one or more curves over the optimizer steps.

    If there are several runs, each run has its own colour, and each tag has its own line style. If there is one run,
    each tag has its own colour. The scale is logarithmic if the largest value is much larger than the median. A
    logarithmic scale omits values of 0.

    Args:
        lines: (step, value) points by (name of a run, tag), at least one point per curve. The name or the tag
            may be empty.
    """
    runs = list(dict.fromkeys(run for run, _ in lines))  # a dict keeps the order, unlike a set
    tags = list(dict.fromkeys(tag for _, tag in lines))

    # The legend is below the axes, and the figure grows with its rows. A single curve has no legend.
    labels = [printable(f"{run} {tag}".strip())[-LEGEND_WIDTH:] for run, tag in lines]
    n_columns = max(1, LEGEND_WIDTH // (LEGEND_SAMPLE + max(map(len, labels))))
    n_legend_rows = math.ceil(len(lines) / n_columns) if len(lines) > 1 else 0

    width, height = CURVES
    figure = Figure(figsize=(width, height + LEGEND_ROW * n_legend_rows), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel="optimizer step")
    if _needs_logarithm([value for points in lines.values() for _, value in points]):
        axes.set_yscale("log", nonpositive="mask")

    for (run, tag), points, label in zip(lines, lines.values(), labels, strict=True):
        several = len(runs) > 1
        axes.plot(
            *zip(*points, strict=True),
            color=f"C{runs.index(run) if several else tags.index(tag)}",
            linestyle=STYLES[tags.index(tag) % len(STYLES)] if several else "-",
            marker="." if len(points) == 1 else "",  # a line through one point is invisible
            # The space keeps labels that start with _ in the legend. matplotlib reads $ as a formula.
            label=f" {label}".replace("$", r"\$"),
        )
    if n_legend_rows:
        figure.legend(loc="outside lower left", ncols=n_columns)
    return figure


def visible(text: str) -> str:
    """Return the text for a label. White space becomes symbols, and other unprintable characters are escaped."""
    return printable("".join(VISIBLE.get(character, character) for character in text))


def png(figure: Figure) -> bytes:
    """Draw a figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


@rc_context(SETTINGS)
def svg(figure: Figure) -> bytes:
    """Draw a figure as an SVG file."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        # matplotlib warns about characters that its font lacks, but a browser has more fonts.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(file, format="svg")
    return file.getvalue()


def _needs_logarithm(values: Sequence[float]) -> bool:
    finite = [value for value in values if math.isfinite(value)]
    positive = [value for value in finite if value > 0]
    if not positive or min(finite) < 0:
        return False
    return max(positive) > DWARFING * np.median(positive)


def _token_name(text: str) -> str:
    # Characters that the font lacks become code points, which may lengthen the label.
    if len(text) > LONGEST_LABEL:
        text = text[: LONGEST_LABEL - 1] + "…"
    escaped = visible(text).replace("$", r"\$")  # matplotlib reads a plain $ as a formula

    font = font_manager.get_font(font_manager.findfont("monospace"))
    name = ""
    for character in escaped:
        in_font = font.get_char_index(ord(character))
        name += character if in_font else f"U+{ord(character):04X}"
    return name
