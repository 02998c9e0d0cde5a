"""Exported folders: readable by transformers and gptmini, written atomically, and refused if they are hostile."""

import json
import os
import re
import shutil

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

from gptmini import tokenizer
from gptmini.data.reading.outputs import is_own_folder
from gptmini.interop import write_folder
from gptmini.loading import load, source_of
from gptmini.system.errors import UserError
from gptmini.tokenizer import LibraryTokenizer
from sizes import GPT2, MODERN
from tokenizer.texts import TRAIN, WORDS
from toys import documents_of, wide_gpt

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

SAMPLING = {"do_sample": True, "temperature": 0.8, "top_k": 0}
CODERS = {
    "byte": lambda: tokenizer.byte([]),
    "bpe": lambda: tokenizer.bpe(documents_of(TRAIN), vocab_size=300),
    "char": lambda: tokenizer.character(documents_of([*TRAIN, "b"])),
    "char without end": lambda: tokenizer.character(documents_of([WORDS])),
}
MODELS = {
    "gpt2": GPT2,
    "nanochat": MODERN,
    "gpt2 tied to nothing": GPT2 | {"tie_embeddings": False, "bias": False},
}


def written(folder, model="nanochat", coder="bpe"):
    """Write a model and a tokenizer into a folder, and return them."""
    encoder = CODERS[coder]()
    gpt = wide_gpt(MODELS[model] | {"vocab_size": encoder.n_vocab, "context_length": 80}).eval()
    write_folder(folder, gpt, encoder, sampling=SAMPLING)
    return gpt, encoder


def logits(model, tokens):
    """Return the logits of a model of gptmini or transformers."""
    with torch.no_grad():
        found = model(tokens)
    return getattr(found, "logits", found)


def some_tokens(encoder):
    """Return the first ids of a text, (1, 40)."""
    return torch.tensor([encoder.encode(WORDS)[:40]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "coder"),
    [(model, "bpe") for model in MODELS]
    + [("nanochat", coder) for coder in CODERS if coder != "bpe"],
)
def test_transformers_and_gptmini_read_what_was_written(tmp_path, model, coder):
    ours, encoder = written(tmp_path / "out", model, coder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    their_encoder = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    again, encoder_again = load(tmp_path / "out")

    assert encoder_again.to_dict() == encoder.to_dict()
    tokens = some_tokens(encoder)
    assert their_encoder(WORDS)["input_ids"][:40] == tokens[0].tolist()
    expected = logits(ours, tokens)
    torch.testing.assert_close(logits(theirs, tokens), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits(again, tokens), expected, atol=1e-5, rtol=1e-5)

    prompt = tokens[:, :5]
    options = {"do_sample": False, "max_new_tokens": 64, "eos_token_id": None, "pad_token_id": 0}
    drawn = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    for _ in range(64):
        prompt = torch.cat([prompt, logits(ours, prompt)[:, -1:].argmax(-1)], dim=1)
    assert drawn.tolist() == prompt.tolist()


@pytest.mark.slow
def test_what_transformers_saves_is_read(tmp_path):
    ours, encoder = written(tmp_path / "out", "gpt2")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    theirs.save_pretrained(tmp_path / "saved", max_shard_size="20KB")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "model.safetensors.index.json").is_file()

    read, reader = load(tmp_path / "saved")
    assert reader.to_dict() == encoder.to_dict()
    tokens = some_tokens(encoder)
    torch.testing.assert_close(logits(read, tokens), logits(ours, tokens), atol=1e-6, rtol=1e-6)


def test_the_card_and_the_configs_say_what_is_known(tmp_path):
    from huggingface_hub import ModelCard

    gpt, encoder = written(tmp_path / "out")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.library_name == "transformers"
    assert f"{gpt.n_parameters:,} param" in card.text
    assert is_own_folder(tmp_path / "out")

    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["NanoChatForCausalLM"]
    generation = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert (generation.temperature, generation.top_k, generation.do_sample) == (0.8, 0, True)
    assert generation.eos_token_id == config["eos_token_id"] == encoder.end_of_text


@pytest.mark.parametrize(("value", "dtype"), [(float("nan"), "fp32"), (1e6, "fp16")])
def test_weights_that_are_not_finite_are_refused(tmp_path, value, dtype):
    encoder = CODERS["byte"]()
    ours = wide_gpt(MODELS["gpt2"] | {"vocab_size": 257}).eval()
    with torch.no_grad():
        ours.norm.bias[3] = value
    with pytest.raises(UserError, match=r"every weight must be finite in \S+, but \S+ is not"):
        write_folder(tmp_path / "out", ours, encoder, sampling=SAMPLING, dtype=dtype)
    assert list(tmp_path.iterdir()) == []


# config.json of openai-community/gpt2 on the hub, without sizes. It has no n_inner, and keys that no model reads.
OF_THE_HUB = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "eos_token_id": 50256,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "summary_type": "cls_index",
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
}


def test_gpt2_is_read_as_the_hub_has_it(tmp_path):
    ours, encoder = written(tmp_path / "out", "gpt2")
    sizes = ("n_ctx", "n_embd", "n_head", "n_layer", "n_positions", "vocab_size")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    hub = OF_THE_HUB | {name: config[name] for name in sizes}
    (tmp_path / "out" / "config.json").write_text(json.dumps(hub))

    # Names are those of the bare model, and older files contain masks besides the weights.
    file = tmp_path / "out" / "model.safetensors"
    state = load_file(file)
    assert "wte.weight" in state
    for i in range(2):
        state[f"h.{i}.attn.bias"] = torch.ones(1, 1, 80, 80)
        state[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(state, file, metadata={"format": "pt"})

    tokens = some_tokens(encoder)
    read, _ = load(tmp_path / "out")
    torch.testing.assert_close(logits(read, tokens), logits(ours, tokens), atol=1e-6, rtol=1e-6)


def edit(name, **changes):
    """Return a function that changes values in a JSON file of a folder; ... removes a value."""

    def apply(folder):
        values = json.loads((folder / name).read_text())
        values.update(changes)
        kept = {key: value for key, value in values.items() if value is not ...}
        (folder / name).write_text(json.dumps(kept))

    return apply


def cut(name, n_bytes):
    """Return a function that truncates a file."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:n_bytes])


def replace_weights(**changes):
    """Return a function that replaces weights; names have two underscores for each dot, and ... removes a weight."""

    def apply(folder):
        state = load_file(folder / "model.safetensors")
        for name, value in changes.items():
            state[name.replace("__", ".")] = value
        kept = {name: value for name, value in state.items() if value is not ...}
        save_file(kept, folder / "model.safetensors")

    return apply


def to_index(index):
    """Return a function that replaces the weights by an index."""

    def apply(folder):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return apply


def to_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


CONFIG = "config.json"
TOKENIZER = "tokenizer_config.json"
OF_POST_PROCESSOR = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}
PANICKING = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}  # the library panics
REFUSED = [
    ("nanochat", edit(CONFIG, model_type="bert"), "model_type must be one of gpt2, llama"),
    ("nanochat", edit(CONFIG, vocab_size=2**31), "shapes .* match the config: .* si"),
    ("nanochat", edit(CONFIG, num_hidden_layers=9_999), "the config has 9999 layers"),
    ("nanochat", edit(CONFIG, quantization_config={"bits": 4}), "quantization_config must b"),
    ("nanochat", cut("model.safetensors", 3000), "safetensors file"),
    ("nanochat", replace_weights(lm_head__weight=...), "lm_head.weight; unexpected weights: none"),
    ("nanochat", replace_weights(other=torch.zeros(3)), "weights: none; unexpected weights: other"),
    ("gpt2", edit(CONFIG, scale_attn_weights=False), "scale_attn_weights must be True .*, g"),
    ("gpt2", replace_weights(lm_head__weight=torch.ones(300, 24)), "unexpected weights: lm_head.w"),
    ("gpt2", to_pickle, r"must have model\.safetensors.* \(\.bin\)"),
    ("gpt2", to_index({"weight_map": {"a": "../b"}}), r"index\.json: weight_map\.a: .*'\.\./b'"),
    ("gpt2", to_index({"weight_map": {"a": "\ud800"}}), r"index\.json lists '\\ud800'; download"),
    ("gpt2", edit(CONFIG, eos_token_id=[-5, 3]), r"config\.json: eos_token_id\.0: .*got -5"),
    ("gpt2", edit(CONFIG, n_embd=6 * 2**29, vocab_size=2**32), "shapes .* match the config: "),
    ("gpt2", edit(TOKENIZER, chat_template=5), r"_config\.json: chat_template: .* 5"),
    ("gpt2", edit("tokenizer.json", normalizer=PANICKING), r"tokenizer\.json \(Precompiled"),
    ("gpt2", edit("tokenizer.json", post_processor=OF_POST_PROCESSOR), "cannot encode text"),
    # The library would end the process.
    ("gpt2", edit("tokenizer.json", model={"continuing_subword_prefix": "x"}), "model.continuing"),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The folder of each of two models."""
    path = tmp_path_factory.mktemp("sound")
    for model in ("nanochat", "gpt2"):
        written(path / model, model)
    return path


@pytest.mark.parametrize(("model", "damage", "said"), REFUSED, ids=range(len(REFUSED)))
def test_a_folder_that_gpt_does_not_compute_is_refused_in_one_line(
    tmp_path, sound, model, damage, said
):
    shutil.copytree(sound / model, tmp_path / "out")
    damage(tmp_path / "out")
    with pytest.raises(UserError, match=said) as caught:
        source_of(tmp_path / "out").model()
    assert re.fullmatch(r".+", str(caught.value))


SIDE_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
    "model-00001-of-00002.safetensors",
    "model.safetensors.index.json",
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with all possible files of a GPT-2; a model needs only some of them."""
    path = tmp_path_factory.mktemp("whole") / "out"
    written(path, "gpt2")
    (path / "chat_template.jinja").write_text("{{ messages }}")
    part = SIDE_FILES[-2]
    (path / part).write_bytes((path / "model.safetensors").read_bytes())
    names = load_file(path / part)
    index = {"weight_map": dict.fromkeys(names, part)}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


@pytest.mark.parametrize("name", SIDE_FILES)
def test_a_file_of_a_folder_may_be_a_link_to_a_file_but_no_device(tmp_path, whole, name):
    # In the cache of the hub, every file is a link to a blob.
    for file in whole.iterdir():
        (tmp_path / file.name).symlink_to(file)
    if name in SIDE_FILES[-2:]:
        (tmp_path / "model.safetensors").unlink()  # is read in preference to the file
    source_of(tmp_path).model()

    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(os.devnull)
    with pytest.raises(UserError, match=rf"^{tmp_path / name} is not a regular file$"):
        source_of(tmp_path).model()


BY_WORDS = {
    "type": "Split",
    "pattern": {"Regex": r"\s+|\S+"},
    "behavior": "Isolated",
    "invert": False,
}


@pytest.mark.parametrize(
    "change", [{"normalizer": {"type": "Lowercase"}}, {"pre_tokenizer": BY_WORDS}]
)
def test_a_tokenizer_that_gives_other_ids_is_run_by_the_library(tmp_path, change):
    written(tmp_path / "out")
    edit("tokenizer.json", **change)(tmp_path / "out")
    _, coder = load(tmp_path / "out")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert isinstance(coder, LibraryTokenizer)
    text = "The cat's 12 hats"
    assert coder.encode(text) == theirs.encode(text, add_special_tokens=False).ids
