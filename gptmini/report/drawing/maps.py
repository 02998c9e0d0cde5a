"""Attention maps: which earlier tokens each token attends to, for chosen heads of chosen layers."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import font_manager
from matplotlib.axis import Axis
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from gptmini.report.drawing.common import DPI, FUTURE, visible

LONGEST_LABEL = 12  # characters of a token's label
MOST_COLUMNS = 4  # maps side by side

# Sizes in a figure of attention maps, in inches.
LEAST_CELL = 2.3  # side of a map
MOST_CELL = 4.2
LABEL_HEIGHT = 0.125  # of a token's label in 7 points
LABEL_WIDTH = 0.065  # of one character in 7 points
GAP = 0.1  # between neighbouring maps
TITLE = 0.35  # above each row of maps
HEADING = 0.7  # above all maps
SCALE = 0.9  # at the right of all maps, for the colour scale


def attention_maps(
    maps: dict[tuple[int, int], np.ndarray], labels: Sequence[str], title: str
) -> Figure:
    """Draw the attention weights of several heads, one square map for each.

    Row i of a map shows how much token i attends to each token. The cells of later tokens, to which token i cannot
    attend, are grey.

    Args:
        maps: weights (T, T) from 0 to 1, by (layer, head), both counted from 0.
        labels: texts of the T tokens.
        title: first words of the heading.
    """
    names = [_label(label) for label in labels]
    grid = _MapGrid.of(list(maps), names)
    figure = Figure(figsize=(grid.width, grid.height), dpi=DPI, facecolor="white")

    n_tokens = len(labels)
    future = np.triu(np.ones((n_tokens, n_tokens), dtype=bool), k=1)  # (T, T)
    norm = PowerNorm(0.5, vmin=0, vmax=1)  # the root: else all weights below a tenth look white
    images = []
    for i, ((layer, head), weights) in enumerate(maps.items()):
        axes = figure.add_axes(grid.box(i))
        image = axes.imshow(
            np.ma.array(weights, mask=future),
            cmap="Blues",
            norm=norm,
            interpolation="nearest",
        )
        images.append(image)
        axes.set_facecolor(FUTURE)
        axes.set_title(f"layer {layer}, head {head}", fontsize=8)
        axes.tick_params(length=0)

        # Maps in one row or column share their labels; an axis that is not visible costs no time.
        axes.yaxis.set_visible(grid.is_leftmost(i))
        if grid.is_leftmost(i):
            _name_ticks(axes.yaxis, names, rotation=0)
        axes.xaxis.set_visible(grid.is_lowest(i))
        if grid.is_lowest(i):
            _name_ticks(axes.xaxis, names, rotation=90)

    # All maps have equal colours, so that the scale of the last map serves them all. The scale is 0.12 inches wide,
    # 0.65 inches from the right edge, and half as high as the figure.
    scale = figure.add_axes((1 - 0.65 / grid.width, 0.25, 0.12 / grid.width, 0.5))
    bar = figure.colorbar(images[-1], cax=scale, ticks=(0, 0.05, 0.2, 0.5, 1))
    bar.ax.tick_params(labelsize=7)
    heading = f"{title}: how much each row's token attends to each column's"
    figure.suptitle(heading, fontsize=9)
    return figure


def _name_ticks(axis: Axis, names: list[str], *, rotation: float) -> None:
    """Write a token's label at each row or column of a map, turned by rotation, in degrees."""
    axis.set_ticks(range(len(names)), names, fontsize=7, family="monospace", rotation=rotation)


@dataclass(frozen=True, kw_only=True)
class _MapGrid:
    """Places of square maps in rows and columns, in inches; matplotlib's own layout would take longer."""

    n_maps: int
    n_columns: int
    cell: float  # side of a map
    margin: float  # beside and below the maps, for the tokens' labels

    @classmethod
    def of(cls, places: list[tuple[int, int]], names: list[str]) -> "_MapGrid":
        """Choose sizes for maps of these (layer, head) pairs whose tokens have these labels."""
        heads_of_layer = Counter(layer for layer, _ in places)
        return cls(
            n_maps=len(places),
            n_columns=min(MOST_COLUMNS, max(heads_of_layer.values())),
            cell=min(MOST_CELL, max(LEAST_CELL, LABEL_HEIGHT * len(names))),
            margin=0.2 + LABEL_WIDTH * max(map(len, names)),
        )

    @property
    def width(self) -> float:
        """Width of the whole figure."""
        return self.margin + self.n_columns * (self.cell + GAP) + SCALE

    @property
    def height(self) -> float:
        """Height of the whole figure."""
        n_rows = math.ceil(self.n_maps / self.n_columns)
        return HEADING + n_rows * (self.cell + TITLE) + self.margin

    def box(self, i: int) -> tuple[float, float, float, float]:
        """Left, bottom, width and height of map i, as shares of the figure."""
        row, column = divmod(i, self.n_columns)
        left = self.margin + column * (self.cell + GAP)
        top = HEADING + row * (self.cell + TITLE)
        return (
            left / self.width,
            1 - (top + self.cell) / self.height,
            self.cell / self.width,
            self.cell / self.height,
        )

    def is_leftmost(self, i: int) -> bool:
        """Whether map i begins a row."""
        return i % self.n_columns == 0

    def is_lowest(self, i: int) -> bool:
        """Whether no map stands below map i."""
        return i + self.n_columns >= self.n_maps


def _label(text: str) -> str:
    """The label of a token: its text, cut to LONGEST_LABEL characters; those that the font lacks as code points."""
    if len(text) > LONGEST_LABEL:
        text = text[: LONGEST_LABEL - 1] + "…"
    escaped = visible(text).replace("$", r"\$")  # matplotlib reads a plain $ as a formula

    font = font_manager.get_font(font_manager.findfont("monospace"))
    label = ""
    for character in escaped:
        in_font = font.get_char_index(ord(character))
        label += character if in_font else f"U+{ord(character):04X}"
    return label
