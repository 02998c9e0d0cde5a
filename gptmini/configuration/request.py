"""What a user requests on the command line of a run: overrides, options and a folder of configuration files."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


def key_of(line: str) -> str:
    """Return the key of an override, without a leading +, ++ or ~."""
    return line.lstrip("+~").partition("=")[0]


@dataclass(frozen=True, kw_only=True)
class UserRequest:
    """The command-line overrides of one run. Hydra composes the configuration from these overrides."""

    overrides: Sequence[str] = ()  # each is KEY=VALUE or GROUP=NAME in Hydra's grammar
    before: Sequence[str] = ()  # the overrides that earlier starts of a resumed run were given
    choices: Mapping[str, str | None]  # the chosen option of each group
    config_dir: str | None = None  # the user's own folder of configuration files
    # The start of the command, in seconds of time.monotonic. trainer.max_time and budget= count from it.
    began: float = field(default_factory=lambda: time.monotonic())

    def has(self, key: str) -> bool:
        """Whether a key, or a key below this key, was overridden on the command line."""
        keys = [key_of(line) for line in self.overrides]
        return any(other == key or other.startswith(f"{key}.") for other in keys)

    def in_all_starts(self) -> list[str]:
        """Return the latest override of each key from all starts of the run, without 'resume' and 'folder'."""
        newest = {key_of(line): line for line in (*self.before, *self.overrides)}
        return [line for key, line in newest.items() if key not in ("resume", "folder")]
