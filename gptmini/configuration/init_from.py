"""Implement init_from: which settings a run takes from the model of its initial weights, and which it may change."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from omegaconf import OmegaConf

from gptmini.configuration.building import build_component, build_settings, target_class
from gptmini.configuration.compose import compose
from gptmini.configuration.keys import is_chosen_by_experiment, is_requested
from gptmini.configuration.request import UserRequest, key_of
from gptmini.console.progress import Watcher
from gptmini.data import TokenStore
from gptmini.key_table import keys_with
from gptmini.loading import ModelSource, local_path, source_of
from gptmini.model import NORM_EPS
from gptmini.runs import named_run, relative_to_cwd
from gptmini.system.errors import UserError
from gptmini.tokenizer import identity_of
from gptmini.training import Component, Settings


def with_source(plain: Mapping[str, Any], request: UserRequest) -> dict[str, Any]:
    """Return a configuration with the sizes, the tokenizer and the path of the model that init_from names.

    If takes_finetune returns True, it also has the optimizer and the warm-up of experiment=finetune. Overrides keep
    their values. Raises UserError if the model does not exist, or if its weights do not allow a requested setting.
    """
    source = _source_of(plain["init_from"])
    tokenizer = Component("tokenizer", plain["tokenizer"])
    if is_requested("tokenizer", request) and not _makes_tokenizer_of(source, tokenizer):
        raise UserError(
            f"the tokenizer must be that of init_from={source.path}; leave out tokenizer=, or add "
            f"tokenizer=of_model tokenizer.path={source.path}"
        )
    path = str(source.path)
    config = OmegaConf.create(dict(plain))
    sizes = _sizes(plain["model"], request, source)
    config.model = {"_target_": "gptmini.model.ModelSettings", **sizes}
    config.tokenizer = {"_target_": "gptmini.loading.OfModelSettings", "path": path}
    config.init_from = path
    if takes_finetune(source.optimizer, request):
        groups = ("optimizer.", "schedule")
        overrides = [line for line in request.overrides if key_of(line).startswith(groups)]
        finetune = compose("train", ["experiment=finetune", *overrides], request.config_dir).config
        config.optimizer = finetune.optimizer
        if not is_chosen_by_experiment("schedule", request):
            config.schedule = finetune.schedule
        OmegaConf.resolve(config)
    tuned: Any = OmegaConf.to_container(config)
    return tuned


def takes_finetune(optimizer: str | None, request: UserRequest) -> bool:
    """Whether a run takes optimizer, rate and warm-up of experiment=finetune. Muon's rates destroy weights of others.

    The argument optimizer is the optimizer of a ModelSource. A key such as optimizer.lr does not choose an optimizer.
    """
    keys = {key_of(line) for line in request.overrides}
    if optimizer == "MuonSettings" or not keys.isdisjoint({"optimizer", "optimizer._target_"}):
        return False
    return not is_chosen_by_experiment("optimizer", request)


def fit_context(
    settings: Settings, request: UserRequest, store: TokenStore, watcher: Watcher
) -> Settings:
    """Return the settings of a new run with the longest context of its initial weights that the text allows.

    A requested context stays.
    """
    root, model = settings.root, settings.model
    is_fixed = root.resume is not None or is_requested("model.context_length", request)
    longest = store.longest_context
    if root.init_from is None or is_fixed or not 0 < longest < model.context_length:
        return settings

    watcher.on_note(
        f"model.context_length={longest} instead of {model.context_length} as in init_from={root.init_from}, because "
        "the text is short"
    )
    # Rotary models keep their full context for sampling.
    full = model.longest_input if model.position == "rotary" else None
    changes = {"model.context_length": longest, "model.full_context_length": full}
    return build_settings(settings.plain, changes)


def _source_of(name: str) -> ModelSource:
    if not name:
        raise UserError("init_from must be a run, a folder or the name of a model, got ''")
    source = source_of(named_run(local_path(name), saved=True))
    # Resolve the link runs/latest now, because it points to this run as soon as this run starts.
    return source._replace(path=relative_to_cwd(source.path.resolve()))


def _makes_tokenizer_of(source: ModelSource, component: Component) -> bool:
    if not getattr(target_class(component), "needs_no_text", False):
        return False
    tokenizer = build_component(component).builder()([])
    return identity_of(tokenizer.to_dict()) == identity_of(source.tokenizer.to_dict())


def _sizes(
    requested: Mapping[str, Any], request: UserRequest, source: ModelSource
) -> dict[str, Any]:
    sizes = asdict(source.config)
    del sizes["vocab_size"]
    as_in = f"as in init_from={source.path}"

    # If one of these settings is null, the model uses this value.
    model = source.config
    usual: dict[str, Any] = {
        "n_kv_heads": model.n_heads,
        "d_head": model.d_model // model.n_heads,
        "d_ff": 4 * model.d_model,
        "attention_bias": model.bias,
        "norm_eps": NORM_EPS[model.norm],
        "full_context_length": model.full_context_length,
    }

    def meant(name: str, value: object) -> object:
        return usual.get(name) if value is None else value

    adaptable = keys_with("adaptable")
    for name, given in sizes.items():
        if not is_requested(f"model.{name}", request):
            continue

        wanted = requested.get(name)
        if f"model.{name}" in adaptable:
            sizes[name] = wanted
        elif meant(name, wanted) != meant(name, given):
            may_change = " and ".join(sorted(adaptable))
            raise UserError(
                f"model.{name} must be {given} {as_in}, got {wanted}; only {may_change} may change"
            )

    asked = sizes["context_length"]
    longest = model.longest_input
    if isinstance(asked, int) and asked > longest:
        raise UserError(f"model.context_length must be at most {longest} {as_in}, got {asked}")
    # If a rotary model is trained on shorter input, it keeps all its positions. Learned positions are cut off.
    if model.position == "rotary":
        sizes["full_context_length"] = None if asked == longest else longest
    return sizes
