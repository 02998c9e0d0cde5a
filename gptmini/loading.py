"""Load a model and its tokenizer from a run, a checkpoint or a Hugging Face folder.

The packages checkpoint and interop import torch when one of their names is used. OfModelSettings can therefore be
checked without torch.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic.dataclasses import dataclass

from gptmini import checkpoint, interop
from gptmini.model import GPTConfig
from gptmini.runs import find_checkpoint, similar_run
from gptmini.settings import STRICT
from gptmini.system.errors import UserError
from gptmini.system.files import expand_home
from gptmini.tokenizer import Tokenizer, from_dict, prebuilt

if TYPE_CHECKING:
    import torch

    from gptmini.model import GPT


class ModelSource(NamedTuple):
    """A trained model whose weights have not been read yet."""

    path: Path  # checkpoint file or Hugging Face folder
    config: GPTConfig
    tokenizer: Tokenizer
    model: "Callable[[], GPT]"  # reads the weights; returns the model on the CPU, in eval mode
    published: Mapping[str, str]  # settings files of the folder that the weights come from, by name
    # How gptmini trained the model. None for a model that another program trained.
    step: int | None = None
    optimizer: str | None = None  # class of the optimizer's settings, such as MuonSettings
    data_folder: Path | None = None  # prepared folder as the run named it; see find_prepared


def load(path: str | Path) -> "tuple[GPT, Tokenizer]":
    """Load a model and its tokenizer from a run folder, a checkpoint file, or a Hugging Face folder.

    From a run folder, load the best checkpoint. The model is on the CPU and ready to sample. A folder of runs, such as
    runs/NAME, means its latest run with a checkpoint.
    Raises UserError if the path does not exist, or if a file is damaged or contains pickled code.
    """
    source = source_of(path)
    return source.model(), source.tokenizer


def load_for_sampling(
    path: str | Path, *, device: str, dtype: str, compile: bool = False
) -> "tuple[GPT, Tokenizer]":
    """Load model and tokenizer like load, ready to draw tokens on a device.

    device is auto, cpu, cuda or mps. dtype is auto, fp32, bf16, int8 or fp64. Compiled models cannot be packed.
    """
    from gptmini.model import is_packed, pack
    from gptmini.system.hardware import check_compiler, choose_device, choose_dtype

    chosen = choose_device(device)
    if compile:
        if dtype == "int8":
            raise UserError("compiling does not support dtype=int8; use bf16")
        check_compiler(chosen)
    model, tokenizer = load(path)
    place(model, chosen, choose_dtype(dtype, chosen, model.n_parameters))
    if chosen == "cpu" and not compile and not is_packed(model):
        pack(model)
    return model, tokenizer


def place(model: "GPT", device: str, dtype: "torch.dtype | None") -> None:
    """Move a model to a device, and change the dtype of its weights, unless dtype is None."""
    from gptmini.model import pack

    is_int8 = dtype is not None and not dtype.is_floating_point
    model.to(device=device, dtype=None if is_int8 else dtype)
    if is_int8:
        pack(model, int8=True)


def source_of(path: str | Path) -> ModelSource:
    """Read everything about a model except its weights. path is the same as for load."""
    folder = Path(path)
    if not _is_hugging_face(folder):
        return checkpoint_source(path)  # Path("") would be the working folder

    config, tokenizer = interop.read_config_and_tokenizer(folder)
    return ModelSource(
        path=folder,
        config=config,
        tokenizer=tokenizer,
        model=partial(interop.read_model, folder),
        published=interop.read_source_settings(folder),
    )


def _is_hugging_face(folder: Path) -> bool:
    return (folder / "config.json").exists()


def checkpoint_source(path: str | Path) -> ModelSource:
    """Return the model of a run folder, of a folder of runs, or of a checkpoint file, but not of an exported folder."""
    path = find_checkpoint(path)
    try:
        return _unchecked_source(path)
    except UserError:
        # If the file is damaged, its checksums say so.
        checkpoint.read_checkpoint(path, mapped=True)
        raise


def _unchecked_source(path: Path) -> ModelSource:
    """Return the model of a checkpoint file. The checksums are verified when the weights are read."""
    contents = checkpoint.read_checkpoint(path, mapped=True, is_checked=True)
    header = contents["gptmini"]
    config = checkpoint.config_of(header)
    tokenizer = from_dict(header.get("tokenizer", {}))
    if tokenizer.n_vocab != config.vocab_size:
        raise UserError(
            f"{path}: the tokenizer must have as many ids as the model's vocab_size={config.vocab_size}, "
            f"got {tokenizer.n_vocab}"
        )
    data = header.get("data")
    folder = data.get("folder") if isinstance(data, dict) else None
    return ModelSource(
        path=path,
        config=config,
        tokenizer=tokenizer,
        model=partial(checkpoint.read_model, path),
        published=interop.stored_source_settings(header),
        step=contents.get("global_step"),
        optimizer=header.get("optimizer"),
        data_folder=Path(folder) if isinstance(folder, str) and folder else None,
    )


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Return the tokenizer of a model, of a prepared folder, or of a folder that has tokenizer.json, but no model.

    The weights of the model are not read. For a prepared folder, torch is not imported.
    """
    folder = Path(expand_home(str(path)))
    if (folder / "meta.json").is_file():
        from gptmini.data import read_meta

        return from_dict(read_meta(folder)["tokenizer"])
    if (folder / "tokenizer.json").is_file() and not _is_hugging_face(folder):
        return interop.read_tokenizer(folder)
    return source_of(folder).tokenizer


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


def initial_model(path: str) -> "tuple[GPT, dict[str, Any]]":
    """Load the trained model that a run starts from. Return the model and its origin.

    The argument path is a checkpoint or a Hugging Face folder. The checkpoints of the run store the origin.
    """
    source = source_of(path)
    origin: dict[str, Any] = {"path": path, "step": source.step, "optimizer": source.optimizer}
    if source.published:
        origin["published"] = source.published
    return source.model(), origin


def local_path(name: str) -> Path:
    """Return the path that the user gave. For a name on the hub, download the model and return its folder."""
    # Keep the name as a string. gpt2 is a name on the hub and ./gpt2 is a path, but Path would make both names equal.
    path = Path(expand_home(name))
    if path.exists() or not interop.is_hub_name(name):
        return path
    try:
        return interop.download_model(name)
    except UserError:
        run = None if "/" in name else similar_run(name)
        if run is None:
            raise
        raise UserError(f"cannot download {name}; did you mean {run}?") from None
