"""Print the text of --help: groups, options and keys, as the commented YAML files in configs/ define them."""

import string
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import yaml

from gptmini.configuration.compose import Composition
from gptmini.configuration.keys import files_of_group, known_keys, option_files, unknown_key
from gptmini.configuration.request import UserRequest, key_of
from gptmini.console.printing import print_lines
from gptmini.console.table import aligned
from gptmini.key_table import keys_with
from gptmini.system.errors import UserError
from gptmini.system.files import CONFIGS
from gptmini.system.untrusted import LOADER, read_yaml


def show_help(command: str, composition: Composition, keys: Sequence[str] = ()) -> None:
    """Print the help of a command, or the help of some keys and groups.

    Args:
        command: name of the root configuration. Its key hydra.help.template has the text around groups and root keys.
        composition: the configuration, which determines the options and the keys.
        keys: keys or groups. If there are none, take the groups whose option the user chose. For a group, print its
            options and the files of the chosen option. For a key, print its lines in the files of the chosen option,
            or of all other options if the chosen option does not have the key.

    Raises UserError if a key does not exist.
    """
    request = composition.request
    groups = [group for group in [*request.choices][::-1] if (CONFIGS / group).is_dir()]
    roots = [name for name in map(str, composition.config) if name not in groups]
    if command == "prepare":
        # gptmini prepare accepts all keys of gptmini train, but uses only these keys.
        groups = [group for group in groups if group in keys_with("for_prepare")]
        roots = [name for name in roots if name in keys_with("for_prepare")]
    keys = keys or [name for name in map(key_of, request.overrides) if name in groups]
    files = [CONFIGS / f"{name}.yaml" for name in dict.fromkeys(("train", command))]
    if command == "sweep":
        files = files[1:]

    if not keys:
        template = read_yaml(files[-1], trusted=True)["hydra"]["help"]["template"]
        text = string.Template(template).substitute(
            APP_CONFIG_GROUPS="\n".join(_options(groups, request)),
            CONFIG="\n".join(line for name in roots for line in _lines_of(files, name)),
        )
        print_lines(*text.rstrip().splitlines())

    for wanted in keys:
        group, _, key = wanted.partition(".")
        if wanted in groups:
            lines = list(_group(group, request))
        elif group in groups:
            lines = list(_key_of_group(group, key, request))
        else:
            lines = list(_lines_of(files, wanted))
        if not lines:
            raise UserError(unknown_key(wanted))
        print_lines(*lines)


def _options(groups: Sequence[str], request: UserRequest) -> Iterator[str]:
    rows = []
    for group in groups:
        names = sorted(file.stem for file in files_of_group(group, request.config_dir))
        rows.append((f"  {group}", ", ".join(names)))
    yield from aligned(rows)


def _group(group: str, request: UserRequest) -> Iterator[str]:
    files = sorted(files_of_group(group, request.config_dir), key=lambda file: file.stem)
    yield from aligned([(f"{group}={file.stem}", _purpose(file)) for file in files])
    for file in option_files(group, request.choices[group], request.config_dir):
        yield from ("", f"# {group}={file.stem}", *file.read_text(encoding="utf-8").splitlines())


def _purpose(file: Path) -> str:
    lines = file.read_text(encoding="utf-8").splitlines()
    first = next((line for line in lines if not line.startswith("# @")), "")
    return first.removeprefix("# ") if first.startswith("#") else ""


def _key_of_group(group: str, key: str, request: UserRequest) -> Iterator[str]:
    """Yield the lines of a key in the files of the chosen option, or else of each other option that has the key."""
    chosen = request.choices[group]
    for option in (chosen, *known_keys().get(f"{group}.{key}", ())):
        lines: list[str] = []
        for file in option_files(group, option, request.config_dir):
            part = list(_lines_of([file], key))
            lines += [f"# {group}={file.stem}", *part] if part else []
        yield from lines
        if lines and option == chosen:
            return


def _lines_of(files: Iterable[Path], key: str) -> Iterator[str]:
    """Yield the lines of a key in YAML files: the comment above the key, the key, and the lines below the key."""
    for file in files:
        text = file.read_text(encoding="utf-8")
        lines = text.splitlines()
        entry = _entry(yaml.compose(text, Loader=LOADER), key)
        if entry is None:
            continue

        key_node, value_node = entry
        first = key_node.start_mark.line
        while first > 0 and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        # The next line with the same indentation, or with less, is no longer a part of this key.
        last = max(key_node.start_mark.line, value_node.end_mark.line - 1)
        indent = key_node.start_mark.column
        while last + 1 < len(lines) and lines[last + 1].startswith(" " * (indent + 1)):
            last += 1
        yield from (line[indent:] for line in lines[first : last + 1])


def _entry(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    first, _, rest = key.partition(".")
    for key_node, value_node in node.value if isinstance(node, yaml.MappingNode) else ():
        if key_node.value == first:
            return _entry(value_node, rest) if rest else (key_node, value_node)
    return None
