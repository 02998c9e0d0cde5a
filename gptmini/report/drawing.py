"""Figures of a run: attention maps, token losses, curves; nothing here is global, and nothing is shown."""

import io
import warnings
from collections.abc import Sequence

import numpy as np
from matplotlib import font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

INK, FAINT, LINE, FUTURE = "#24292f", "#b8c0c8", "#1f6feb", "#eceff2"
COLOURS = ("#1f6feb", "#d1570f", "#2f8f46", "#8250df", "#bf3989", "#6e7781", "#0b7285", "#9a6700")
DPI = 100  # an image of 10 inches fits TensorBoard's widest card
VISIBLE = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥"}  # what would not be seen as it is
LONGEST = 12  # characters of a label
MOST_COLUMNS = 4  # maps side by side
SMOOTHED = 15  # positions over which the bold line of losses is averaged
BINS = 60
MOST_EQUAL = 0.01  # nats, least width of a histogram
BOX = (0.075, 0.14, 0.91, 0.77)  # left, bottom, width and height
STYLES = ("-", "--", ":", "-.", (0, (1, 3)), (0, (5, 4)))
LEGEND = 84  # characters of 7 points below a chart
WIDE = 10  # times the median, above which a value would press the others into a line at the bottom


def visible(text: str) -> str:
    """Text as a label: white space as signs, and what cannot be printed as its escape."""
    signs = (VISIBLE.get(character, character) for character in text)
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in signs)


def attention_maps(maps: dict[tuple[int, int], np.ndarray], labels: Sequence[str], title: str) -> Figure:
    """A map for each (layer, head): (T, T) weights, rows ask, columns are asked; the future is grey."""
    columns = min(MOST_COLUMNS, max(sum(layer == first for layer, _ in maps) for first, _ in maps))
    rows, n_tokens, names = -(-len(maps) // columns), len(labels), [_label(label) for label in labels]
    # All in inches: gaps of 0.1 and, for a title, 0.35; 0.7 for the heading, 0.9 for the scale at the right.
    cell = min(4.2, max(2.3, 0.125 * n_tokens))  # room for a label of 7 points every row
    margin = 0.2 + 0.065 * max(map(len, names))  # beside the maps and below them, for the labels
    width, height = margin + columns * (cell + 0.1) + 0.9, 0.7 + rows * (cell + 0.35) + margin
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")  # laid out by hand, which is faster
    future = np.triu(np.ones((n_tokens, n_tokens), dtype=bool), k=1)
    norm = PowerNorm(0.5, vmin=0, vmax=1)  # the root, or weights below a tenth would all look white
    for i, ((layer, head), weights) in enumerate(maps.items()):
        left, top = margin + i % columns * (cell + 0.1), 0.7 + i // columns * (cell + 0.35)
        axes = figure.add_axes((left / width, 1 - (top + cell) / height, cell / width, cell / height))
        image = axes.imshow(np.ma.array(weights, mask=future), cmap="Blues", norm=norm, interpolation="nearest")
        axes.set_facecolor(FUTURE)
        axes.set_title(f"layer {layer}, head {head}", fontsize=8)
        axes.tick_params(length=0)
        for axis, labelled, angle in (
            (axes.yaxis, i % columns == 0, 0),
            (axes.xaxis, i + columns >= len(maps), 90),
        ):
            axis.set_visible(labelled)  # what is not seen costs nothing
            if labelled:
                axis.set_ticks(range(n_tokens), names, fontsize=7, family="monospace", rotation=angle)
    scale = figure.add_axes((1 - 0.65 / width, 0.25, 0.12 / width, 0.5))
    figure.colorbar(image, cax=scale, ticks=(0, 0.05, 0.2, 0.5, 1)).ax.tick_params(labelsize=7)
    figure.suptitle(f"{title}: how much each row's token attends to each column's", fontsize=9)
    return figure


def loss_by_position(losses: np.ndarray, positions: np.ndarray, title: str) -> Figure:
    """Mean loss at each place in the context."""
    counts = np.bincount(positions)
    mean = np.bincount(positions, weights=losses) / counts  # (T,)
    width = min(SMOOTHED, len(mean))
    shares = np.convolve(counts, np.ones(width), mode="same")
    smooth = np.convolve(mean * counts, np.ones(width), mode="same") / shares
    figure, axes = _chart(7, 3.4, title, "position in the context, tokens", "loss, nats", box=BOX)
    axes.plot(np.arange(1, len(mean) + 1), mean, color=FAINT, linewidth=1, label="mean")
    axes.plot(np.arange(1, len(mean) + 1), smooth, color=LINE, linewidth=2, label=f"mean of {width} positions")
    axes.legend(fontsize=7, frameon=False)
    return figure


def loss_histogram(losses: np.ndarray, title: str) -> Figure:
    """How many tokens cost how much."""
    figure, axes = _chart(7, 3.4, title, "loss of a token, nats", "share of tokens, %", box=BOX)
    low, high = float(losses.min()), float(losses.max())
    width = max(high - low, MOST_EQUAL)  # losses may all be one number
    counts, edges = np.histogram(losses.astype(np.float64), bins=BINS, range=(low, low + width))
    axes.stairs(100 * counts / len(losses), edges, fill=True, color=LINE, alpha=0.75)
    axes.set_ylim(bottom=0)
    for name, value, style in (("median", np.median(losses), ":"), ("mean", losses.mean(), "-")):
        axes.axvline(value, color=INK, linewidth=1, linestyle=style, label=f"{name} {value:.2f}")
    axes.legend(fontsize=7, frameon=False)
    return figure


def curves(lines: dict[tuple[str, str], Sequence[tuple[int, float]]], title: str) -> Figure:
    """A chart of one or more lines, (step, value) each, by run and tag: a colour for each run, or for each tag of one.

    The scale is logarithmic where the largest value is far above the others; values of 0 are then left out.
    """
    labels = [visible(f"{name} {tag}".strip()).replace(VISIBLE[" "], " ") for name, tag in lines]
    labels = [label if len(label) <= LEGEND else f"…{label[1 - LEGEND :]}" for label in labels]
    columns = max(1, LEGEND // (6 + max(map(len, labels))))
    n_rows = -(-len(lines) // columns) if len(lines) > 1 else 0
    figure, axes = _chart(5.4, 3 + 0.16 * n_rows, title, "optimizer step", "")
    finite = [value for points in lines.values() for _, value in points if np.isfinite(value)]
    positive = [value for value in finite if value > 0]
    if positive and min(finite) >= 0 and max(positive) > WIDE * np.median(positive):
        axes.set_yscale("log", nonpositive="mask")
    else:
        axes.ticklabel_format(axis="y", scilimits=(-3, 5))
    names = list(dict.fromkeys(name for name, _ in lines))  # a colour for each, of whatever tag
    tags = list(dict.fromkeys(tag for _, tag in lines))
    for ((name, tag), points), label in zip(lines.items(), labels, strict=True):
        steps, values = zip(*points, strict=True)
        i, j = (names.index(name), tags.index(tag)) if len(names) > 1 else (tags.index(tag), 0)
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[j % len(STYLES)], "linewidth": 1.5}
        axes.plot(
            steps, values, **style, marker="." * (len(steps) < 2), label=f" {label}".replace("$", r"\$")
        )  # no formula, and seen even if it begins with _
    if n_rows:
        handles = axes.get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower left", ncols=columns, fontsize=7, frameon=False)
    return figure


def pixels(figure: Figure) -> np.ndarray:
    """The figure as an image: uint8 (height, width, 3)."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def svg(figure: Figure) -> bytes:
    """The figure as an SVG file, its letters left to the reader's fonts."""
    file = io.BytesIO()
    with rc_context({"svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the reader's fonts have more
        figure.savefig(file, format="svg")
    return file.getvalue()


def _chart(width: float, height: float, title: str, x: str, y: str, *, box: tuple | None = None) -> tuple[Figure, Axes]:
    """A figure and its only axes, in a box of shares of it, or where matplotlib finds room, which takes longer."""
    layout = None if box else "constrained"
    figure = Figure(figsize=(width, height), dpi=DPI, layout=layout, facecolor="white")
    axes = figure.add_axes(box) if box else figure.add_subplot()
    axes.set_title(title, fontsize=9, color=INK, loc="left")
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(labelsize=7, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=FUTURE)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
    return figure, axes


def _label(text: str) -> str:
    """Visible text, no longer than a label may be; what the font has not is written as its code point."""
    font = font_manager.get_font(font_manager.findfont("monospace"))
    shown = visible(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…").replace("$", r"\$")  # no formula
    return "".join(c if font.get_char_index(ord(c)) else f"U+{ord(c):04X}" for c in shown)
