"""Figures of a run: attention maps, losses of tokens, and curves.

Every function here builds its own matplotlib Figure, without pyplot: no window opens and no global setting changes.
"""

from gptmini.report.drawing.charts import curves, loss_by_position, loss_histogram
from gptmini.report.drawing.common import png, svg, visible
from gptmini.report.drawing.maps import attention_maps

__all__ = [
    "attention_maps",
    "curves",
    "loss_by_position",
    "loss_histogram",
    "png",
    "svg",
    "visible",
]
