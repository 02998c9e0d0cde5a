"""Turn command-line overrides, as users write them in a shell, into Hydra's override grammar."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gptmini.files import CONFIGS
from gptmini.key_table import keys_with
from gptmini.user_error import UserError

# Keys for which Hydra would create an empty folder. gptmini writes runs elsewhere.
FOLDERS = ("hydra.run.dir", "hydra.run")
# A value that starts with one of these characters is a list or a quoted string in Hydra's notation. This also holds if
# the key is a text key.
NOTATION = ("[", "'", '"')
SWEEPS = re.compile(r"(choice|range|interval|glob|shuffle|sort|tag)\(")
LONGEST_VALUE = 80  # characters of a value in an error message; a longer value is cut
# Python's names of YAML's values.
YAML_NAMES = {"None": "null", "True": "true", "False": "false"}


def quote_for_hydra(typed: Sequence[str], *, multirun: bool = False) -> list[str]:
    """Quote overrides so that Hydra reads what the user means.

    Hydra's grammar does not allow umlauts. Commas, parentheses and other characters have a special meaning. A value is
    quoted if the grammar cannot read it, or if its key holds text and Hydra would read it as something else.

    Args:
        typed: the overrides, each written as KEY=VALUE or GROUP=NAME.
        multirun: whether commas separate the values of a sweep.

    Raises UserError for a word that is not an override, and for several values without -m.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    readable = []
    for line in typed:
        key, equals, value = line.partition("=")
        if not equals and not line.startswith("~"):
            raise UserError(f"an override must be KEY=VALUE, got {line}{_remedy(line)}")
        if key_of(line) in FOLDERS:
            raise UserError(f"{key_of(line)} has no effect; set folder=, runs_dir= or data_dir=")
        is_read = False
        is_sweep = False
        is_text = False
        is_no_option = False
        is_text_key = key.lstrip("+") in keys_with("text")
        try:
            override = parser.parse_override(line)
        except HydraException:
            pass
        else:
            is_read = True
            is_sweep = override.is_sweep_override()
            is_text = override.is_delete() or isinstance(override.value(), str | None)
            is_scalar = isinstance(override.value(), int | float | None)
            is_no_option = equals and is_scalar and (CONFIGS / key.lstrip("+")).is_dir()
            is_number = not is_text_key and "inf" not in value.lower()
            if is_number and _overflows(override.value()):
                raise UserError(
                    f"{line} must be at most 1.8e308; if it is text, quote it: '{key}=\"{value}\"'"
                )

        if not is_read and not is_text_key and value.startswith(("[", "{")):
            raise UserError(
                f"cannot parse {line} as a list or mapping; put quotes around strings with special characters"
            )

        is_notation = value.startswith(NOTATION) or SWEEPS.match(value) is not None
        if is_no_option:
            is_meant = False  # with the value as a name, Hydra's error lists the group's options
        elif is_text_key and value != value.strip():
            is_meant = False  # Hydra would drop the spaces
        elif is_text_key and multirun:
            is_meant = is_read
        elif is_text_key:
            is_meant = is_read and not is_sweep and (is_text or is_notation)
        elif is_sweep and not multirun:
            raise UserError(
                f"{line} has several values; use gptmini sweep or -m to train one run for each"
            )
        else:
            is_meant = is_read
        readable.append(line if is_meant else f"{key}={quoted(value)}")
    return readable


def _overflows(value: object) -> bool:
    """Whether a value contains a number that is too large for a float. Python reads 1e400 as infinity."""
    if isinstance(value, dict):
        return any(map(_overflows, value.values()))
    if isinstance(value, list):
        return any(map(_overflows, value))
    return isinstance(value, float) and math.isinf(value)


def _remedy(word: str) -> str:
    """Return the end of an error message: the remedy for a word without an equals sign."""
    if Path(word).is_file():
        return f"; to train on this file, write data=text data.path={word}"
    if word.endswith(("]", "}", ",")):
        return "; the shell splits at spaces, so quote a list or mapping: 'key=[a, b]'"
    return ""


def key_of(line: str) -> str:
    """Return the key of an override, without a leading +, ++ or ~."""
    return line.lstrip("+~").partition("=")[0]


def quoted(text: str) -> str:
    """Return any text as a quoted value of Hydra's override grammar."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text, Quote.double).with_quotes()


def shown(value: object) -> str:
    """Return the text of a value in an error message: Python's repr, but null, true and false as in YAML."""
    text = YAML_NAMES.get(repr(value), repr(value))
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def as_override(key: str, value: str) -> str:
    """Return KEY=VALUE for a text value, quoted for Hydra if necessary."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (line,) = quote_for_hydra([f"{key}={value}"])
    is_same = OverridesParser.create().parse_override(line).value() == value
    return line if is_same else f"{key}={quoted(value)}"


@dataclass(frozen=True, kw_only=True)
class Typed:
    """The command-line overrides of one run. Hydra composes the configuration from them."""

    overrides: Sequence[str] = ()  # each is KEY=VALUE or GROUP=NAME in Hydra's grammar
    before: Sequence[str] = ()  # the overrides of earlier starts of a resumed run
    choices: Mapping[str, str | None]  # the chosen option of each group
    config_dir: str | None = None  # the user's folder, which adds options to the groups

    def has(self, key: str) -> bool:
        """Whether a key, or a key below it, was overridden on the command line."""
        keys = [key_of(line) for line in self.overrides]
        return any(typed == key or typed.startswith(f"{key}.") for typed in keys)

    def in_all_starts(self) -> list[str]:
        """Return the latest override of each key from all starts of the run, without resume and folder."""
        newest = {key_of(line): line for line in (*self.before, *self.overrides)}
        return [line for key, line in newest.items() if key not in ("resume", "folder")]
