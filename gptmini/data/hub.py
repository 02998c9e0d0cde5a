"""Datasets of the Hugging Face hub. Their Parquet files are downloaded once, or read from a local folder.

A local folder must have the same layout as a dataset on the hub.
"""

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
from gptmini.data.published import missing_text_error
from gptmini.data.readers import FieldName, OnError
from gptmini.data.text_corpus import TextCorpus
from gptmini.files import replacing
from gptmini.hub_errors import downloading
from gptmini.settings import STRICT
from gptmini.untrusted import read_json
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# In this branch of a dataset, the hub stores Parquet files that it converted from other formats.
CONVERTED = "refs/convert/parquet"
# These words in the names of files and folders stand for a split. The Python library `datasets` uses the same words.
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
# Without val_split, the first of these splits that exists is held out.
HELD_OUT = ("validation", "test")
DEFAULT = "default"  # the subset of files that are not in the folder of a subset
# Matches the end of a name such as train-00000-of-00004-0123456789abcdef.
NUMBERED = re.compile(r"-\d{5}-of-\d{5}.*$")
NAMES_SHOWN = 20  # number of subset names that an error shows
ADDRESS = "https://huggingface.co/datasets/"  # start of the address of a dataset on the hub
# This file is in the folder of the downloaded files. It contains the list of all files of the dataset.
LIST = "gptmini-files.json"


class Choice(NamedTuple):
    """The subset and the splits of a dataset that the user chose. hub_text describes the meaning of None."""

    subset: str | None
    split: str
    val_split: str | None


class Chosen(NamedTuple):
    """The chosen files of a dataset. The paths are relative to the root of the dataset."""

    train: list[str]
    val: list[str]  # empty if no split is held out


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
    """Return the corpus of a dataset. Download the files of the dataset if they are missing.

    Args:
        dataset: name on the hub, such as roneneldan/TinyStories, or a local folder with the same layout.
        subset: name of the subset. With None, the only subset is used, or the subset "default" if there are several
            subsets.
        split: name of the split to train on.
        val_split: name of the split to hold out. With None, the split "validation" or "test" is held out if the subset
            has a split with this name.
        revision: branch, tag or commit on the hub. With None, the latest commit at the time of the download is used.
        field: name of the column with the text. The name a.b means the field b of the record in the column a.
        folder: folder for the downloaded files.
        val_fraction: fraction of the text to hold out if no split is held out.
        on_error: "fail", or "skip" to skip rows without text.
        may_download: False if dataset and folder come from a stored run and not from the command line.

    Raises pydantic.ValidationError for an invalid value. Raises UserError if the dataset, subset or split does not
    exist, or if the files cannot or must not be downloaded.
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
    """Choose the files of the wanted splits from the paths of all Parquet files of a dataset.

    Raises UserError if the subset or split does not exist. The message lists the existing names.
    """
    subsets: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(paths):
        if ".." not in PurePosixPath(path).parts:  # .. would leave the folder
            subset, split = place_of(path)
            subsets[subset][split].append(path)
    if not subsets:
        raise UserError(f"data.dataset must contain Parquet files, got {dataset}")

    subset, split, val_split = choice
    if subset is None:
        subset = next(iter(subsets)) if len(subsets) == 1 else DEFAULT
    if subset not in subsets:
        known = names_of([*subsets], NAMES_SHOWN)
        raise UserError(f"data.subset of {dataset} must be one of {known}, got {choice.subset}")
    splits = subsets[subset]
    for key, wanted in (("data.split", split), ("data.val_split", val_split)):
        if wanted is not None and wanted not in splits:
            raise UserError(f"{key} of {dataset} must be one of {', '.join(splits)}, got {wanted}")

    if val_split is None:
        val_split = next((name for name in HELD_OUT if name in splits and name != split), None)
    if val_split == split:
        raise UserError(f"data.split and data.val_split must be different, got {split} and {split}")
    return Chosen(splits[split], [] if val_split is None else splits[val_split])


def place_of(path: str) -> tuple[str, str]:
    """Return the subset and the split of a Parquet file by its path in the dataset.

    The file name may contain the split, as in data/train-00000-of-00004.parquet. Otherwise the name of the folder may
    contain the split, as in default/train/0000.parquet. If these names do not contain a split, the split is "train".
    The names of the other folders form the name of the subset. A folder "data" at the start of the path is ignored.
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
    """Return the split that the name of a file or folder stands for.

    Return None if the name does not stand for a split.
    """
    name = name.removeprefix("partial-")  # a prefix on the branch of converted files
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
    """Choose files of a dataset. Download these files into root unless all of them exist.

    The list of all files of the dataset and the commit are stored next to the files, so that later runs work offline.
    """
    path_of_list = root / LIST
    known: dict[str, Any] = {}
    if path_of_list.is_file():
        known = read_json(path_of_list)
        if not known.keys() >= {"commit", "files"}:
            raise UserError(f"{path_of_list} must have the keys commit and files; delete the file")
        chosen = choose_files(dataset, known["files"], choice)
        if all((root / path).is_file() for path in (*chosen.train, *chosen.val)):
            return chosen
    if not may_download:
        raise missing_text_error(f"the dataset {dataset}")

    # Imported here, because this import takes a third of a second.
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi()
    instead = "data.dataset may also be a local folder with the Parquet files of the dataset"
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
    """Return the commit and the Parquet files of a dataset.

    If the dataset has no Parquet files and revision is None, use the branch of converted files.
    """
    for branch in [None, CONVERTED] if revision is None else [revision]:
        info = api.dataset_info(dataset, revision=branch)
        names = [sibling.rfilename for sibling in info.siblings or []]
        files = sorted(name for name in names if name.endswith(".parquet"))
        if files:
            return {"commit": info.sha, "files": files}
    return {"commit": None, "files": []}
