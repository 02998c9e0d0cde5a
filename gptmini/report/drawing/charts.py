"""Charts of a run: losses of tokens after a validation, and curves over the optimizer steps."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gptmini.report.drawing.common import DPI, FAINT, FUTURE, INK, LINE, VISIBLE, visible

# Colours and styles of the lines of curves; a further line begins again with the first.
COLOURS = (
    "#1f6feb",
    "#d1570f",
    "#2f8f46",
    "#8250df",
    "#bf3989",
    "#6e7781",
    "#0b7285",
    "#9a6700",
)
STYLES = ("-", "--", ":", "-.", (0, (1, 3)), (0, (5, 4)))

# Sizes of the two charts of token losses.
LOSS_CHART = (7, 3.4)  # width and height in inches
# Left, bottom, width and height of the axes, as shares of the figure.
LOSS_BOX = (0.075, 0.14, 0.91, 0.77)
SMOOTHED = 15  # positions over which the bold line of losses by position is averaged
BINS = 60  # of the histogram
LEAST_RANGE = 0.01  # nats that the histogram spans even where all losses are equal

LEGEND_WIDTH = 84  # characters of 7 points that fit side by side below a chart of curves
LEGEND_SAMPLE = 6  # characters' width of the line sample before each label of the legend
LEGEND_ROW = 0.16  # inches of height
DWARFING = 10  # times the median: a larger value would press all others into a line at the bottom


def loss_by_position(losses: np.ndarray, positions: np.ndarray, title: str) -> Figure:
    """Draw the mean loss at each position of the context, and a smooth line through the means.

    Args:
        losses: nats of n tokens, (n,).
        positions: of these tokens in their windows, counted from 0, (n,).
        title: of the chart.
    """
    counts = np.bincount(positions)  # (T,)
    mean = np.bincount(positions, weights=losses) / counts  # (T,)

    # Each point of the smooth line is the mean over all tokens of the neighbouring positions.
    window = np.ones(min(SMOOTHED, len(mean)))
    tokens_near = np.convolve(counts, window, mode="same")  # (T,)
    smooth = np.convolve(mean * counts, window, mode="same") / tokens_near  # (T,)

    figure, axes = _chart(
        LOSS_CHART,
        title=title,
        x_label="position in the context, tokens",
        y_label="loss, nats",
        box=LOSS_BOX,
    )
    places = np.arange(1, len(mean) + 1)
    axes.plot(places, mean, color=FAINT, linewidth=1, label="mean")
    axes.plot(places, smooth, color=LINE, linewidth=2, label=f"mean of {len(window)} positions")
    axes.legend(fontsize=7, frameon=False)
    return figure


def loss_histogram(losses: np.ndarray, title: str) -> Figure:
    """Draw what share of the tokens has which loss, with the mean and the median of the losses.

    Args:
        losses: nats of n tokens, (n,).
        title: of the chart.
    """
    # Losses may all be nearly one number, but the bins need a range that has room for their edges.
    low = float(losses.min())
    high = float(losses.max())
    width = max(high - low, LEAST_RANGE)
    counts, edges = np.histogram(losses.astype(np.float64), bins=BINS, range=(low, low + width))

    figure, axes = _chart(
        LOSS_CHART,
        title=title,
        x_label="loss of a token, nats",
        y_label="share of tokens, %",
        box=LOSS_BOX,
    )
    axes.stairs(100 * counts / len(losses), edges, fill=True, color=LINE, alpha=0.75)
    axes.set_ylim(bottom=0)
    for name, value, style in (("median", np.median(losses), ":"), ("mean", losses.mean(), "-")):
        axes.axvline(value, color=INK, linewidth=1, linestyle=style, label=f"{name} {value:.2f}")
    axes.legend(fontsize=7, frameon=False)
    return figure


def curves(lines: Mapping[tuple[str, str], Sequence[tuple[int, float]]], title: str) -> Figure:
    """Draw one or more lines over the optimizer steps.

    Lines of several runs have a colour for each run and a line style for each tag; lines of one run have a colour for
    each tag. The scale is logarithmic where the largest value dwarfs the others; values of 0 are then left out.

    Args:
        lines: (step, value) points, at least one a line, by (name of a run, tag). Either text may be empty.
        title: of the chart.
    """
    # The legend stands below the axes, and the figure grows with its rows; a single line needs none.
    labels = [_curve_label(name, tag) for name, tag in lines]
    n_columns = max(1, LEGEND_WIDTH // (LEGEND_SAMPLE + max(map(len, labels))))
    n_legend_rows = 0
    if len(lines) > 1:
        n_legend_rows = math.ceil(len(lines) / n_columns)

    size = (5.4, 3 + LEGEND_ROW * n_legend_rows)
    figure, axes = _chart(size, title=title, x_label="optimizer step", y_label="")
    if _needs_logarithm(lines.values()):
        axes.set_yscale("log", nonpositive="mask")
    else:
        axes.ticklabel_format(axis="y", scilimits=(-3, 5))

    styles = _line_styles(list(lines))
    for points, label, (colour, line_style) in zip(lines.values(), labels, styles, strict=True):
        steps, values = zip(*points, strict=True)
        axes.plot(
            steps,
            values,
            color=colour,
            linestyle=line_style,
            linewidth=1.5,
            marker="." if len(steps) == 1 else "",  # a line of one point has no length
            # matplotlib leaves labels that begin with _ out of a legend, hence the space, and reads $ as a formula.
            label=f" {label}".replace("$", r"\$"),
        )

    if n_legend_rows:
        handles, texts = axes.get_legend_handles_labels()
        figure.legend(
            handles,
            texts,
            loc="outside lower left",
            ncols=n_columns,
            fontsize=7,
            frameon=False,
        )
    return figure


def _chart(
    size: tuple[float, float],
    *,
    title: str,
    x_label: str,
    y_label: str,
    box: tuple[float, float, float, float] | None = None,
) -> tuple[Figure, Axes]:
    """Make a figure of a size in inches, and its only axes.

    The axes fill the box, given as shares of the figure: left, bottom, width, height. Without a box matplotlib finds
    room for the axes, which takes longer.
    """
    if box is None:
        figure = Figure(figsize=size, dpi=DPI, layout="constrained", facecolor="white")
        axes = figure.add_subplot()
    else:
        figure = Figure(figsize=size, dpi=DPI, facecolor="white")
        axes = figure.add_axes(box)

    axes.set_title(title, fontsize=9, color=INK, loc="left")
    axes.set_xlabel(x_label, fontsize=8)
    axes.set_ylabel(y_label, fontsize=8)
    axes.tick_params(labelsize=7, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=FUTURE)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
    return figure, axes


def _curve_label(name: str, tag: str) -> str:
    """Name of a run and tag of its curve, as in a legend; of a long text the end is kept."""
    label = visible(f"{name} {tag}".strip()).replace(VISIBLE[" "], " ")
    if len(label) > LEGEND_WIDTH:
        label = f"…{label[1 - LEGEND_WIDTH :]}"
    return label


def _needs_logarithm(lines: Iterable[Sequence[tuple[int, float]]]) -> bool:
    """Whether the largest value of all lines' (step, value) points dwarfs the others, and no value is negative.

    A logarithmic scale would hide negative values.
    """
    finite = []
    for points in lines:
        for _, value in points:
            if np.isfinite(value):
                finite.append(value)

    positive = [value for value in finite if value > 0]
    if not positive or min(finite) < 0:
        return False
    return max(positive) > DWARFING * np.median(positive)


def _line_styles(lines: list[tuple[str, str]]) -> list[tuple[str, object]]:
    """A colour and a matplotlib line style for each line, which is given by the name of its run and its tag."""
    names = list(dict.fromkeys(name for name, _ in lines))  # unlike a set, in their order
    tags = list(dict.fromkeys(tag for _, tag in lines))

    styles: list[tuple[str, object]] = []
    for name, tag in lines:
        if len(names) > 1:
            colour = COLOURS[names.index(name) % len(COLOURS)]
            line_style = STYLES[tags.index(tag) % len(STYLES)]
        else:
            colour = COLOURS[tags.index(tag) % len(COLOURS)]
            line_style = STYLES[0]
        styles.append((colour, line_style))
    return styles
