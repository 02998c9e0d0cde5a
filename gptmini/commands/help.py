"""Print the text of --help: the keys of a configuration, and the comments on these keys from the YAML files."""

import json
import string
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gptmini.configuration.comments import comments_of, first_line_of
from gptmini.configuration.keys import files_of_group, known_keys, option_files, unknown_key
from gptmini.files import CONFIGS
from gptmini.job.printing import print_lines
from gptmini.key_table import keys_with
from gptmini.untrusted import read_yaml
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.configuration.compose import Composed
    from gptmini.configuration.overrides import Typed

WIDTH = 100  # columns of the help text
# Number of columns for KEY=VALUE. Nearly all keys of gptmini fit into them. The comment on a longer key starts on the
# next line.
KEY_WIDTH = 42


def show_help(command: str, composed: "Composed", keys: Sequence[str] = ()) -> None:
    """Print the help of a command: its groups, its keys, the current value of each key, and the comment on each key.

    Args:
        command: name of the root configuration. Its key hydra.help.template has the text around the groups and the
            keys.
        composed: the configuration, which determines the groups and keys.
        keys: print only these keys or groups. If this sequence is empty, print all keys. A group is printed with the
            first line of the file of each option. If the configuration does not have a key, the key is printed for each
            option that has it.

    Raises UserError if a key does not exist.
    """
    tree = composed.tree
    typed = composed.typed
    groups = [group for group in [*typed.choices][::-1] if (CONFIGS / group).is_dir()]
    if command == "prepare":
        # gptmini prepare accepts all keys of gptmini train, but uses only the keys in wanted_here.
        wanted_here = keys_with("for_prepare")
        tree = {name: value for name, value in tree.items() if name in wanted_here}
        groups = [group for group in groups if group in wanted_here]

    meanings = _meanings(command, groups, typed)
    lines = list(_described(tree, groups, typed, meanings))
    if not keys:
        template = string.Template(
            read_yaml(CONFIGS / f"{command}.yaml", trusted=True)["hydra"]["help"]["template"]
        )
        options = "\n".join(_options(groups, typed.config_dir))
        text = template.substitute(APP_CONFIG_GROUPS=options, CONFIG="\n".join(lines))
        print_lines(*text.rstrip().splitlines())
        return

    for wanted in keys:
        chosen = list(_section(tree, "", meanings, wanted=wanted))
        if wanted in groups:
            chosen = [*_purposes(wanted, typed.config_dir), *chosen]
        chosen = chosen or list(_in_other_options(wanted, groups))
        if not chosen:
            raise UserError(unknown_key(wanted))
        print_lines(*chosen)


def _options(groups: Sequence[str], config_dir: str | None) -> Iterator[str]:
    """Yield lines with the options of each group, including the options in the user's own folder."""
    width = max(len(group) for group in groups)
    for group in groups:
        names = {file.stem for file in files_of_group(group, config_dir)}
        yield from _wrapped(", ".join(sorted(names)), f"  {group:{width}}  ")


def _purposes(group: str, config_dir: str | None) -> Iterator[str]:
    """Yield a line for each option of a group: the option, and the first line of its file."""
    files = {file.stem: file for file in files_of_group(group, config_dir)}
    for name in sorted(files):
        yield from _entry(f"{group}={name}", first_line_of(files[name]))


def _in_other_options(wanted: str, groups: Sequence[str]) -> Iterator[str]:
    """Yield lines with a key that the chosen option of its group does not have. Show the key for each other option."""
    group = wanted.partition(".")[0]
    for option in known_keys().get(wanted, ()) if group in groups else ():
        yield f"{group}={option}:"
        tree: dict = {}
        comments: dict[str, str] = {}
        for file in option_files(group, option, None):
            tree |= read_yaml(file, trusted=True)
            comments |= comments_of(file)[1]
        meanings = {f"{group}.{key}": comment for key, comment in comments.items()}
        yield from _section({group: tree}, "", meanings, wanted=wanted)


def _meanings(command: str, groups: Sequence[str], typed: "Typed") -> dict[str, str]:
    """Return the comments on keys by dotted name, and the comment on the chosen option of each group by group.

    If an option extends another option, the comments in the extending option take precedence. Comments in an experiment
    are left out, because they explain the values of the experiment, not the keys.
    """
    meanings = {}
    for name in ("train", command) if command == "prepare" else (command,):
        meanings |= comments_of(CONFIGS / f"{name}.yaml")[1]
    for group in groups:
        option = typed.choices[group]
        for file in option_files(group, option, typed.config_dir):
            purpose, comments = comments_of(file)
            meanings[group] = purpose
            if group != "experiment":
                meanings |= {f"{group}.{key}": comment for key, comment in comments.items()}
    return meanings


def _described(
    tree: dict, groups: Sequence[str], typed: "Typed", meanings: dict[str, str]
) -> Iterator[str]:
    """Yield lines with all keys of a configuration: the root keys, followed by the keys of each group."""
    roots = {name: value for name, value in tree.items() if name not in groups}
    yield from _section(roots, "", meanings)

    for group in groups:
        option = typed.choices[group]
        if option is None:
            continue
        yield ""
        yield from _wrapped(meanings.get(group, ""), f"{group}={option}: ", indent=4)
        branch = tree.get(group)
        if isinstance(branch, dict):
            yield from _section(branch, f"{group}.", meanings)


def _section(
    tree: dict, prefix: str, meanings: dict[str, str], *, wanted: str = ""
) -> Iterator[str]:
    """Yield lines with the keys of a nested mapping. Leave out the keys that users cannot set.

    The argument wanted selects one key and the keys below this key. If wanted is empty, yield all keys.
    """
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if str(name).endswith("_"):
            continue
        if isinstance(value, dict) and value:
            yield from _section(value, f"{key}.", meanings, wanted=wanted)
            continue
        if wanted and key != wanted and not key.startswith(f"{wanted}."):
            continue

        yield from _entry(f"{key}={_as_typed(value)}", meanings.get(key, ""))


def _entry(override: str, meaning: str) -> Iterator[str]:
    """Yield lines with an override and its meaning."""
    shown = f"  {override}"
    if len(shown) > KEY_WIDTH and meaning:
        yield shown
        shown = ""
    yield from _wrapped(meaning, f"{shown:{KEY_WIDTH}}  ")


def _as_typed(value: object) -> str:
    """Return a value as it is written on the command line."""
    if isinstance(value, str) and value:
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _wrapped(text: str, first: str, *, indent: int | None = None) -> list[str]:
    """Wrap text to WIDTH columns. `first` starts the first line.

    Later lines are indented by `indent` columns. If `indent` is None, later lines are aligned with the text after
    `first`.
    """
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
