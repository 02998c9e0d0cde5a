"""Configurations: composed by Hydra from the files of gptmini and of the user's own folder."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.checks import UserError, shown, whole
from gptmini.files import CONFIGS

if TYPE_CHECKING:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

# How a value holds characters that Hydra's grammar does not have.
QUOTES = "; a list or a mapping holds other characters in quotes: 'key=[\"a b\"]'"


@dataclass(frozen=True)
class DescribedSweep:
    """What the chosen configuration files say of a sweep."""

    overrides: list[str]  # KEY=VALUES for each key that hydra.sweeper.params sweeps over
    is_grid: bool  # whether Hydra's basic sweeper runs every combination of the values
    runs_dir: str | None  # folder of all runs; None for a command without runs


def sweep_described(
    command: str, overrides: Sequence[str], config_dir: str | None = None
) -> DescribedSweep:
    """Read what the chosen configuration files say of a sweep.

    Args:
        command: the name of the root configuration.
        overrides: what was typed; overrides that are sweeps themselves choose no configuration file.
        config_dir: a folder of the user's own that adds options to the groups.
    """
    with composer(config_dir) as compose:
        fixed = without_sweeps(overrides)
        config = compose(command, fixed, return_hydra_config=True)
        sweeper = config.hydra.sweeper
        params = sweeper.get("params") or {}
        whole(
            "hydra.sweeper.max_batch_size",
            sweeper.get("max_batch_size"),
            null="all jobs at once",
        )
        return DescribedSweep(
            overrides=[f"{key}={values}" for key, values in params.items()],
            is_grid=sweeper._target_.endswith(".BasicSweeper"),
            runs_dir=config.runs_dir if command == "train" else None,
        )


def without_sweeps(overrides: Sequence[str]) -> list[str]:
    """The overrides that set one value each."""
    return [
        as_typed(override)
        for override in parse_overrides(overrides)
        if not override.is_sweep_override()
    ]


def parse_overrides(overrides: Sequence[str]) -> "list[Override]":
    """Overrides as Hydra reads them; UserError for one that it cannot read."""
    return [_parsed(line) for line in overrides]


def _parsed(line: str) -> "Override":
    """An override as Hydra reads it; UserError where Hydra cannot."""
    from hydra.errors import HydraException

    if "=" not in line and not line.startswith("~"):
        is_file = Path(line).expanduser().is_file()
        typed = shlex.quote(f"data.path={line}")
        remedy = f"; data=text {typed} chooses it as the text" if is_file else _cut_by_shell(line)
        raise UserError(f"what is typed must be KEY=VALUE, got {line}{remedy}")
    try:
        return parser().parse_override(line)
    except HydraException as error:
        if _cut_by_shell(line):
            raise UserError(f"{line} cannot be read{_cut_by_shell(line)}") from None
        reason, *rest = str(error).splitlines()
        if not reason.startswith("LexerNoViableAltException"):
            raise UserError(f"{line} cannot be read: {reason}{QUOTES}") from None
        # Hydra prints a mark below the character that its grammar does not have.
        mark = next((row.index("^") for row in rest if row.strip() == "^"), None)
        character = "" if mark is None else f" {line[mark : mark + 1]!r}"
        raise UserError(
            f"{line} cannot be read: the character{character} needs quotes{QUOTES}"
        ) from None


def _cut_by_shell(line: str) -> str:
    """A remedy for what has brackets or braces without their partners; empty for anything else."""
    is_whole = all(line.count(a) == line.count(b) for a, b in ("[]", "{}"))
    if is_whole:
        return ""
    return "; the shell cuts at spaces: a list or a mapping needs quotes around all of it: 'key=[a, b]'"


@cache
def parser() -> "OverridesParser":
    """Hydra's parser of overrides, which takes a while to make."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


@contextmanager
def composer(config_dir: str | None) -> Iterator[Callable[..., "DictConfig"]]:
    """Compose configurations as Hydra does for a command line, even while Hydra runs a job in this process.

    The block is given a function of a root configuration's name, overrides and options of hydra.compose. The function
    raises UserError where the configuration cannot be composed.
    """
    from hydra import compose

    def compose_or_refuse(name: str, overrides: list[str], **options: bool) -> "DictConfig":
        with _clear_errors():
            return compose(name, [*overrides, *added], **options)

    with _initialised(config_dir) as added:
        yield compose_or_refuse


@dataclass(frozen=True)
class UsedFile:
    """A configuration file that a command line leads to."""

    name: str  # path in its folder without .yaml, as model/tiny
    path: Path
    package: str  # the dotted key below which the file's keys lie; empty if they begin at the root
    is_own: bool  # whether the file lies in the user's own folder

    @property
    def prefix(self) -> str:
        """The beginning of the dotted names of the file's keys, as "model."; empty for keys at the root."""
        return f"{self.package}." if self.package else ""


def used_files(command: str, overrides: list[str], config_dir: str | None) -> list[UsedFile]:
    """The files that are merged into a configuration, in the order in which they are merged, without Hydra's own.

    Args:
        command: the name of the root configuration.
        overrides: what was typed, without sweeps.
        config_dir: a folder of the user's own that adds options to the groups.
    """
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    with _initialised(config_dir) as added, _clear_errors():
        loader = GlobalHydra.instance().config_loader()
        merged = loader.compute_defaults_list(command, [*overrides, *added], RunMode.RUN).defaults

    files = []
    for result in merged:
        name = (result.config_path or "").removesuffix(".yaml")
        for folder in folders_of(config_dir):
            path = folder / f"{name}.yaml"
            if path.is_file():
                is_own = folder != CONFIGS
                package = result.package or ""
                files.append(UsedFile(name=name, path=path, package=package, is_own=is_own))
                break
    return files


@contextmanager
def _initialised(config_dir: str | None) -> Iterator[list[str]]:
    """Initialise Hydra with gptmini's configurations; the block is given the overrides that add the user's folder."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    added = []
    if config_dir is not None:
        address = quoted(f"file://{Path(config_dir).resolve()}")
        added.append(f"hydra.searchpath=[{address}]")

    # Hydra's state is global, and initialising it twice is an error: set aside the state of a job that is running.
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            yield added
    finally:
        GlobalHydra.instance().hydra = running


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Turn the errors that Hydra raises for files and values that it did not expect into a UserError."""
    import yaml

    try:
        yield
    except (ValueError, TypeError, AssertionError, yaml.YAMLError) as error:
        raise UserError(f"the configuration cannot be composed: {error}") from error


def key_typed(line: str) -> str:
    """The key of an override as it was typed, without the + or ++ that may precede it."""
    return line.lstrip("+").partition("=")[0]


def as_typed(override: "Override") -> str:
    """An override as its user typed it."""
    assert override.input_line is not None  # Hydra's parser sets the line of every override
    return override.input_line


def quoted(text: str) -> str:
    """Text as a quoted value of Hydra's override grammar, whatever its characters."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text, Quote.double).with_quotes()


def folders_of(config_dir: str | None) -> list[Path]:
    """The folders that hold configuration files: gptmini's own, and one of the user's if there is one."""
    if config_dir is None:
        return [CONFIGS]
    return [CONFIGS, Path(config_dir)]


def state_of_gptminis_files() -> tuple[tuple[str, int], ...]:
    """Name and time of the last change of each of gptmini's configuration files, which a user of a clone may edit."""
    return tuple(sorted((str(file), file.stat().st_mtime_ns) for file in CONFIGS.rglob("*.yaml")))


def groups_of_gptmini() -> list[str]:
    """The names of the groups of options, each of which is a folder in gptmini's own configurations."""
    return sorted(path.name for path in CONFIGS.iterdir() if path.is_dir())


def read_yaml(file: Path) -> dict:
    """The keys and values of a configuration file; empty for a file without keys.

    Raises UserError: the file is no YAML or no UTF-8, or it holds something else than keys and values.
    """
    import yaml

    # libyaml's parser is eight times faster than Python's, but PyYAML can be built without it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        tree = yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
    except UnicodeDecodeError as error:
        found = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        raise UserError(f"{file} must be UTF-8, got {found}; convert it first") from None
    except yaml.YAMLError as error:
        raise UserError(f"{file} must be YAML: {error}") from None
    except RecursionError:
        raise UserError(f"{file} is nested too deeply") from None

    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UserError(f"{file} must hold keys and values, as in KEY: VALUE, got {shown(tree)}")
    return tree


def read_if_yaml(file: Path) -> dict:
    """The keys and values of a file that a run may not use; empty for a file that cannot be read.

    A file that a run does use is read by Hydra too, and its fault is told then.
    """
    try:
        return read_yaml(file)
    except (UserError, OSError):
        return {}


def plain_tree(config: "DictConfig", *, resolve: bool = False) -> dict:
    """A configuration as nested dicts and lists; with resolve, values take the place of interpolations."""
    from omegaconf import OmegaConf

    tree = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(tree, dict)  # a list only for a ListConfig
    return tree


def items_of(tree: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted name and value of every node of a configuration, each node before the nodes in it."""
    if isinstance(tree, dict):
        entries = tree.items()
    elif isinstance(tree, list):
        entries = enumerate(tree)
    else:
        return

    for name, value in entries:
        yield f"{prefix}{name}", value
        yield from items_of(value, f"{prefix}{name}.")
