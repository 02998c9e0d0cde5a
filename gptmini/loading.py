"""Model and tokenizer from what a user names: a run, a checkpoint, or an exported folder.

What reads weights is imported by the functions that need it, so that OfModelSettings is checked without torch.
"""

import hashlib
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic.dataclasses import dataclass

from gptmini.model.config import GPTConfig
from gptmini.runs import find_checkpoint
from gptmini.settings import STRICT
from gptmini.tokenizer import Tokenizer, from_dict, ready
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from gptmini.evaluation.measured import TrainedModel
    from gptmini.model.gpt import GPT


class TrainedSource(NamedTuple):
    """A trained model whose weights are not read yet."""

    path: Path  # a checkpoint file, or an exported folder
    config: GPTConfig
    tokenizer: Tokenizer


def load(path: str | Path) -> "tuple[GPT, Tokenizer]":
    """Model and tokenizer of a run folder (its best checkpoint), of a checkpoint file, or of an exported folder.

    Model and tokenizer are ready to sample on the CPU. A folder of runs, as runs/NAME, means its newest run with a
    checkpoint. An exported folder is one of a Hugging Face model, as gptmini export writes it, or as the hub has it.
    Raises UserError: nothing there, not a checkpoint, damaged, or holding pickled code.
    """
    from gptmini.interop.not_read import check_is_read

    check_is_read(Path(path))
    if is_exported(path):
        from gptmini.interop import read_folder

        return read_folder(Path(path))

    from gptmini.checkpoint.file import read_checkpoint

    checkpoint = find_checkpoint(path)
    return model_and_tokenizer(read_checkpoint(checkpoint), checkpoint)


def is_exported(path: str | Path) -> bool:
    """Whether a path is a folder of a Hugging Face model."""
    return (Path(path) / "config.json").is_file()


def model_and_tokenizer(contents: dict, path: Path) -> "tuple[GPT, Tokenizer]":
    """The model and the tokenizer of a checkpoint that read_checkpoint has read from a path.

    Raises UserError: the weights do not fit the config, or the tokenizer does not fit the model.
    """
    from gptmini.checkpoint.file import build_model

    model = build_model(contents)
    tokenizer = from_dict(contents["gptmini"].get("tokenizer", {}))
    _check_same_ids(path, tokenizer, model.config)
    return model, tokenizer


def load_mapped(path: Path) -> "tuple[GPT, int | None]":
    """The model of a checkpoint or of an exported folder, to be copied, and its step; None where the step is not known.

    The weights of a checkpoint stay in its file. Raises UserError: as load.
    """
    if is_exported(path):
        model, _ = load(path)
        return model, None

    from gptmini.checkpoint.file import build_model, read_checkpoint

    contents = read_checkpoint(path, mapped=True)
    return build_model(contents), contents.get("global_step")


def published_of(path: Path) -> dict[str, str]:
    """The settings of the folder in which the weights of a checkpoint, or of this folder, were published; or empty."""
    from gptmini.interop.folder_settings import published_in, read_published

    if is_exported(path):
        return read_published(path)

    from gptmini.checkpoint.file import read_header

    return published_in(read_header(path))


def find_source(path: str | Path) -> TrainedSource:
    """Sizes and tokenizer of what load would load.

    Raises UserError: as load, but that damage to the weights is not noticed.
    """
    from gptmini.interop.not_read import check_is_read

    check_is_read(Path(path))
    if is_exported(path):
        from gptmini.interop.reading import read_sizes

        config, tokenizer = read_sizes(Path(path))
        return TrainedSource(Path(path), config, tokenizer)

    from gptmini.checkpoint.file import config_of, read_header

    checkpoint = find_checkpoint(path)
    header = read_header(checkpoint)
    config = config_of(header)
    tokenizer = from_dict(header.get("tokenizer", {}))
    _check_same_ids(checkpoint, tokenizer, config)
    return TrainedSource(checkpoint, config, tokenizer)


def of_model(documents: Iterable, *, path: str) -> Tokenizer:
    """The tokenizer of a trained model: a builder of tokenizers, which reads no documents.

    Args:
        documents: what other builders learn from.
        path: as for load.

    Raises UserError: as load.
    """
    return find_source(path).tokenizer


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OfModelSettings:
    """The tokenizer of a trained model, for a configuration."""

    needs_no_text: ClassVar = True  # the tokenizer is the same whatever the text

    path: str  # as for load

    def builder(self) -> partial:
        """Return of_model with the path."""
        return partial(of_model, path=self.path)


def builder_of(tokenizer: Tokenizer) -> partial:
    """A builder of this tokenizer, by which prepare knows the tokens that are made with it.

    The place where the model lies does not matter.
    """
    state = repr(sorted(tokenizer.to_dict().items()))
    digest = hashlib.sha256(state.encode("utf-8")).hexdigest()
    return ready(tokenizer, name=of_model.__name__, sha256=digest)


def _check_same_ids(path: Path, tokenizer: Tokenizer, config: GPTConfig) -> None:
    """Raise UserError unless a model has as many ids as its tokenizer."""
    if tokenizer.n_vocab != config.vocab_size:
        raise UserError(
            f"{path}: the tokenizer's {tokenizer.n_vocab} ids must equal the model's vocab_size={config.vocab_size}"
        )


def initial_model(path: str) -> "tuple[GPT, dict[str, Any]]":
    """The trained model that a run begins with, and what the run's checkpoints say of its origin.

    That is its path, its step, and the settings of the folder that its weights were published in, if they were.
    """
    model, step = load_mapped(Path(path))
    origin = {"path": path, "step": step}
    published = published_of(Path(path))
    return model, origin | {"published": published} if published else origin


def local_path(name: str) -> Path:
    """The path that a user names, or of a model of the hub, where it was downloaded to.

    Raises UserError: the hub cannot be reached, or has no such model.
    """
    from gptmini.interop.hub_models import download_model, is_hub_name

    # A name on the hub is no path, though it looks like one: Path would take ./gpt2 and gpt2 for the same.
    path = Path(os.path.expanduser(name))  # noqa: PTH111, because an unknown ~user is left as it is
    if path.exists() or not is_hub_name(name):
        return path
    return download_model(name)


def open_model(path: Path) -> "TrainedModel":
    """Load a model from a run, a checkpoint or an exported folder, and find the tokens that it was trained on."""
    from gptmini.checkpoint.file import read_checkpoint
    from gptmini.data import find_prepared
    from gptmini.evaluation.measured import TrainedModel
    from gptmini.runs import find_checkpoint, named_run

    if is_exported(path):
        model, tokenizer = load(path)
        return TrainedModel(path, path, model, tokenizer, None)

    run = named_run(path, saved=True)
    checkpoint = find_checkpoint(run)
    contents = read_checkpoint(checkpoint)
    model, tokenizer = model_and_tokenizer(contents, checkpoint)
    trained_on = contents["gptmini"].get("data")
    folder = trained_on.get("folder") if isinstance(trained_on, dict) else None
    data = None
    if isinstance(folder, str) and folder:
        data = find_prepared(Path(folder), checkpoint)
    return TrainedModel(run, checkpoint, model, tokenizer, data)
