"""What all figures share: colours, labels, and how a figure becomes a file or an image."""

import io
import warnings

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK = "#24292f"  # of text
FAINT = "#b8c0c8"  # of values that a bolder line averages
LINE = "#1f6feb"
FUTURE = "#eceff2"  # of what a token cannot attend to, and of grid lines
DPI = 100  # an image of 10 inches fits TensorBoard's widest card

# White space would be invisible in a label.
VISIBLE = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥"}


def visible(text: str) -> str:
    """Return text as a label shows it: white space as signs, other unprintable characters as escapes."""
    shown = ""
    for character in text:
        sign = VISIBLE.get(character, character)
        shown += sign if sign.isprintable() else sign.encode("unicode_escape").decode()
    return shown


def png(figure: Figure) -> bytes:
    """Draw a figure as a PNG file."""
    file = io.BytesIO()
    FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()


def svg(figure: Figure) -> bytes:
    """Draw a figure as an SVG file whose letters are text, drawn by the fonts of whoever opens the file."""
    file = io.BytesIO()
    with rc_context({"svg.fonttype": "none"}), warnings.catch_warnings():
        # matplotlib warns of characters that its own font lacks; the fonts of a browser have more.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(file, format="svg")
    return file.getvalue()
