"""Datasets of the Hugging Face hub. Parquet files are downloaded once, or read from a local folder."""

import json
import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, validate_call

from gptmini.console.names import names_of
from gptmini.data.corpora.text_corpus import TextCorpus
from gptmini.data.corpus import HeldOut
from gptmini.data.reading.downloads import missing_text_error
from gptmini.data.reading.readers import FieldName, OnError
from gptmini.settings import STRICT
from gptmini.system.errors import UserError, downloading
from gptmini.system.files import replacing
from gptmini.system.untrusted import read_json

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# In this branch of a dataset, the hub stores Parquet files that it converted from other formats.
CONVERTED = "refs/convert/parquet"
# Without val_split, the first of these splits that exists is held out.
HELD_OUT = ("validation", "valid", "val", "dev", "test")
NAMES_SHOWN = 20  # number of names that an error shows
ADDRESS = "https://huggingface.co/datasets/"  # start of the address of a dataset on the hub
LIST = "gptmini-files.json"  # the list of all files of a dataset, next to the downloaded files
# The training files and the held-out files. Paths are relative to the root of the dataset.
SplitFiles = tuple[list[str], list[str]]


@validate_call(config=STRICT)
def hub_text(
    *,
    dataset: Annotated[str, Field(min_length=1)],
    subset: str | None,
    split: Annotated[str, Field(min_length=1)],
    val_split: str | None,
    revision: str | None,
    field: FieldName,
    folder: str,
    val_fraction: HeldOut,
    on_error: OnError,
    may_download: bool = True,
) -> TextCorpus:
    """Return the corpus of a dataset. Download the files of the dataset if they are missing.

    configs/data/hub.yaml describes the arguments. may_download is False if dataset and folder come from a stored run
    and not from the command line.

    Raises pydantic.ValidationError for an invalid value. Raises UserError if the dataset, subset or split does not
    exist, or if the files cannot or must not be downloaded.
    """
    name = dataset.removeprefix(ADDRESS)
    choose = partial(choose_files, name, subset=subset, split=split, val_split=val_split)
    root = Path(name).expanduser()
    if root.is_dir():
        train, val = choose([file.relative_to(root).as_posix() for file in root.rglob("*.parquet")])
    else:
        place = name if revision is None else f"{name}@{revision}"
        root = Path(folder).expanduser() / re.sub(r"[^\w.@-]+", "--", place)
        train, val = _downloaded(root, name, revision, choose, may_download=may_download)

    return TextCorpus(
        [str(root / path) for path in train],
        val_fraction,
        name=re.sub(r"[^\w.-]+", "-", Path(name).expanduser().resolve().name),
        val_path=[str(root / path) for path in val] or None,
        field=field,
        on_error=on_error,
    )


def choose_files(
    dataset: str, paths: Iterable[str], *, subset: str | None, split: str, val_split: str | None
) -> SplitFiles:
    """Choose the training files and the held-out files from the paths of all Parquet files of a dataset.

    The training split "train" may also be files that do not name a split, such as sample/10BT/000_00000.parquet.

    Raises UserError if the subset or split does not exist. The message lists the existing folders or files.
    """
    # A path with .. would leave the folder.
    all_files = sorted(path for path in paths if ".." not in PurePosixPath(path).parts)
    files = all_files
    if subset is not None:
        files = [path for path in files if path.startswith((f"{subset}/", f"data/{subset}/"))]

    by_split = {name: _files_of(files, name) for name in {*HELD_OUT, val_split or "test", split}}
    if split == "train" and not by_split[split]:
        held_out = {path for name in HELD_OUT for path in by_split[name]}
        by_split[split] = [path for path in files if path not in held_out]
    if val_split is None:
        val_split = next((name for name in HELD_OUT if by_split[name] and name != split), None)
    elif val_split == split:
        raise UserError(f"data.split and data.val_split must be different, got {split} and {split}")

    split_folder = re.compile(rf"/(partial-)?{re.escape(split)}$")
    parents = [PurePosixPath(path).parent.as_posix() for path in by_split[split]]
    folders = sorted({split_folder.sub("", parent) for parent in parents})
    if len(folders) > 1:
        raise UserError(
            f"data.subset must be one folder of {dataset} ({names_of(folders, NAMES_SHOWN)}), got {subset}"
        )
    for key, name in (("split", split), ("val_split", val_split)):
        if name is not None and not by_split[name]:
            raise UserError(
                f"data.{key}={name} with data.subset={subset} must name Parquet files of {dataset}, got "
                f"{names_of(all_files, NAMES_SHOWN) or 'none'}"
            )
    return by_split[split], by_split[val_split] if val_split else []


def _files_of(files: list[str], split: str) -> list[str]:
    """Return the files of a split, such as data/train-00000-of-00004.parquet or default/partial-train/0000.parquet."""
    starts = (split, f"*/{split}", f"*/partial-{split}")
    patterns = [f"{start}{end}" for start in starts for end in ("-*", ".*", "/*")]
    return [path for path in files if any(fnmatchcase(path, pattern) for pattern in patterns)]


def _downloaded(
    root: Path,
    dataset: str,
    revision: str | None,
    choose: Callable[[list[str]], SplitFiles],
    *,
    may_download: bool,
) -> SplitFiles:
    # The list and its commit are stored, so that later runs work offline and read the same files.
    path_of_list = root / LIST
    listing: dict[str, Any] = {}
    if path_of_list.is_file():
        listing = read_json(path_of_list)
        if not listing.keys() >= {"commit", "files"}:
            raise UserError(f"{path_of_list} must have the keys commit and files; delete the file")
        train, val = choose(listing["files"])
        if all((root / path).is_file() for path in (*train, *val)):
            return train, val
    if not may_download:
        raise missing_text_error(f"the dataset {dataset}")

    from huggingface_hub import HfApi  # takes a third of a second

    api = HfApi()
    instead = "data.dataset may also be a local folder with the Parquet files of the dataset"
    with downloading(f"the dataset {dataset}", instead):
        listing = listing or _list_files(api, dataset, revision)
        train, val = choose(listing["files"])
        for path in (*train, *val):
            api.hf_hub_download(
                dataset,
                path,
                repo_type="dataset",
                revision=listing["commit"],
                local_dir=root,
            )

    with replacing(path_of_list) as file:
        file.write(json.dumps(listing, indent=1).encode("utf-8"))
    return train, val


def _list_files(api: "HfApi", dataset: str, revision: str | None) -> dict[str, Any]:
    for branch in [None, CONVERTED] if revision is None else [revision]:
        info = api.dataset_info(dataset, revision=branch)
        names = [sibling.rfilename for sibling in info.siblings or []]
        files = [name for name in names if name.endswith(".parquet")]
        if files:
            return {"commit": info.sha, "files": files}
    return {"commit": None, "files": []}
