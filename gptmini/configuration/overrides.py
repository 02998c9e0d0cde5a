"""Overrides as a shell's user types them, turned into the grammar of Hydra's overrides."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gptmini.key_table import keys_with
from gptmini.user_error import UserError

# Keys for which Hydra would create an empty folder. gptmini writes runs elsewhere.
FOLDERS = ("hydra.run.dir", "hydra.run")
# What a value begins with that is written in Hydra's own notation, also for a text: a list, a quoted text.
NOTATION = ("[", "'", '"')
SWEEPS = re.compile(r"(choice|range|interval|glob|shuffle|sort|tag)\(")


def in_hydras_grammar(typed: Sequence[str], *, multirun: bool = False) -> list[str]:
    """Overrides that mean to Hydra what a shell's user means by the typed ones.

    Hydra's grammar has no umlauts, and gives commas, parentheses and more a meaning of its own. A value is quoted whole
    if the grammar cannot read it, or if its key holds a text and Hydra would read anything but text.

    Args:
        typed: KEY=VALUE or GROUP=NAME each.
        multirun: whether values are sweeps, whose values are separated by commas.

    Raises UserError: what is no override, or several values without -m.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    readable = []
    for line in typed:
        key, equals, value = line.partition("=")
        if not equals and not line.startswith("~"):
            raise UserError(f"what is typed must be KEY=VALUE, got {line}{_remedy(line)}")
        if key_of(line) in FOLDERS:
            raise UserError(f"{key_of(line)} has no effect; set folder=, runs_dir= or data_dir=")
        is_read = False
        is_sweep = False
        is_text = False
        is_text_key = key.lstrip("+") in keys_with("text")
        try:
            override = parser.parse_override(line)
        except HydraException:
            pass
        else:
            is_read = True
            is_sweep = override.is_sweep_override()
            is_text = override.is_delete() or isinstance(override.value(), str | None)
            is_number = not is_text_key and "inf" not in value.lower()
            if is_number and _overflows(override.value()):
                raise UserError(
                    f"{line} must be at most 1.8e308; quote the value if it is text, as in '{key}=\"{value}\"'"
                )

        if not is_read and not is_text_key and value.startswith(("[", "{")):
            raise UserError(
                f"{line} is no list or mapping that Hydra can read; a text in one that holds other signs than letters "
                "needs quotes"
            )

        is_notation = value.startswith(NOTATION) or SWEEPS.match(value) is not None
        if is_text_key and value != value.strip():
            is_meant = False  # Hydra would drop the spaces
        elif is_text_key and multirun:
            is_meant = is_read
        elif is_text_key:
            is_meant = is_read and not is_sweep and (is_text or is_notation)
        elif is_sweep and not multirun:
            raise UserError(
                f"{line} stands for several runs; gptmini sweep and -m train one for each"
            )
        else:
            is_meant = is_read
        readable.append(line if is_meant else f"{key}={quoted(value)}")
    return readable


def _overflows(value: object) -> bool:
    """Whether a value holds a number that is too large for a float. Python reads 1e400 as infinity."""
    if isinstance(value, dict):
        return any(map(_overflows, value.values()))
    if isinstance(value, list):
        return any(map(_overflows, value))
    return isinstance(value, float) and math.isinf(value)


def _remedy(word: str) -> str:
    """What a word without an equals sign was meant to be, as the end of an error message."""
    if Path(word).is_file():
        return f"; data=text data.path={word} chooses it as the text"
    if word.endswith(("]", "}", ",")):
        return "; the shell cuts at spaces: a list or a mapping needs quotes around all of it: 'key=[a, b]'"
    return ""


def key_of(line: str) -> str:
    """The key of an override, without the + or ++ that may precede it."""
    return line.lstrip("+~").partition("=")[0]


def quoted(text: str) -> str:
    """Text as a quoted value of Hydra's override grammar, whatever its characters."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text, Quote.double).with_quotes()


def as_override(key: str, value: str) -> str:
    """KEY=VALUE that a user may type for a text, quoted for Hydra where the text would not be read as it is."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (line,) = in_hydras_grammar([f"{key}={value}"])
    is_same = OverridesParser.create().parse_override(line).value() == value
    return line if is_same else f"{key}={quoted(value)}"


@dataclass(frozen=True, kw_only=True)
class Typed:
    """What was typed for one run, besides the configuration that Hydra has composed of it."""

    overrides: Sequence[str] = ()  # KEY=VALUE or GROUP=NAME each, in Hydra's grammar
    before: Sequence[str] = ()  # what was typed in earlier starts of a run that goes on
    choices: Mapping[str, str | None]  # the option that is chosen of each group
    config_dir: str | None = None  # a folder of the user's own that adds options to the groups

    def has(self, key: str) -> bool:
        """Whether a key, or one below it, was typed."""
        keys = [key_of(line) for line in self.overrides]
        return any(typed == key or typed.startswith(f"{key}.") for typed in keys)

    def in_all_starts(self) -> list[str]:
        """What was typed for the run so far, the newest value of each key, without what says which run it is."""
        newest = {key_of(line): line for line in (*self.before, *self.overrides)}
        return [line for key, line in newest.items() if key not in ("resume", "folder")]
