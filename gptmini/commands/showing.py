"""What --help shows of the keys of a command, and what --cfg shows of a run that is resumed."""

import argparse
import json
import string
import textwrap
from collections.abc import Iterator, Sequence

from gptmini.commands.comments import comments_of
from gptmini.commands.configuration import (
    CONFIGS,
    UsedFile,
    composer,
    folders_of,
    plain_tree,
    read_yaml,
    used_files,
    without_sweeps,
)
from gptmini.commands.keys import check_overrides
from gptmini.commands.own_files import check_own_files
from gptmini.commands.stored import run_to_resume, stored_config
from gptmini.user_error import UserError

WIDTH = 100  # columns of the help text
# What the help of gptmini prepare shows. It accepts all that gptmini train does, and takes notice of these alone.
OF_PREPARE = ("data", "tokenizer", "experiment", "data_dir", "num_workers", "verify", "inspect")
# Columns for KEY=VALUE, which nearly every key of gptmini fits. The comment of a longer one begins on the next line.
KEY_WIDTH = 42


def show_help(command: str, overrides: Sequence[str], config_dir: str | None) -> None:
    """Print how a command is used: its groups, and each key with its present value and its comment in the YAML files.

    Args:
        command: the name of the root configuration, whose hydra.help.template holds the text around groups and keys.
        overrides: what was typed; groups and keys are shown as it chooses them.
        config_dir: a folder of the user's own that adds options to the groups.

    Raises UserError: the overrides are refused as they would be for a run.
    """
    fixed = without_sweeps(overrides)
    run = run_to_resume(command, fixed)
    if run is not None:
        raise UserError(
            f"--help shows the keys of a new run; --cfg job resume={run} shows those of the run"
        )
    check_own_files(command, fixed, config_dir)
    check_overrides(command, fixed, config_dir)
    with composer(config_dir) as compose:
        config = compose(command, fixed, return_hydra_config=True)

    tree = plain_tree(config)
    hydra = tree.pop("hydra")
    groups = _groups_of("train" if command == "prepare" else command)
    if command == "prepare":
        tree = {name: value for name, value in tree.items() if name in OF_PREPARE}
        groups = [group for group in groups if group in OF_PREPARE]
    chosen = {group: hydra["runtime"]["choices"].get(group) for group in groups}

    template = string.Template(hydra["help"]["template"])
    text = template.substitute(
        APP_CONFIG_GROUPS="\n".join(_options(groups, config_dir)),
        CONFIG="\n".join(_keys(tree, chosen, used_files(command, fixed, config_dir))),
    )
    print(text.rstrip())


def show_stored(command: str, flags: argparse.Namespace) -> None:
    """Print the configuration of the run that --cfg job resume=RUN names, as the other overrides change it.

    Raises UserError: --cfg asks for more than the run's own configuration, or the run cannot be resumed so.
    """
    from omegaconf import OmegaConf

    run = run_to_resume(command, flags.overrides)
    assert run is not None  # the caller has seen that there is a run
    if flags.cfg != "job" or flags.package:
        raise UserError(
            f"--cfg must be job, without --package, where a run is resumed, "
            f"got --cfg {flags.cfg} and resume={run}"
        )
    print(OmegaConf.to_yaml(stored_config(run, flags.overrides, flags.config_dir)), end="")


def _groups_of(command: str) -> list[str]:
    """The groups of which a command takes an option, in the order of its root configuration."""
    groups = []
    for entry in read_yaml(CONFIGS / f"{command}.yaml")["defaults"]:
        if isinstance(entry, dict):
            groups += [group for group in entry if not group.startswith("override ")]
    return groups


def _options(groups: list[str], config_dir: str | None) -> Iterator[str]:
    """The lines that list the options of each group, those of the user's own folder included."""
    width = max(len(group) for group in groups)
    for group in groups:
        names = set()
        for folder in folders_of(config_dir):
            names.update(file.stem for file in folder.glob(f"{group}/*.yaml"))
        first = f"  {group:{width}}  "
        yield from _wrapped(", ".join(sorted(names)), first)


def _keys(tree: dict, chosen: dict[str, str | None], files: list[UsedFile]) -> Iterator[str]:
    """The lines that show the keys of a configuration with their values and comments, group by group.

    Args:
        tree: the configuration.
        chosen: the option that is chosen of each group; None if a group has none.
        files: the files of the configuration, in the order in which they are merged.
    """
    meanings, purposes = _comments(files)
    roots = {name: value for name, value in tree.items() if name not in chosen}
    yield from _section(roots, "", meanings)

    for group, option in chosen.items():
        if option is None:
            continue
        yield ""
        purpose = purposes.get(f"{group}/{option}", "")
        yield from _wrapped(purpose, f"{group}={option}: ", indent=4)
        branch = tree.get(group)
        if isinstance(branch, dict):
            yield from _section(branch, f"{group}.", meanings)


def _comments(files: list[UsedFile]) -> tuple[dict[str, str], dict[str, str]]:
    """What the comments of files say of each key, by its dotted name, and of each file, by the file's name.

    The file that defines a key says what the key means. A file that is merged later may say why it changes the value,
    which is not told here.
    """
    meanings: dict[str, str] = {}
    purposes: dict[str, str] = {}
    for file in files:
        comments = comments_of(file.path)
        purposes[file.name] = comments.of_file
        for key, comment in comments.of_keys.items():
            meanings.setdefault(f"{file.prefix}{key}", comment)
    return meanings, purposes


def _section(tree: dict, prefix: str, meanings: dict[str, str]) -> Iterator[str]:
    """The lines of the keys in a mapping and in the mappings in it, without the keys that nobody may set."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if str(name).endswith("_"):
            continue
        if isinstance(value, dict) and value:
            yield from _section(value, f"{key}.", meanings)
            continue

        typed = f"  {key}={_as_typed(value)}"
        meaning = meanings.get(key, "")
        if len(typed) > KEY_WIDTH and meaning:
            yield typed
            typed = ""
        yield from _wrapped(meaning, f"{typed:{KEY_WIDTH}}  ")


def _as_typed(value: object) -> str:
    """A value as it is typed on a command line."""
    if isinstance(value, str) and value:
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _wrapped(text: str, first: str, *, indent: int | None = None) -> list[str]:
    """A text on lines of WIDTH columns after what the first line begins with; later lines are indented as far."""
    if not text:
        return [first.rstrip(": ")]
    return textwrap.wrap(
        text,
        width=WIDTH,
        initial_indent=first,
        subsequent_indent=" " * (len(first) if indent is None else indent),
        break_long_words=False,
        break_on_hyphens=False,
    )
