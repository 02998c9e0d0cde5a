"""Turn command-line overrides into Hydra's override grammar. Users write the overrides in a shell."""

import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

from gptmini.configuration.request import key_of
from gptmini.key_table import keys_with
from gptmini.system.errors import UserError
from gptmini.system.files import CONFIGS

# Keys for which Hydra would create an empty folder. gptmini writes runs elsewhere.
FOLDERS = ("hydra.run.dir", "hydra.run")
# A value that starts with one of these characters is a list or a quoted string in Hydra's notation, even if the key is
# a text key.
NOTATION = ("[", "'", '"')
SWEEPS = re.compile(r"(choice|range|interval|glob|shuffle|sort|tag)\(")


def quote_for_hydra(overrides: Sequence[str], *, multirun: bool = False) -> list[str]:
    """Quote overrides so that Hydra reads what the user means.

    Hydra's grammar does not allow umlauts, and gives commas, parentheses and others a meaning. A value is quoted if the
    grammar cannot read it, or if its key holds text and Hydra would read something else. With `multirun`, commas
    separate the values of a sweep.

    Raises UserError if a word is not an override, or if a key has several values without multirun.
    """
    parser = OverridesParser.create()
    readable = []
    for line in overrides:
        key, equals, value = line.partition("=")
        if not equals and not line.startswith("~"):
            raise UserError(f"an override must be KEY=VALUE, got {line}")
        if key_of(line) in FOLDERS:
            raise UserError(f"{key_of(line)} has no effect; set folder=, runs_dir= or data_dir=")
        is_text_key = key.lstrip("+") in keys_with("text")
        try:
            override = parser.parse_override(line)
        except HydraException:
            if not is_text_key and value.startswith(("[", "{")):
                raise UserError(
                    f"cannot parse {line} as a list or mapping; put quotes around strings with special characters"
                ) from None
            readable.append(f"{key}={quoted(value)}")
            continue

        is_sweep = override.is_sweep_override()
        is_text = override.is_delete() or isinstance(override.value(), str | None)
        is_scalar = isinstance(override.value(), int | float | None)
        if equals and is_scalar and (CONFIGS / key.lstrip("+")).is_dir():
            is_meant = False  # with a quoted value, Hydra's error lists the options of the group
        elif is_text_key:
            is_notation = value.startswith(NOTATION) or SWEEPS.match(value) is not None
            is_one = not is_sweep and (is_text or is_notation)
            has_spaces = value != value.strip()  # Hydra would drop them
            is_meant = not has_spaces and (multirun or is_one)
        elif is_sweep and not multirun:
            raise UserError(
                f"{line} has several values; use gptmini sweep or -m, or a decimal point instead of the comma"
            )
        else:
            is_meant = True
        readable.append(line if is_meant else f"{key}={quoted(value)}")
    return readable


def quoted(text: str) -> str:
    """Return any text as a quoted value of Hydra's override grammar."""
    return QuotedString(text, Quote.double).with_quotes()


def as_override(key: str, value: str) -> str:
    """Return KEY=VALUE for a text value, quoted for Hydra if necessary."""
    (line,) = quote_for_hydra([f"{key}={value}"])
    is_same = OverridesParser.create().parse_override(line).value() == value
    return line if is_same else f"{key}={quoted(value)}"
