"""The tokens of a run: opened where they are, or prepared from the text.

A run folder may come from a stranger. So a resumed run reads tokens and texts wherever its folder says, but it writes
and downloads only where the command line or gptmini's own configuration says.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gptmini.commands.configuration import CONFIGS, key_typed, read_yaml
from gptmini.commands.parts import build_from
from gptmini.commands.plan import workers_of
from gptmini.user_error import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gptmini.data import TokenStore, Watcher
    from gptmini.model.training_state import TrainingState


def open_tokens(
    config: "DictConfig",
    state: "TrainingState | None",
    overrides: Sequence[str] = (),
    *,
    watcher: "Watcher | None" = None,
) -> "tuple[TokenStore, bool]":
    """Open the tokens of a run, and prepare them from the text if they are not there.

    Args:
        config: the configuration, with data, tokenizer and data_dir.
        state: the state that a resumed run goes on from; its tokens are opened if they are still there, unless another
            data_dir was typed.
        overrides: what was typed, KEY=VALUE each.
        watcher: is told of the progress, and of a text that is odd, as one that mixes line ends; None for nobody.

    Returns the tokens, and whether they were prepared by this call.
    Raises UserError: the text cannot be read; or the tokens of a resumed run are not there, and only the run folder
    says where to prepare them, or from which address to download their text.
    """
    from gptmini.data import TokenStore, Watcher, find_prepared, open_prepared, prepare
    from gptmini.tokenizer import from_dict

    watcher = watcher or Watcher()
    data_dir_is_typed = any(key_typed(line) == "data_dir" for line in overrides)
    if state is not None and not data_dir_is_typed:
        known = find_prepared(state.data_folder, state.path)
        if (known / "meta.json").is_file():
            return TokenStore(known), False

    is_resumed = config.resume is not None
    may_write = not is_resumed or data_dir_is_typed or config.data_dir == _own_data_dir()
    if not may_write or (is_resumed and not _downloads_as_gptmini_does(config)):
        _check_downloads_nothing(config)

    corpus = build_from(config.data)
    tokenizer = _tokenizer_builder(config, state)
    if may_write:
        # Token files and mixtures are prepared in their own ways.
        prepare_it = getattr(corpus, "prepare", partial(prepare, corpus))
        store, written = prepare_it(
            tokenizer,
            config.data_dir,
            rebuild=from_dict,
            n_workers=workers_of(config),
            watcher=watcher,
        )
        if written:
            for note in _notes(config, corpus, store):
                watcher.on_warning(note)
        return store, written

    store = open_prepared(corpus, tokenizer, config.data_dir)
    if store is None:
        raise UserError(
            f"the tokens of {config.resume} must be prepared again, and only the run folder says where; "
            f"if the place is yours, type data_dir={config.data_dir}"
        )
    return store, False


def _tokenizer_builder(config: "DictConfig", state: "TrainingState | None") -> partial:
    """The builder of a run's tokenizer. Once a run has a state, the model that its tokenizer is from may be gone."""
    from gptmini.loading import builder_of, of_model
    from gptmini.tokenizer import from_dict

    builder = build_from(config.tokenizer).builder()
    if builder.func is not of_model:
        return builder
    if state is not None:
        return builder_of(from_dict(state.tokenizer))
    return builder_of(builder([]))


def _notes(config: "DictConfig", corpus: object, store: "TokenStore") -> Iterator[str]:
    """What a user should know of a text that was just prepared."""
    from gptmini.tokenizer import from_dict

    yield from getattr(corpus, "notes", ())  # a corpus of the user's own may have none

    wanted = config.tokenizer.get("vocab_size")
    n_vocab = from_dict(store.tokenizer_state).n_vocab
    if wanted is not None and n_vocab < wanted:
        yield (
            f"the tokenizer has {n_vocab:,} ids, not the {wanted:,} of tokenizer.vocab_size: "
            "the text has no more pairs to merge"
        )


def _own_data_dir() -> str:
    """The folder of prepared tokens that gptmini's own configuration names."""
    return read_yaml(CONFIGS / "train.yaml")["data_dir"]


def _downloads_as_gptmini_does(config: "DictConfig") -> bool:
    """Whether gptmini's own configurations name the address and the folder of the text, given data_dir."""
    if config.data.get("dataset") is not None:
        return False
    wanted = (config.data.get("url"), config.data.get("folder"))
    for file in (CONFIGS / "data").glob("*.yaml"):
        own = read_yaml(file)
        folder = own.get("folder")
        if folder is not None:
            folder = folder.replace("${data_dir}", config.data_dir)
        if (own.get("url"), folder) == wanted:
            return True
    return False


def _check_downloads_nothing(config: "DictConfig") -> None:
    """Raise UserError where building the corpus of a resumed run would download its text."""
    from gptmini.data import download_file
    from gptmini.data.hub import Choice, has_files

    data = config.data
    is_of_hub = data.get("dataset") is not None
    if is_of_hub and not has_files(
        data.get("folder"),
        data.dataset,
        data.get("revision"),
        Choice(data.get("subset"), data.get("split"), data.get("val_split")),
    ):
        raise UserError(
            f"the text of {config.resume} must be downloaded again, from the hub's dataset {data.dataset}, which only "
            "the run folder names; if it is yours, run gptmini prepare with data=hub first"
        )
    is_downloaded = data.get("url") is not None and data.get("path") is None
    if not is_downloaded:
        return

    file = download_file(data.get("folder"), data.get("name"))
    if not file.is_file():
        raise UserError(
            f"the text of {config.resume} must be downloaded again, from data.url={data.url} into "
            f"data.folder={data.folder}, which only the run folder names; if they are yours, "
            f"put the text into {file}, or type data_dir={config.data_dir} for gptmini's own address"
        )
