"""Read the known keys and options from the YAML files of gptmini and of the user, and refuse an unknown key."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from gptmini.configuration.request import UserRequest, key_of
from gptmini.system.errors import similar
from gptmini.system.files import CONFIGS
from gptmini.system.untrusted import read_yaml

# Words of other programs and of everyday speech, and the key or override that each means. Their spelling is closer to a
# different key.
SYNONYMS = {
    "batch": "trainer.batch_size",
    "block_size": "model.context_length",
    "cpu": "trainer.device=cpu",
    "cuda": "trainer.device=cuda",
    "dataset": "data.path",
    "dim": "model.d_model",
    "file": "data.path",
    "gpu": "trainer.device=cuda",
    "gpus": "trainer.devices",
    "hidden_size": "model.d_model",
    "input": "data.path",
    "iterations": "trainer.max_steps",
    "iters": "trainer.max_steps",
    "learning_rate": "optimizer.lr",
    "mps": "trainer.device=mps",
    "n_embd": "model.d_model",
    "num_train_epochs": "epochs",
    "out_dir": "folder",
    "output_dir": "folder",
    "path": "data.path",
    "seq_len": "model.context_length",
    "steps": "trainer.max_steps",
    "text": "data.path",
    "wandb_log": "logger.wandb",
}

ALIKE = 0.75  # minimum similarity of a misspelt key; it is high, because all keys of a group start alike


def groups() -> list[str]:
    """Return the groups of gptmini's configurations."""
    return sorted(path.name for path in CONFIGS.iterdir() if path.is_dir())


@cache
def known_keys() -> dict[str, list[str]]:
    """Map each key of gptmini's own configurations to the options that contain it. A root key has none."""
    options: dict[str, list[str]] = {}
    for file in sorted(CONFIGS.rglob("*.yaml")):
        group = file.parent.relative_to(CONFIGS).as_posix()
        prefix = "" if group in (".", "experiment") else f"{group}."
        for key in _keys_of(read_yaml(file, trusted=True), prefix):
            # sweep.params holds keys of gptmini train, which are listed under their own names.
            if key.startswith("sweep.params."):
                continue
            options.setdefault(key, [])
            if prefix:
                options[key].append(file.stem)
    return options


def user_component(key: str) -> str:
    """Return the user's own callback or logger that a key belongs to, such as callbacks.mine, or an empty string."""
    group, _, rest = key.partition(".")
    part = f"{group}.{rest.partition('.')[0]}"
    is_own = group in ("callbacks", "logger") and rest and part not in known_keys()
    return part if is_own else ""


def unknown_key(key: str) -> str:
    """Return the message for an unknown key. It names the options that have the key, or the nearest known key."""
    options = known_keys()
    group = key.partition(".")[0]
    if key in options:
        having = [f"{group}={option}" for option in options[key]]
        if group == "sweep":
            having = ["gptmini sweep"]
        elif not having:
            is_of_prepare = key in read_yaml(CONFIGS / "prepare.yaml", trusted=True)
            having = ["gptmini prepare" if is_of_prepare else "gptmini train"]
        message = f"{key} requires {' or '.join(having)}"
        if key == "data.path":
            message += "; for a text, add data=text or write gptmini train FILE"
        return message

    close = nearest_key(key)
    if close:
        return f"unknown key {key}; did you mean {close}?"
    help_of = f"--help {group}" if group in groups() else "--help"
    return f"unknown key {key}; see {help_of}"


def nearest_key(key: str) -> str:
    """Return the key or the override that an unknown key may mean, or an empty string if no key is similar."""
    last_name = key.rpartition(".")[2]
    outer_first = sorted(known_keys(), key=lambda other: other.count("."))
    by_last_name = {other.rpartition(".")[2]: other for other in reversed(outer_first)} | SYNONYMS
    same = [other for other in outer_first if other.rpartition(".")[2] == last_name]
    nearest = (
        similar(key, same, cutoff=ALIKE)  # a misspelt group
        or SYNONYMS.get(last_name)
        or next(iter(same), "")  # another group, as in trainer.lr for optimizer.lr
        or similar(key, known_keys(), cutoff=ALIKE)
        or by_last_name.get(similar(last_name, by_last_name, cutoff=ALIKE), "")
    )

    # The option logger=wandb turns on the part logger.wandb.
    group, _, name = nearest.rpartition(".")
    return f"{group}={name}" if name in known_keys().get(nearest, ()) else nearest


def option_files(group: str, option: str | None, config_dir: str | None) -> Iterator[Path]:
    """Yield the file of an option, after the files of the options in its defaults list."""
    for file in files_of_group(group, config_dir):
        if file.stem != option:
            continue
        for entry in read_yaml(file, trusted=True).get("defaults", []):
            is_option = isinstance(entry, str) and entry != "_self_"
            if is_option:
                yield from option_files(group, entry, config_dir)
        yield file
        return


def files_of_group(group: str, config_dir: str | None) -> Iterator[Path]:
    """Yield the files of a group, from gptmini and from the user's folder."""
    folders = [CONFIGS] if config_dir is None else [CONFIGS, Path(config_dir)]
    for folder in folders:
        yield from folder.glob(f"{group}/*.yaml")


def _keys_of(tree: object, prefix: str) -> Iterator[str]:
    if not isinstance(tree, dict):
        return
    for name, value in tree.items():
        if name not in ("defaults", "hydra") and not str(name).endswith("_"):
            yield f"{prefix}{name}"
            yield from _keys_of(value, f"{prefix}{name}.")


def is_requested(key: str, request: UserRequest) -> bool:
    """Whether the command line or the experiment sets a key of the model or the tokenizer. Defaults do not count."""
    group = key.partition(".")[0]
    is_overridden = request.has(key) or f"{group}={request.choices[group]}" in request.overrides
    return is_overridden or is_chosen_by_experiment(key, request)


def is_chosen_by_experiment(key: str, request: UserRequest) -> bool:
    """Whether the experiment sets a key, or chooses the option of its group."""
    group = key.partition(".")[0]
    for file in option_files("experiment", request.choices.get("experiment"), request.config_dir):
        tree = read_yaml(file, trusted=True)
        choices = [entry for entry in tree.get("defaults", []) if isinstance(entry, dict)]
        chosen = {name.removeprefix("override ").strip("/") for entry in choices for name in entry}
        if group in chosen or key in _keys_of(tree, ""):
            return True
    return False


def user_component_overrides(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that add the user's callbacks and loggers, which a resumed run must repeat."""
    return [line for line in overrides if user_component(key_of(line))]
