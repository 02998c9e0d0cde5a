"""Load a model and its tokenizer from a run, a checkpoint or an exported folder.

The functions import modules that require torch only when they are called. OfModelSettings can therefore be checked
without torch.
"""

import hashlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic.dataclasses import dataclass

from gptmini.model.config import GPTConfig
from gptmini.runs import find_checkpoint, similar_run
from gptmini.settings import STRICT
from gptmini.system.errors import UserError
from gptmini.system.files import expand_home
from gptmini.tokenizer import Tokenizer, from_dict, prebuilt

if TYPE_CHECKING:
    from gptmini.evaluation.measurement import TrainedModel
    from gptmini.model.gpt import GPT


class TrainedSource(NamedTuple):
    """A trained model whose weights have not been read yet."""

    path: Path  # checkpoint file or exported folder
    config: GPTConfig
    tokenizer: Tokenizer


def load(path: str | Path) -> "tuple[GPT, Tokenizer]":
    """Load a model and its tokenizer from a run folder, a checkpoint file, or an exported folder.

    From a run folder, load the best checkpoint. The model is on the CPU and ready to sample. A folder of runs, such as
    runs/NAME, means its latest run with a checkpoint. An exported folder contains a Hugging Face model.
    Raises UserError if the path does not exist, or if a file is damaged or contains pickled code.
    """
    if is_exported(path):
        from gptmini.interop import read_folder

        return read_folder(Path(path))

    from gptmini.checkpoint.file import read_checkpoint

    checkpoint = find_checkpoint(path)
    return model_and_tokenizer(read_checkpoint(checkpoint), checkpoint)


def load_for_sampling(
    path: str | Path, *, device: str, dtype: str, compile: bool = False
) -> "tuple[GPT, Tokenizer]":
    """Load model and tokenizer like load, ready to draw tokens on a device.

    device is auto, cpu, cuda or mps. dtype is auto, fp32, bf16 or fp64. Compiled models cannot be packed.
    """
    from gptmini.generation import pack
    from gptmini.system.hardware import choose_device, choose_dtype

    chosen = choose_device(device)
    model, tokenizer = load(path)
    model.eval().to(device=chosen, dtype=choose_dtype(dtype, chosen, model.n_parameters))
    if chosen == "cpu" and not compile:
        pack(model)
    return model, tokenizer


def is_exported(path: str | Path) -> bool:
    """Return whether a path is the folder of a Hugging Face model."""
    return (Path(path) / "config.json").is_file()


def model_and_tokenizer(contents: dict, path: Path) -> "tuple[GPT, Tokenizer]":
    """Build the model and the tokenizer from the contents that read_checkpoint returned for a path."""
    from gptmini.checkpoint.file import build_model

    model = build_model(contents)
    tokenizer = from_dict(contents["gptmini"].get("tokenizer", {}))
    _check_same_ids(path, tokenizer, model.config)
    return model, tokenizer


def find_source(path: str | Path) -> TrainedSource:
    """Read the configuration and the tokenizer of a model, but not its weights. path is the same as for load."""
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


def trained_by(path: Path) -> str | None:
    """Return the class of the settings of the optimizer that trained the weights in gptmini, such as MuonSettings.

    path is a checkpoint or an exported folder. Return None for a model that another program trained.
    """
    from gptmini.checkpoint.file import read_header

    return None if is_exported(path) else read_header(path).get("optimizer")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Return the tokenizer of a model, of a prepared folder, or of a folder that has tokenizer.json, but no model.

    The weights of the model are not read. For a prepared folder, torch is not imported.
    """
    folder = Path(expand_home(str(path)))
    if (folder / "meta.json").is_file():
        from gptmini.data import read_meta

        return from_dict(read_meta(folder)["tokenizer"])
    if (folder / "tokenizer.json").is_file() and not is_exported(folder):
        from gptmini.interop.tokenizer_reading import read_tokenizer

        return read_tokenizer(folder)
    return find_source(folder).tokenizer


def of_model(documents: Iterable, *, path: str) -> Tokenizer:
    """Return the tokenizer of load_tokenizer. As a builder of tokenizers, it takes documents, but ignores them."""
    return load_tokenizer(path)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OfModelSettings:
    """Settings for an existing tokenizer."""

    needs_no_text: ClassVar = True  # the tokenizer does not depend on the text

    path: str  # the same as for load_tokenizer

    def builder(self) -> partial:
        """Return the function of_model with the path of the model as its argument."""
        return partial(of_model, path=self.path)


def builder_of(tokenizer: Tokenizer) -> partial:
    """Return a builder of this tokenizer. It does not depend on the path, so that prepare finds the same tokens."""
    state = repr(sorted(tokenizer.to_dict().items()))
    digest = hashlib.sha256(state.encode("utf-8")).hexdigest()
    return prebuilt(tokenizer, name=of_model.__name__, sha256=digest)


def _check_same_ids(path: Path, tokenizer: Tokenizer, config: GPTConfig) -> None:
    if tokenizer.n_vocab != config.vocab_size:
        raise UserError(
            f"{path}: the tokenizer must have as many ids as the model's vocab_size={config.vocab_size}, "
            f"got {tokenizer.n_vocab}"
        )


def initial_model(path: str) -> "tuple[GPT, dict[str, Any]]":
    """Load the trained model that a run starts from. Return the model and its origin.

    The argument path is a checkpoint or an exported folder. The weights of a checkpoint stay mapped from its file. Copy
    them before you change them. The checkpoints of the run store the origin. It contains the path, the step, the result
    of trained_by, and the settings of the Hugging Face folder that the weights come from, if there is one.
    """
    from gptmini.checkpoint.file import build_model, read_checkpoint
    from gptmini.interop.folder_settings import read_source_settings, stored_source_settings

    if is_exported(path):
        model, _ = load(path)
        step, published = None, read_source_settings(Path(path))
    else:
        contents = read_checkpoint(Path(path), mapped=True)
        model = build_model(contents)
        step = contents.get("global_step")
        published = stored_source_settings(contents["gptmini"])

    origin = {"path": path, "step": step, "optimizer": trained_by(Path(path))}
    return model, origin | {"published": published} if published else origin


def local_path(name: str) -> Path:
    """Return the path that the user gave. For a name on the hub, download the model and return its folder."""
    from gptmini.interop.hub_models import download_model, is_hub_name

    # Keep the name as a string. gpt2 is a name on the hub and ./gpt2 is a path, but Path would make both names equal.
    path = Path(expand_home(name))
    if path.exists() or not is_hub_name(name):
        return path
    try:
        return download_model(name)
    except UserError:
        run = None if "/" in name else similar_run(name)
        if run is None:
            raise
        raise UserError(f"cannot download {name}; did you mean {run}?") from None


def open_model(path: Path) -> "TrainedModel":
    """Load a model from a run, a checkpoint or an exported folder, and find the training tokens of the model."""
    from gptmini.checkpoint.file import read_checkpoint
    from gptmini.data import find_prepared
    from gptmini.evaluation.measurement import TrainedModel
    from gptmini.runs import named_run

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
