"""Datasets of the Hugging Face hub: their Parquet files, downloaded once, or read from a local folder laid out so."""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field, validate_call

from gptmini.data.corpus import HeldOut
from gptmini.data.paths import names_of
from gptmini.data.published import only_stored
from gptmini.data.readers import FieldName, OnError
from gptmini.data.text_corpus import TextCorpus
from gptmini.files import replacing
from gptmini.hub_errors import downloading
from gptmini.settings import STRICT
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# The branch of a dataset on which the hub itself keeps Parquet files, made of files of other formats.
CONVERTED = "refs/convert/parquet"
# Words for splits in names of files and folders, as the hub's library reads them.
SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
# Splits that are held out where val_split names none: the first of them that is there.
HELD_OUT = ("validation", "test")
DEFAULT = "default"  # the subset of files that lie in no folder of their own
# As in train-00000-of-00004-0123456789abcdef, or partial-train of the hub's own branch.
NUMBERED = re.compile(r"-\d{5}-of-\d{5}.*$")
NAMES_SHOWN = 20  # subsets that an error names
ADDRESS = "https://huggingface.co/datasets/"  # what the address of a dataset on the hub begins with
LIST = "gptmini-files.json"  # which files of the dataset were downloaded, kept beside them


class Choice(NamedTuple):
    """What is wanted of a dataset; for None see hub_text."""

    subset: str | None
    split: str
    val_split: str | None


class Chosen(NamedTuple):
    """Files of a dataset, as paths in it."""

    train: list[str]
    val: list[str]  # empty where no split is held out


@validate_call(config=STRICT)
def hub_text(
    *,
    dataset: Annotated[str, Field(min_length=1)],
    subset: str | None,
    split: str,
    val_split: str | None,
    revision: str | None,
    field: FieldName,
    folder: str,
    val_fraction: HeldOut,
    on_error: OnError,
    may_download: bool = True,
) -> TextCorpus:
    """The texts of a dataset.

    Args:
        dataset: name on the hub, as roneneldan/TinyStories, or a local folder with Parquet files in the same places.
        subset: one of several subsets; None for the only one, or the one called default.
        split: name of the split to train on.
        val_split: name of the split to hold out; None for validation or test, if the subset has one.
        revision: branch, tag or commit on the hub; None for the newest at the time of the download.
        field: column of the text; dots lead into nested records.
        folder: keeps what was downloaded.
        val_fraction: share of the text that is held out where no split is.
        on_error: fail, or skip for rows without text.
        may_download: False where nobody has typed dataset and folder.

    Raises pydantic.ValidationError: a value that does not fit. Raises UserError: there is no such dataset, subset or
    split, or it cannot or may not be downloaded.
    """
    name = dataset.removeprefix(ADDRESS)
    choice = Choice(subset, split, val_split)
    root = Path(name).expanduser()
    if root.is_dir():
        paths = [file.relative_to(root).as_posix() for file in root.rglob("*.parquet")]
        chosen = choose_files(name, paths, choice)
    else:
        place = name if revision is None else f"{name}@{revision}"
        root = Path(folder).expanduser() / re.sub(r"[^\w.@-]+", "--", place)
        chosen = _downloaded(root, name, revision, choice, may_download=may_download)

    return TextCorpus(
        [str(root / path) for path in chosen.train],
        val_fraction,
        name=re.sub(r"[^\w.-]+", "-", Path(name).expanduser().resolve().name),
        val_path=[str(root / path) for path in chosen.val] or None,
        field=field,
        on_error=on_error,
    )


def choose_files(dataset: str, paths: Iterable[str], choice: Choice) -> Chosen:
    """Choose the files of a subset's splits, of the paths of all Parquet files of a dataset.

    Raises UserError: a subset or split that is not there; it names those that are.
    """
    subsets: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(paths):
        if ".." not in PurePosixPath(path).parts:  # it would lead out of the folder
            subset, split = place_of(path)
            subsets[subset][split].append(path)
    if not subsets:
        raise UserError(
            f"data.dataset must be a dataset with Parquet files, got {dataset} without any"
        )

    subset, split, val_split = choice
    if subset is None:
        subset = next(iter(subsets)) if len(subsets) == 1 else DEFAULT
    if subset not in subsets:
        there = names_of([*subsets], NAMES_SHOWN)
        raise UserError(
            f"data.subset must be one of {there}, which {dataset} has, got {choice.subset}"
        )
    splits = subsets[subset]
    for key, wanted in (("data.split", split), ("data.val_split", val_split)):
        if wanted is not None and wanted not in splits:
            raise UserError(
                f"{key} must be one of {', '.join(splits)}, which {dataset} has, got {wanted}"
            )

    if val_split is None:
        val_split = next((name for name in HELD_OUT if name in splits and name != split), None)
    if val_split == split:
        raise UserError(f"data.val_split must be another split than data.split, got {split} twice")
    return Chosen(splits[split], [] if val_split is None else splits[val_split])


def place_of(path: str) -> tuple[str, str]:
    """Subset and split of a Parquet file, by the names of the file and of the folders that it lies in.

    A split is named by the file, as in data/train-00000-of-00004.parquet, or by its folder, as in
    default/train/0000.parquet; where neither is, it is train. The folders above, but for one called data, name the
    subset.
    """
    *folders, file = PurePosixPath(path).parts
    split = _split_named(NUMBERED.sub("", PurePosixPath(file).stem))
    if split is None and folders:
        split = _split_named(folders[-1])
        if split is not None:
            folders.pop()
    if folders and folders[0] == "data":
        folders.pop(0)
    return "/".join(folders) or DEFAULT, split or "train"


def _split_named(name: str) -> str | None:
    """The split that a name of a file or folder means; None if it is no name of a split."""
    name = name.removeprefix("partial-")
    if name in SPLIT_WORDS:
        return SPLIT_WORDS[name]
    first, _, _ = name.partition("-")
    return SPLIT_WORDS.get(first) if re.fullmatch(r"\w+-\d+", name) else None


def _downloaded(
    root: Path,
    dataset: str,
    revision: str | None,
    choice: Choice,
    *,
    may_download: bool,
) -> Chosen:
    """The chosen files of a dataset, downloaded into the folder root unless they are there.

    The list of the dataset's files, with their commit, is kept beside them, so that a later start asks nobody.
    """
    path_of_list = root / LIST
    known: dict[str, Any] = {}
    if path_of_list.is_file():
        known = json.loads(path_of_list.read_text(encoding="utf-8"))
        chosen = choose_files(dataset, known["files"], choice)
        if all((root / path).is_file() for path in (*chosen.train, *chosen.val)):
            return chosen
    if not may_download:
        raise only_stored(f"the dataset {dataset}")

    # Imported here, because it takes a third of a second.
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi()
    instead = "data.dataset may also be a local folder with its Parquet files"
    with downloading(f"the dataset {dataset}", instead):
        known = known or _list_files(api, dataset, revision)
        chosen = choose_files(dataset, known["files"], choice)
        for path in (*chosen.train, *chosen.val):
            api.hf_hub_download(
                dataset,
                path,
                repo_type="dataset",
                revision=known["commit"],
                local_dir=root,
            )

    with replacing(path_of_list) as file:
        file.write(json.dumps(known, indent=1).encode("utf-8"))
    return chosen


def _list_files(api: "HfApi", dataset: str, revision: str | None) -> dict[str, Any]:
    """Commit and Parquet files of a dataset, or of the branch that the hub made of its other files."""
    for branch in [None, CONVERTED] if revision is None else [revision]:
        info = api.dataset_info(dataset, revision=branch)
        names = [sibling.rfilename for sibling in info.siblings or []]
        files = sorted(name for name in names if name.endswith(".parquet"))
        if files:
            return {"commit": info.sha, "files": files}
    return {"commit": None, "files": []}
