"""Every YAML file composes, and every key takes effect: changing it changes an output that it controls."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch

from gptmini.configuration.keys import known_keys
from gptmini.key_table import KEYS
from run_folders import last

CONFIGS = Path(__file__).parent.parent.parent / "configs"
MUON = "optimizer=muon"
WILD = "optimizer=adamw optimizer.lr=1e30 schedule.warmup_steps=0"
SHAKESPEARE = "data=shakespeare data.sha256=null data.path=my.txt"
RECORDS = "data.path=records.jsonl"
ADAMW = ("optimizer.lr", "optimizer.betas", "optimizer.eps", "optimizer.weight_decay")
BPE = "tokenizer=bpe tokenizer.vocab_size=270"

# For each key: another value, with other overrides that it requires; the observable that must change; and overrides of
# the run to compare with, unless it is the tiny run.
EFFECTS = {
    "name": ("other", "folder"),
    "epochs": ("0.1", "steps"),
    "seed": ("2", "weights"),
    "folder": ("mine", "folder"),
    "resume": ("nowhere", "error"),
    "num_workers": ("0", "error"),
    "console": ("quiet", "said"),
    "data_dir": ("elsewhere", "tokens"),
    "runs_dir": ("elsewhere", "folder"),
    "logger.csv.name": ("curves", "folders", "logger=csv"),
    "callbacks.scalars.every_steps": ("2", "scalar steps"),
    "callbacks.scalars.peak_tflops": ("1", "utilisation"),
    "callbacks.pictures.layers": ("[0]", "attention", "model.n_layers=2"),
    "callbacks.pictures.heads": ("[1]", "attention"),
    "callbacks.pictures.text": ("Line", "attention"),
    "callbacks.pictures.max_tokens": ("4", "attention"),
    "callbacks.samples.prompts": ("[Line]", "sample"),
    "callbacks.samples.max_new_tokens": ("3", "sample"),
    "callbacks.samples.temperature": ("0", "sample"),
    "callbacks.samples.top_k": ("1", "sample"),
    "callbacks.samples.top_p": ("0.01", "sample"),
    "callbacks.samples.seed": ("2", "sample"),
    "callbacks.checkpoints.every_steps": ("9", "files"),
    "freeze": ("[embedding]", "weights"),
    "data.path": ("other.txt", "tokens"),
    "data.val_path": ("other.txt", "held out"),
    "data.field": ("body", "tokens", RECORDS),
    "data.separator": ("says", "held out"),
    "data.encoding": ("cp500", "held out"),
    "data.quote": ("false", "tokens", "data.path=quoted.csv"),
    "data.on_error": ("fail", "error", "data.path=broken.jsonl data.on_error=skip"),
    "data.val_fraction": ("0.3", "held out"),
    "data.name": ("plays", "tokens", SHAKESPEARE),
    "data.url": ("http://127.0.0.1:9/other data.path=null", "error", SHAKESPEARE),
    "data.sha256": ("0" * 64, "error", SHAKESPEARE),
    "data.folder": ("kept data.path=null", "held out", SHAKESPEARE),
    "tokenizer.vocab_size": ("280", "vocabulary", BPE),
    "tokenizer.train_bytes": ("0", "error", BPE),
    "model.context_length": ("16", "losses"),
    "model.d_model": ("32", "shapes"),
    "model.n_layers": ("2", "shapes"),
    "model.n_heads": ("4", "losses"),
    "model.n_kv_heads": ("1", "shapes"),
    "model.d_head": ("6", "shapes"),
    "model.d_ff": ("24", "shapes"),
    "model.dropout": ("0.5", "losses"),
    "model.bias": ("true", "shapes"),
    "model.attention_bias": ("qkv", "shapes"),
    "model.norm": ("layernorm", "shapes"),
    "model.norm_gain": ("true", "shapes"),
    "model.norm_eps": ("0.5", "weights"),
    "model.position": ("learned model.rotary_base=null", "shapes"),
    "model.rotary_base": ("2", "weights"),
    "model.rotary_scaling": ("{factor:8.0}", "weights"),
    "model.mlp": ("gelu", "weights"),
    "model.qk_norm": ("false", "weights"),
    "model.attention_scale": ("3", "weights"),
    "model.embedding_norm": ("false", "losses"),
    "model.tie_embeddings": ("true", "shapes"),
    "model.logit_softcap": ("0.1", "losses"),
    "model.smear": ("2", "shapes"),
    "model.mlp_smear": ("2", "shapes"),
    "model.init": ("gpt2", "losses"),
    "optimizer.lr": ("0.1", "rates"),
    "optimizer.betas": ("[0.5,0.6]", "weights"),
    "optimizer.eps": ("0.1", "weights"),
    "optimizer.weight_decay": ("0.9", "weights"),
    "optimizer.embedding_decay": ("0.9", "weights", MUON),
    "optimizer.embedding_lr": ("0.1", "weights", MUON),
    "optimizer.unembedding_lr": ("0.1", "weights", MUON),
    "optimizer.scalar_lr": ("0.01", "weights", f"{MUON} model.smear=1"),
    "optimizer.momentum": ("[0.5,0.6]", "weights", MUON),
    "optimizer.momentum_warmup_steps": ("2", "weights", MUON),
    "optimizer.ns_steps": ("3", "weights", MUON),
    "optimizer.lr_scale.matrices": ("0.1", "rates"),
    "optimizer.lr_scale.embedding": ("0.1", "weights"),
    "optimizer.lr_scale.unembedding": ("0.1", "weights"),
    "optimizer.lr_scale.scalars": ("0.1", "weights", "model.smear=1"),
    "optimizer.cautious": ("false", "weights", f"{MUON} optimizer.weight_decay=0.9"),
    "schedule.warmup_steps": ("0", "rates"),
    "schedule.final_fraction": ("0.5", "rates"),
    "schedule.decay_fraction": ("0.1", "rates", "schedule.warmup_steps=0"),
    "trainer.max_steps": ("3", "scalar steps"),
    "trainer.ema_steps": ("2", "weights"),
    "trainer.max_time": ("1e-3", "steps"),
    "trainer.max_bad_steps": ("2", "error", WILD),
    "trainer.global_batch_size": ("8", "losses"),
    "trainer.batch_size": ("2", "micro-steps"),
    "trainer.gradient_clip": ("0.001", "weights"),
    "trainer.val_every_steps": ("1", "validation steps"),
    "trainer.val_tokens": ("8", "validation losses"),
    "trainer.device": ("cuda" if sys.platform == "darwin" else "mps", "error"),
    "trainer.devices": ("3", "error"),
    "trainer.num_nodes": ("2", "error"),
    "trainer.precision": ("bf16", "losses"),
    "trainer.compile": ("true", "machine"),
    "trainer.threads": ("2", "machine"),
}


def defined_keys():
    """Return the keys that hold no other keys."""
    return [key for key in known_keys() if not any(k.startswith(f"{key}.") for k in known_keys())]


def micro_steps(checkpoint):
    return checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["completed"]


def observe(script, overrides):
    """Every observable of a run, by name."""
    result = script("train", *overrides)
    if result.code:
        return {"error": result.err}
    if not result.out:
        return {"error": "", "said": ""}

    said = {line[:8].strip(): line[9:] for line in result.out.splitlines() if line[:1].strip()}
    folder = Path(said["run"])
    checkpoint = last(folder)
    weights = checkpoint["state_dict"]
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in weights.values()))
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").open()]

    def values(tag):
        return [line[tag] for line in logged if tag in line]

    def steps(tag):
        return [line["step"] for line in logged if tag in line]

    return {
        "error": "",
        "said": list(said),
        "steps": checkpoint["global_step"],
        "folder": str(folder.parent),
        "machine": said["machine"],
        "tokens": said["data"].partition(",")[0],
        "held out": next(line for line in result.out.splitlines() if "validation tokens" in line),
        "sample": values("samples"),
        "scalar steps": steps("train/loss"),
        "validation steps": steps("val/loss"),
        "losses": values("train/loss"),
        "validation losses": values("val/loss"),
        "utilisation": bool(values("work/mfu")),
        "attention": [path.read_bytes() for path in folder.glob("pictures/zoom_attention-*")],
        "rates": values("train/lr/matrices"),
        "folders": sorted(path.name for path in folder.iterdir() if path.is_dir()),
        "files": sorted(path.name for path in (folder / "checkpoints").iterdir()),
        "shapes": {name: tuple(tensor.shape) for name, tensor in weights.items()},
        "weights": digest.hexdigest(),
        "vocabulary": checkpoint["gptmini"]["config"]["vocab_size"],
        "micro-steps": micro_steps(checkpoint),
    }


@pytest.fixture
def world(script, tmp_path, monkeypatch):
    """A working folder with the files that changed keys name. Compiling is replaced by a no-op."""
    text = (tmp_path / "my.txt").read_text()
    (tmp_path / "other.txt").write_text(text.upper())
    records = [{"text": line, "body": line.upper()} for line in text.splitlines()]
    lines = "\n".join(map(json.dumps, records))
    (tmp_path / "records.jsonl").write_text(lines)
    rows = "".join(f'"{line}"\n' for line in text.splitlines())
    (tmp_path / "quoted.csv").write_text(f"text\n{rows}")
    (tmp_path / "broken.jsonl").write_text(f"{lines}\nno record")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "shakespeare.txt").write_text(text * 2)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    yield script
    torch.set_num_threads(1)


OBSERVED = {}


@pytest.fixture
def observe_once(world):
    """Every observable of a run with these overrides. Tests that compare with the same run share it."""

    def observe_or_recall(overrides):
        if overrides not in OBSERVED:
            OBSERVED[overrides] = observe(world, overrides)
        return OBSERVED[overrides]

    return observe_or_recall


# The same keys of options that the default run does not choose.
OTHER_OPTIONS = [
    *((key, "optimizer=adamw") for key in EFFECTS if key in ADAMW),
    *((key, "schedule=cosine") for key in ("schedule.warmup_steps", "schedule.final_fraction")),
    *((key, "schedule=linear") for key in ("schedule.warmup_steps", "schedule.final_fraction")),
]


@pytest.mark.parametrize(("key", "option"), [*((key, "") for key in EFFECTS), *OTHER_OPTIONS])
def test_changing_a_key_changes_what_it_is_for(world, observe_once, short, watched, key, option):
    value, observable, *context = EFFECTS[key]
    context.append(option)
    run = short
    if key.startswith("callbacks.pictures."):
        run = (*watched, "trainer.val_every_steps=4")  # draw them once
    # Every run writes its curves as JSON lines. TensorBoard's own files take longer.
    run = (*run, "logger=none", *" ".join(context).split())
    before = observe_once(run)
    after = observe(world, (*run, *f"{key}={value}".split()))

    assert before["error"] == ""
    assert after[observable] != before[observable]
    if observable == "error":
        # The message contains the refused value, or the key to change.
        assert value.split()[0] in after["error"] or key in after["error"]


TRIED_ELSEWHERE = {
    # In test_sweep.py and tests/sweep.
    "sweep.name",
    "sweep.sampler",
    "sweep.trials",
    "sweep.seed",
    "sweep.retries",
    "sweep.params",
    "logger.tensorboard",  # the default logger
    "callbacks.pruning.startup",
    "callbacks.pruning.warmup",
    # In test_ranks.py and tests/training.
    "trainer.strategy",
    "trainer.timeout",
    "trainer.checkpoint_activations",  # in tests/training/test_training.py
    "trainer.requeue",  # in resuming/test_stops.py
    "budget",  # in test_dial.py
    # In test_tuning.py.
    "init_from",
    "tokenizer.path",
    "callbacks.early_stopping.patience",
    "inspect",
    "verify",  # in test_preparing.py, like the keys for other people's data
    "data.sources",
    "data.dataset",
    "data.subset",
    "data.split",
    "data.val_split",
    "data.revision",
    # In tests/interop/test_chat.py.
    "data.template",
    "data.loss_on",
    # These packages are mocked in test_loggers.py.
    "logger.wandb.project",
    "logger.wandb.entity",
    "logger.wandb.offline",
    "logger.wandb.resume",
    "logger.mlflow.experiment_name",
    "logger.mlflow.tracking_uri",
}


def test_every_key_has_a_named_effect():
    tried = set(EFFECTS) | TRIED_ELSEWHERE
    assert sorted(set(defined_keys()) - tried) == []
    assert sorted(tried - set(defined_keys())) == []


def test_every_key_with_rights_exists():
    groups = {path.name for path in CONFIGS.iterdir() if path.is_dir()}
    assert set(KEYS) - set(known_keys()) - groups == set()


def test_observables_are_told_apart_by_an_unchanged_run(world, short):
    first = observe(world, (*short, "logger=none"))
    second = observe(world, (*short, "logger=none"))

    # So a difference in the tests above is due to the key.
    same = {name for name in first if first[name] == second[name]}
    assert same == set(first)
