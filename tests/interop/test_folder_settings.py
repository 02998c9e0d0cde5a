"""Settings of an imported folder are the same in an export, as transformers reads them."""

import json
import os

import pytest
import torch
from tokenizers import processors

from gptmini import tokenizer
from gptmini.generation import Request, Rules
from gptmini.generation.sample import Sample
from gptmini.interop import write_folder, write_gguf
from gptmini.interop.folder_settings import (
    parse_source_settings,
    read_source_settings,
    stored_source_settings,
)
from gptmini.loading import load
from gptmini.system.errors import UserError
from gptmini.tokenizer import LibraryTokenizer
from interop.library_tokenizers import learned
from sizes import LLAMA, MODERN
from tokenizer.texts import TRAIN, WORDS
from toys import documents_of, wide_gpt

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

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
        {"tie_word_embeddings": True},
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
    """Return what transformers reads from a folder of the ids, of the sampling settings and of the tokenizer."""
    config = transformers.AutoConfig.from_pretrained(folder).to_dict()
    coder = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    found = {
        "config": {key: config[key] for key in (*IDS, "model_type")},
        "generation": model.generation_config.to_dict(),
        "special": (coder.special_tokens_map, coder.all_special_ids),
        "coder": {key: repr(value) for key, value in coder.init_kwargs.items()},
        "ids": coder(["the <|im_end|> cats", "12"]).input_ids,
    }
    for part, name in (
        ("coder", "name_or_path"),
        ("coder", "tokenizer_file"),
        ("generation", "transformers_version"),
        ("generation", "use_cache"),
    ):
        found[part].pop(name, None)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_transformers_reads_the_same_of_an_imported_folder_and_of_its_export(form, tmp_path):
    source = made(form, tmp_path / "source")
    model, coder = load(source)
    out = tmp_path / "out"
    published = read_source_settings(source)
    write_folder(out, model, coder, sampling=SAMPLING, published=published)
    assert as_transformers_reads(out) == as_transformers_reads(source)


def test_another_model_type_has_the_same_ids_and_names_no_code(tmp_path):
    source = made("llama", tmp_path / "source")
    model, coder = load(source)
    settings = json.loads((source / "tokenizer_config.json").read_text())
    settings |= {"auto_map": {"AutoTokenizer": ["mine.py", None]}, "fast_tokenizer_files": ["a"]}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    options = {"sampling": SAMPLING, "published": read_source_settings(source), "dtype": "bf16"}

    write_folder(tmp_path / "mistral", model, coder, kind="mistral", **options)
    config = json.loads((tmp_path / "mistral" / "config.json").read_text())
    assert (config["model_type"], config["dtype"]) == ("mistral", "bfloat16")
    assert {name: config[name] for name in IDS} == IDS
    written = json.loads((tmp_path / "mistral" / "tokenizer_config.json").read_text())
    assert not {"auto_map", "fast_tokenizer_files"} & set(written)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (IDS, {"bos": 1, "eos": 2, "padding": 3}),
        # A folder may have a list of ids, -1 for no id, or the default id of a model type with more ids.
        ({"bos_token_id": [0, 1], "pad_token_id": -1}, {"bos": 0, "eos": 2, "padding": None}),
        ({"bos_token_id": 50256}, {"bos": 0, "eos": 2, "padding": None}),
    ],
)
def test_a_gguf_file_names_the_published_ids_that_it_can_hold(tmp_path, ids, expected):
    gguf = pytest.importorskip("gguf")
    coder = learned("the cat sat on 12 mats", special=SPECIAL)
    named = LibraryTokenizer(coder.to_str(), n_vocab=coder.get_vocab_size(), end_of_text=2)
    gpt = wide_gpt(LLAMA | {"vocab_size": named.n_vocab, "attention_bias": None}).eval()
    published = {"config.json": json.dumps(ids)}
    write_gguf(tmp_path / "m.gguf", gpt, named, name="m", dtype="fp32", published=published)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    fields = {name: reader.get_field(f"tokenizer.ggml.{name}_token_id") for name in expected}
    assert {name: field and field.contents() for name, field in fields.items()} == expected


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
    assert Sample(0, Request(rules=Rules()), again).add(2) == ("", "end_of_text")

    ids = {"eos_token_id": 0, "bos_token_id": 1}
    files = {"config.json": ids | {"model_type": "qwen3"}, "generation_config.json": ids}
    published = {name: json.dumps(values) for name, values in files.items()}
    options = {"published": published if is_published else None}
    gpt = wide_gpt(LLAMA | {"vocab_size": base.n_vocab, "attention_bias": None}).eval()
    write_folder(tmp_path / "out", gpt, again, sampling=SAMPLING, **options)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    generation = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert config.eos_token_id == generation.eos_token_id == [0, 2]

    write_gguf(tmp_path / "m.gguf", gpt, again, name="m", dtype="fp32", **options)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    for name, expected in (("eos", 0), ("eot", 2)):
        assert reader.get_field(f"tokenizer.ggml.{name}_token_id").contents() == expected


def test_a_batch_of_prompts_is_continued_as_each_is_alone(tmp_path):
    coder = tokenizer.bpe(documents_of(TRAIN), vocab_size=300)
    gpt = wide_gpt(MODERN | {"vocab_size": coder.n_vocab, "context_length": 80}).eval()
    write_folder(tmp_path / "out", gpt, coder, sampling={})
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
    with pytest.raises(UserError, match=r"^published[:.].* got "):
        parse_source_settings(stored_source_settings({"init_from": {"published": kept}}))
