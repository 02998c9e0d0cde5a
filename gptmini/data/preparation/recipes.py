"""What prepared tokens follow from: the recipe, by whose fingerprint a prepared folder is known."""

import json
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gptmini.data.corpus import Corpus
from gptmini.data.encoder import BuildEncoder
from gptmini.data.format import FORMAT, digest_of_json
from gptmini.data.preparation.digests import Digests
from gptmini.user_error import UserError

OTHERS_READ = 20  # prepared folders that are compared with a recipe, at most
DIFFERENCES_SHOWN = 3
# What is typed for a part of a recipe that has another name there.
KEYS = {"files": "data.path", "val_files": "data.val_path"}


class Recipe(NamedTuple):
    """What prepared tokens follow from, and where they belong."""

    contents: dict  # format, source, builder and fingerprint, as meta.json holds them
    folder: Path
    digests: Digests  # of the files of the text

    @property
    def fingerprint(self) -> str:
        """Digest of format, source and builder."""
        return self.contents["fingerprint"]


def plan_recipe(corpus: Corpus, build_encoder: BuildEncoder, root: str | Path) -> Recipe:
    """Find out what the tokens of a corpus under a tokenizer follow from.

    Raises UserError: root or the corpus's name cannot be part of a path, or a file of the text cannot be read.
    """
    # No system has a name with a zero byte, and Python's own error for it is a bare ValueError.
    if "\0" in str(root):
        raise UserError(f"data_dir must be the name of a folder, got {str(root)!r}")
    # The name begins that of a folder, also for a corpus of the user's own.
    if Path(corpus.name).name != corpus.name:
        raise UserError(f"the name of a corpus must be a plain file name, got {corpus.name!r}")

    digests = Digests(Path(root) / ".digests.json")
    if hasattr(corpus, "digest_of"):
        corpus.digest_of = digests.digest_of  # pyrefly: ignore[missing-attribute]
    builder = build_encoder
    if not isinstance(builder, partial):
        builder = partial(build_encoder)
    kind = builder.func.__name__
    source = corpus.identity()
    if not isinstance(source, dict) or not isinstance(source.get("corpus"), str):
        raise UserError(
            f"identity() of a corpus must be a dict with its name under corpus, got {source!r}"
        )
    contents: dict = {
        "format": FORMAT,
        "source": source,
        "builder": {"name": kind, **builder.keywords},
    }
    contents["fingerprint"] = digest_of_json(contents)
    folder = Path(root) / f"{corpus.name}-{kind}-{contents['fingerprint'][:12]}"
    return Recipe(contents, folder, digests)


def difference_from_others(recipe: Recipe) -> str | None:
    """What tells a recipe from the most similar folder of the same names of text and tokenizer; None without one."""
    names = _names(recipe.contents)
    others = sorted(
        recipe.folder.parent.glob("*/meta.json"),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    nearest: tuple[list[str], Path] | None = None
    for path in others[:OTHERS_READ]:
        try:
            other = json.loads(path.read_text(encoding="utf-8"))
            if _names(other) != names:
                continue
            differences = _differences(recipe.contents, other)
            if not _is_of_same_text(recipe.contents, other):
                continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # of another format, or damaged: it cannot be compared
        if nearest is None or len(differences) < len(nearest[0]):
            nearest = (differences, path.parent)

    if nearest is None or not nearest[0]:
        return None
    differences, folder = nearest
    more = ", ..." if len(differences) > DIFFERENCES_SHOWN else ""
    shown = ", ".join(differences[:DIFFERENCES_SHOWN])
    return f"preparing anew, because {folder} differs in {shown}{more}"


def _is_of_same_text(new: dict, old: dict) -> bool:
    """Whether two recipes are of the same files, prepared in different ways."""
    keys = [key for key in ("files", "val_files", "sha256") if key in new["source"]]
    return bool(keys) and all(new["source"][key] == old["source"].get(key) for key in keys)


def _names(contents: dict) -> tuple[str, str]:
    """The names of the text and of the tokenizer's builder in a recipe."""
    return contents["source"].get("corpus", ""), contents["builder"]["name"]


def _differences(new: dict, old: dict) -> list[str]:
    """The keys of two recipes that differ, with short values."""
    differences = []
    if new["format"] != old["format"]:
        differences.append(f"format ({old['format']}, now {new['format']})")
    for part, title in (("source", "data"), ("builder", "tokenizer")):
        for key in sorted(new[part].keys() | old[part].keys()):
            before = old[part].get(key)
            now = new[part].get(key)
            if before == now:
                continue
            name = KEYS.get(key, f"{title}.{key}")
            if isinstance(before, list | dict) or isinstance(now, list | dict) or key == "sha256":
                differences.append(name)
            else:
                differences.append(f"{name} ({before!r}, now {now!r})")
    return differences
