"""Settings of an imported folder are the same in an export, as transformers reads them."""

import json
import os

import pytest
import torch
from tokenizers import processors

from gptmini import tokenizer
from gptmini.generation import TextStream
from gptmini.interop import read_folder, write_folder, write_gguf
from gptmini.interop.card import Training
from gptmini.interop.folder_settings import (
    read_source_settings,
    special_ids,
    stored_source_settings,
)
from gptmini.tokenizer import LibraryTokenizer
from gptmini.user_error import UserError
from interop.library_tokenizers import learned
from sizes import LLAMA, MODERN
from tokenizer.texts import TRAIN, WORDS
from toys import documents_of, wide_gpt

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

NOTHING_TRAINED = Training()
SAMPLING = {"do_sample": True, "temperature": 0.8, "top_k": 0}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 60,
}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
NAMES = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<pad>"}
# The class in transformers, the differences of its config from SIZES and IDS, and the settings of
# generation_config.json and tokenizer_config.json.
FORMS = {
    "llama": (
        "Llama",
        {"attention_dropout": 0.1, "initializer_range": 0.3, "tie_word_embeddings": True},
        IDS | {"eos_token_id": [2, 0], "do_sample": True, "temperature": 0.6, "top_p": 0.9},
        NAMES | {"model_max_length": 60, "padding_side": "left"},
    ),
    "llama without a pad token": (
        "Llama",
        {"pad_token_id": None},
        None,
        {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
    ),
    "mistral": ("Mistral", {"sliding_window": 70}, IDS, NAMES | {"unk_token": "<|endoftext|>"}),
    "qwen3": (
        "Qwen3",
        {"bos_token_id": 0, "pad_token_id": None, "head_dim": 10, "sliding_window": 9},
        {"bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 0, "repetition_penalty": 1.1},
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": TEMPLATE},
    ),
}


def made(form, folder):
    """Return a folder of one of FORMS, saved by transformers."""
    name, changes, generation, names = FORMS[form]
    coder = learned("the cat sat on 12 mats and the other 345 cats", special=SPECIAL)
    is_before_texts = "bos_token" in names
    if not is_before_texts:
        coder.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    transformers.PreTrainedTokenizerFast(tokenizer_object=coder, **names).save_pretrained(folder)

    torch.manual_seed(0)
    sizes = SIZES | IDS | {"vocab_size": coder.get_vocab_size() + 7} | changes
    model = getattr(transformers, f"{name}ForCausalLM")(
        getattr(transformers, f"{name}Config")(**sizes)
    )
    model.generation_config = transformers.GenerationConfig(**generation or {})
    model.save_pretrained(folder)
    if generation is None:
        (folder / "generation_config.json").unlink()
    return folder


def as_transformers_reads(folder):
    """Return everything that transformers reads from a folder's three settings files."""
    config = transformers.AutoConfig.from_pretrained(folder).to_dict()
    coder = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    found = {
        "config": {key: value for key, value in config.items() if key != "_name_or_path"},
        "generation": model.generation_config.to_dict(),
        "special": (coder.special_tokens_map, coder.all_special_ids),
        "coder": {key: repr(value) for key, value in coder.init_kwargs.items()},
        "ids": coder(["the <|im_end|> cats", "12"]).input_ids,
    }
    for name in ("name_or_path", "tokenizer_file"):
        found["coder"].pop(name, None)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_transformers_reads_the_same_of_an_imported_folder_and_of_its_export(form, tmp_path):
    source = made(form, tmp_path / "source")
    model, coder = read_folder(source)
    out = tmp_path / "out"
    published = read_source_settings(source)
    write_folder(out, model, coder, NOTHING_TRAINED, sampling=SAMPLING, published=published)
    assert as_transformers_reads(out) == as_transformers_reads(source)


def test_what_was_chosen_for_an_export_or_in_training_wins_over_what_was_published(tmp_path):
    source = made("llama", tmp_path / "source")
    settings = json.loads((source / "config.json").read_text())
    settings |= {"auto_map": {"AutoModelForCausalLM": "mine.py"}, "torch_dtype": "float32"}
    (source / "config.json").write_text(json.dumps(settings))
    model, coder = read_folder(source)
    object.__setattr__(model.config, "dropout", 0.3)
    options = {"sampling": SAMPLING, "published": read_source_settings(source), "dtype": "bf16"}

    write_folder(tmp_path / "out", model, coder, NOTHING_TRAINED, **options)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["attention_dropout"], config["dtype"]) == (0.3, "bfloat16")
    assert not {"auto_map", "torch_dtype"} & set(config)

    write_folder(tmp_path / "mistral", model, coder, NOTHING_TRAINED, kind="mistral", **options)
    config = json.loads((tmp_path / "mistral" / "config.json").read_text())
    assert config["model_type"] == "mistral"
    assert {name: config[name] for name in IDS} == IDS


def test_a_gguf_file_names_the_ids_that_were_published(tmp_path):
    gguf = pytest.importorskip("gguf")
    source = made("llama", tmp_path / "source")
    model, coder = read_folder(source)
    published = read_source_settings(source)
    write_gguf(tmp_path / "m.gguf", model, coder, name="m", dtype="fp32", published=published)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    found = {}
    for name in ("bos", "eos", "padding"):
        found[name] = reader.get_field(f"tokenizer.ggml.{name}_token_id").contents()
    assert found == {"bos": 1, "eos": 2, "padding": 3}


def test_a_gguf_file_passes_over_ids_that_it_cannot_hold(tmp_path):
    """A folder may have -1 for no id, or a list of ids."""
    gguf = pytest.importorskip("gguf")
    source = made("llama", tmp_path / "source")
    model, coder = read_folder(source)
    published = {"config.json": json.dumps({"bos_token_id": [0, 1], "pad_token_id": -1})}
    write_gguf(tmp_path / "m.gguf", model, coder, name="m", dtype="fp32", published=published)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert reader.get_field("tokenizer.ggml.bos_token_id").contents() == 0  # precedes a text
    assert reader.get_field("tokenizer.ggml.padding_token_id") is None


def test_the_tokens_that_a_chat_template_names_have_their_ids_in_a_config_of_an_older_run(tmp_path):
    """A checkpoint of an earlier version has only the template of a folder and its named tokens."""
    coder = learned("the cat sat on 12 mats", special=SPECIAL)
    coder.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    n_vocab = coder.get_vocab_size()
    named = LibraryTokenizer(
        coder.to_str(), n_vocab=n_vocab, end_of_text=2, chat=NAMES | {"chat_template": TEMPLATE}
    )
    gpt = wide_gpt(MODERN | {"vocab_size": n_vocab}).eval()
    write_folder(tmp_path / "out", gpt, named, NOTHING_TRAINED, sampling=SAMPLING)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert {name: getattr(config, name) for name in IDS} == IDS
    assert {name: getattr(again, name) for name in NAMES} == NAMES


@pytest.mark.parametrize("closing", ["<|im_end|>", "\n<|im_end|>\n", "<|im_end|><|endoftext|>"])
@pytest.mark.parametrize("is_published", [True, False])
def test_the_token_that_closes_an_answer_is_an_end_everywhere(tmp_path, closing, is_published):
    """As in a base model of Qwen 2.5, the original model never stops at this token."""
    gguf = pytest.importorskip("gguf")
    coder = learned("the cat sat on 12 mats", special=SPECIAL)
    base = LibraryTokenizer(coder.to_str(), n_vocab=coder.get_vocab_size(), end_of_text=0)
    assert base.more_ends == []
    tuned = base.with_template(TEMPLATE.replace("<|im_end|>", f"{{{{ {closing!r} }}}}"))
    again = tokenizer.from_dict(json.loads(json.dumps(tuned.to_dict())))
    assert again.to_dict() == tuned.to_dict()
    assert (again.end_of_text, again.more_ends, tuned.to_dict()["more_ends"]) == (0, [2], [])
    assert TextStream(again).add(2) == ("", "end_of_text")

    ids = {"eos_token_id": 0, "bos_token_id": 1}
    files = {"config.json": ids | {"model_type": "qwen3"}, "generation_config.json": ids}
    published = {name: json.dumps(values) for name, values in files.items()}
    options = {"published": published if is_published else None}
    gpt = wide_gpt(LLAMA | {"vocab_size": base.n_vocab, "attention_bias": None}).eval()
    write_folder(tmp_path / "out", gpt, again, NOTHING_TRAINED, sampling=SAMPLING, **options)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    generation = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert config.eos_token_id == generation.eos_token_id == [0, 2]

    write_gguf(tmp_path / "m.gguf", gpt, again, name="m", dtype="fp32", **options)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    for name, expected in (("eos", 0), ("eot", 2)):
        assert reader.get_field(f"tokenizer.ggml.{name}_token_id").contents() == expected


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% if %}", "{{ 1 }}"])
def test_a_template_that_closes_no_answer_adds_no_end(template):
    coder = learned("the cat sat on 12 mats", special=SPECIAL)
    plain = LibraryTokenizer(coder.to_str(), n_vocab=coder.get_vocab_size(), end_of_text=0)
    assert plain.with_template(template).more_ends == []


def test_a_published_id_of_no_token_is_replaced_and_one_that_is_absent_stays_absent():
    """transformers has default ids for each model type, which it uses for an absent id."""
    coder = learned("the cat sat on 12 mats", special=SPECIAL)
    n_vocab = coder.get_vocab_size()
    named = LibraryTokenizer(
        coder.to_str(), n_vocab=n_vocab, end_of_text=2, chat=NAMES | {"chat_template": TEMPLATE}
    )
    ids = {"bos_token_id": n_vocab, "eos_token_id": [2, 0]}
    published = {"config.json": ids | {"model_type": "llama"}}
    expected = {"bos_token_id": 1, "eos_token_id": [2, 0]}
    assert special_ids(named, published, "llama") == expected
    assert special_ids(named, published, "mistral") == expected | {"pad_token_id": 3}


def test_a_batch_of_prompts_is_continued_as_each_is_alone(tmp_path):
    coder = tokenizer.bpe(documents_of(TRAIN), vocab_size=300)
    gpt = wide_gpt(MODERN | {"vocab_size": coder.n_vocab, "context_length": 80}).eval()
    write_folder(tmp_path / "out", gpt, coder, NOTHING_TRAINED, sampling={})
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again.pad_token_id == coder.end_of_text
    assert again(["the t", WORDS[:40]], padding=True).attention_mask[0][0] == 0

    generate = transformers.pipeline("text-generation", str(tmp_path / "out"))
    prompts = ["the t", WORDS[:40]]
    options = {"max_new_tokens": 8, "do_sample": False}
    together = generate(prompts, batch_size=2, **options)
    assert together == [generate(prompt, **options) for prompt in prompts]


@pytest.mark.parametrize(
    "kept", [5, {"config.json": 3}, {"config.json": "[1]"}, {"config.json": "{"}]
)
def test_what_a_checkpoint_keeps_must_be_json_objects(kept):
    with pytest.raises(UserError, match=r"the field 'published' .* must"):
        stored_source_settings({"published": kept})
