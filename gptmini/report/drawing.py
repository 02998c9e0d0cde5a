"""Figures of a run: attention maps, losses of tokens, and curves.

Every function builds a matplotlib Figure without pyplot, so that no window opens, and under settings of its own.
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

from gptmini.report.tables import printable, visible

FAINT = "#b8c0c8"  # of values that a bolder line averages
FUTURE = "#eceff2"  # of what a token cannot attend to, and of grid lines

# matplotlib's own settings, as every figure has them.
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
    "svg.fonttype": "none",  # letters are text, drawn by the fonts of whoever opens the file
}

LOSS_CHART = (7, 3.4)  # inches, of the two charts of token losses
LOSS_BOX = (0.075, 0.14, 0.91, 0.77)  # left, bottom, width and height of their axes, as shares
SMOOTHED = 15  # positions over which the bold line of losses by position is averaged
BINS = 60  # of the histogram
LEAST_RANGE = 0.01  # nats that the histogram spans even where all losses are equal

CURVES = (5.4, 3.0)  # inches, of a chart of curves without its legend
STYLES = ("-", "--", ":", "-.")  # of the tags in a chart of several runs
LEGEND_WIDTH = 84  # characters of 7 points that fit side by side below a chart of curves
LEGEND_SAMPLE = 6  # characters' width of the line sample before each label of the legend
LEGEND_ROW = 0.16  # inches of height
DWARFING = 10  # times the median: a larger value would press all others into a line at the bottom

MOST_COLUMNS = 4  # attention maps side by side
LONGEST_LABEL = 12  # characters of a token's label

# Sizes in a figure of attention maps, in inches. matplotlib would find them, but takes as long for that as for drawing.
LEAST_MAP = 2.3  # side of a map
MOST_MAP = 4.2
LABEL_HEIGHT = 0.125  # of a token's label
LABEL_WIDTH = 0.065  # of one character of it
GAP = 0.1  # between neighbouring maps
TITLE = 0.35  # between rows of maps
HEADING = 0.7  # above all maps
SCALE = 0.9  # at the right of all maps, for the colour scale


@rc_context(SETTINGS)
def attention_maps(
    maps: Mapping[tuple[int, int], np.ndarray], labels: Sequence[str], title: str
) -> Figure:
    """Draw the attention weights of several heads, one square map for each.

    Row i of a map shows how much token i attends to each token. The cells of later tokens, to which token i cannot
    attend, are grey.

    Args:
        maps: weights (T, T) from 0 to 1, by (layer, head), both counted from 0.
        labels: texts of the T tokens.
    """
    n_tokens = len(labels)
    heads_of_layer = Counter(layer for layer, _ in maps)
    n_columns = min(MOST_COLUMNS, max(heads_of_layer.values()))
    n_rows = math.ceil(len(maps) / n_columns)
    names = [_token_name(label) for label in labels]

    side = min(MOST_MAP, max(LEAST_MAP, LABEL_HEIGHT * n_tokens))
    margin = 0.2 + LABEL_WIDTH * max(map(len, names))  # beside and below the maps, for the labels
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
    norm = PowerNorm(0.5, vmin=0, vmax=1)  # the root: else all weights below a tenth look white
    for i, ((layer, head), weights) in enumerate(maps.items()):
        axes = places[i]
        axes.imshow(
            np.ma.array(weights, mask=future), cmap="Blues", norm=norm, interpolation="nearest"
        )
        axes.set_facecolor(FUTURE)
        axes.set_title(f"layer {layer}, head {head}", fontsize=8, loc="center")
        axes.grid(visible=False)
        axes.tick_params(length=0)

        # Maps in one row or column share their labels; an axis that is not visible costs no time.
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
    # All maps have equal colours, so that the scale of the first map serves them all.
    scale = figure.add_axes((1 - 0.65 / width, 0.25, 0.12 / width, 0.5))
    figure.colorbar(places[0].images[0], cax=scale, ticks=(0, 0.05, 0.2, 0.5, 1))
    heading = f"{title}: how much each row's token attends to each column's"
    figure.suptitle(heading, fontsize=9, wrap=True)
    return figure


@rc_context(SETTINGS)
def loss_by_position(losses: np.ndarray, positions: np.ndarray, title: str) -> Figure:
    """Draw the mean loss at each position of the context that a token has, and a smooth line through the means.

    Args:
        losses: nats of n tokens, (n,).
        positions: of these tokens in their windows, counted from 0, (n,).
    """
    counts = np.bincount(positions)  # (T,)
    sums = np.bincount(positions, weights=losses)  # (T,)
    # Where the loss counts answers alone, some positions may have no token.
    found = np.flatnonzero(counts)  # (n_positions,)
    mean = sums[found] / counts[found]  # (n_positions,)

    # Each point of the smooth line is the mean over all tokens of the neighbouring positions.
    window = np.ones(min(SMOOTHED, len(counts)))
    tokens_near = np.convolve(counts, window, mode="same")  # (T,)
    sums_near = np.convolve(sums, window, mode="same")  # (T,)
    smooth = sums_near[found] / tokens_near[found]  # (n_positions,)

    figure = Figure(figsize=LOSS_CHART)
    axes = figure.add_axes(LOSS_BOX)
    axes.set(title=title, xlabel="position in the context, tokens", ylabel="loss, nats")
    places = found + 1
    axes.plot(places, mean, color=FAINT, linewidth=1, label="mean")
    axes.plot(places, smooth, color="C0", linewidth=2, label=f"mean of {len(window)} positions")
    axes.legend()
    return figure


@rc_context(SETTINGS)
def loss_histogram(losses: np.ndarray, title: str) -> Figure:
    """Draw what share of the tokens has which loss, with the mean and the median of the losses.

    Args:
        losses: nats of n tokens, (n,).
    """
    # Losses may all be nearly one number, but the bins need a range that has room for their edges.
    low = float(losses.min())
    width = max(float(losses.max()) - low, LEAST_RANGE)
    counts, edges = np.histogram(losses.astype(np.float64), bins=BINS, range=(low, low + width))

    figure = Figure(figsize=LOSS_CHART)
    axes = figure.add_axes(LOSS_BOX)
    axes.set(title=title, xlabel="loss of a token, nats", ylabel="share of tokens, %")
    axes.stairs(100 * counts / len(losses), edges, fill=True, alpha=0.75)
    for name, value, style in (("median", np.median(losses), ":"), ("mean", losses.mean(), "-")):
        axes.axvline(value, color="black", linestyle=style, label=f"{name} {value:.2f}")
    axes.legend()
    return figure


@rc_context(SETTINGS)
def curves(lines: Mapping[tuple[str, str], Sequence[tuple[int, float]]], title: str) -> Figure:
    """Draw one or more lines over the optimizer steps.

    Lines of several runs have a colour for each run and a line style for each tag; lines of one run have a colour for
    each tag. The scale is logarithmic where the largest value dwarfs the others; values of 0 are then left out.

    Args:
        lines: (step, value) points, at least one a line, by (name of a run, tag). Either text may be empty.
    """
    runs = list(dict.fromkeys(run for run, _ in lines))  # unlike a set, in their order
    tags = list(dict.fromkeys(tag for _, tag in lines))

    # The legend stands below the axes, and the figure grows with its rows; a single line needs none.
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
            marker="." if len(points) == 1 else "",  # a line of one point has no length
            # matplotlib leaves labels that begin with _ out of a legend, hence the space, and reads $ as a formula.
            label=f" {label}".replace("$", r"\$"),
        )
    if n_legend_rows:
        figure.legend(loc="outside lower left", ncols=n_columns)
    return figure


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
        # matplotlib warns of characters that its own font lacks; the fonts of a browser have more.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(file, format="svg")
    return file.getvalue()


def _needs_logarithm(values: Sequence[float]) -> bool:
    """Whether the largest value dwarfs the others, and none is negative: a logarithm would hide a negative value."""
    finite = [value for value in values if math.isfinite(value)]
    positive = [value for value in finite if value > 0]
    if not positive or min(finite) < 0:
        return False
    return max(positive) > DWARFING * np.median(positive)


def _token_name(text: str) -> str:
    """A token's text as the label of a row or column, cut to LONGEST_LABEL characters.

    Characters that the font lacks are written as code points.
    """
    if len(text) > LONGEST_LABEL:
        text = text[: LONGEST_LABEL - 1] + "…"
    escaped = visible(text).replace("$", r"\$")  # matplotlib reads a plain $ as a formula

    font = font_manager.get_font(font_manager.findfont("monospace"))
    name = ""
    for character in escaped:
        in_font = font.get_char_index(ord(character))
        name += character if in_font else f"U+{ord(character):04X}"
    return name
