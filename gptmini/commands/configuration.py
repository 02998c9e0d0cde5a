"""Configurations: composed by Hydra from the files of gptmini and of the user's own folder."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gptmini.checks import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

PACKAGE = Path(__file__).resolve().parent.parent
# An installed package holds its configs folder; in a clone that folder lies beside the package.
CONFIG_PLACES = (PACKAGE / "configs", PACKAGE.parent / "configs")
CONFIGS = next(folder for folder in CONFIG_PLACES if folder.is_dir())


def sweep_described(
    command: str, overrides: Sequence[str], config_dir: str | None = None
) -> list[str]:
    """The sweep that the chosen configuration files describe themselves, in hydra.sweeper.params.

    Args:
        command: the name of the root configuration.
        overrides: what was typed; overrides that are sweeps themselves choose no configuration file.
        config_dir: a folder of the user's own that adds options to the groups.

    Returns one KEY=VALUES for each key that is swept.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    fixed = [as_typed(override) for override in parsed if not override.is_sweep_override()]

    with composer(config_dir) as compose:
        sweeper = compose(command, fixed, return_hydra_config=True).hydra.sweeper
        params = sweeper.get("params") or {}
        return [f"{key}={values}" for key, values in params.items()]


@contextmanager
def composer(config_dir: str | None) -> Iterator[Callable[..., "DictConfig"]]:
    """Compose configurations as Hydra does for a command line, even while Hydra runs a job in this process.

    The block is given a function of a root configuration's name, overrides and options of hydra.compose. The function
    raises UserError where the configuration cannot be composed.
    """
    import yaml
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    extra = []
    if config_dir is not None:
        address = quoted(f"file://{Path(config_dir).resolve()}")
        extra.append(f"hydra.searchpath=[{address}]")

    def compose_or_refuse(name: str, overrides: list[str], **options: bool) -> "DictConfig":
        # Hydra raises errors of these classes for files and values that it did not expect.
        try:
            return compose(name, [*overrides, *extra], **options)
        except (ValueError, TypeError, AssertionError, yaml.YAMLError) as error:
            raise UserError(f"the configuration cannot be composed: {error}") from error

    # Hydra's state is global, and initialising it twice is an error: set aside the state of a job that is running.
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            yield compose_or_refuse
    finally:
        GlobalHydra.instance().hydra = running


def as_typed(override: "Override") -> str:
    """An override as its user typed it."""
    assert override.input_line is not None  # Hydra's parser sets the line of every override
    return override.input_line


def quoted(text: str) -> str:
    """Text as a quoted value of Hydra's override grammar, whatever its characters."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def folders_of(config_dir: str | None) -> list[Path]:
    """The folders that hold configuration files: gptmini's own, and one of the user's if there is one."""
    if config_dir is None:
        return [CONFIGS]
    return [CONFIGS, Path(config_dir)]


def state_of_gptminis_files() -> tuple[tuple[str, int], ...]:
    """Name and time of the last change of each of gptmini's configuration files, which a user of a clone may edit."""
    return tuple(sorted((str(file), file.stat().st_mtime_ns) for file in CONFIGS.rglob("*.yaml")))


def read_yaml(file: Path) -> dict:
    """The keys and values of a configuration file; empty for a file without keys.

    Raises UserError: the file is no YAML.
    """
    import yaml

    # libyaml's parser is eight times faster than Python's, but PyYAML can be built without it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        tree = yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} must be YAML: {error}") from None
    return tree if isinstance(tree, dict) else {}


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
