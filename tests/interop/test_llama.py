"""Llama, Mistral, Qwen 2 and Qwen 3 of transformers at odd tiny sizes compute the same in both directions."""

import json
import os
from dataclasses import asdict

import pytest
import torch
from tokenizers import pre_tokenizers

import gptmini
from gptmini.generation import generate_stream
from gptmini.interop import write_folder, write_gguf
from gptmini.interop.hugging_face import to_hugging_face
from gptmini.model import GPTConfig
from gptmini.model.adapting import adapt
from gptmini.system.errors import UserError
from gptmini.tokenizer import LibraryTokenizer, from_dict
from interop.library_tokenizers import learned
from sizes import V
from toys import from_hugging_face

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

CONTEXT = 300
SIZES = {
    "vocab_size": V,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}
# The name in transformers, the differences from SIZES, and the model type of the export.
MODELS = {
    "llama with wide heads": ("Llama", {"head_dim": 8}, "llama"),
    "llama 3": ("Llama", {"rope_parameters": LLAMA_3, "tie_word_embeddings": True}, "llama"),
    "llama, lengthened": ("Llama", {"rope_parameters": LINEAR, "attention_bias": True}, "llama"),
    "llama with biases": (
        "Llama",
        {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": None},
        "llama",
    ),
    "mistral": ("Mistral", {"sliding_window": None}, "llama"),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}, "qwen2"),
    "qwen3": ("Qwen3", {"head_dim": 10}, "qwen3"),
    "qwen3 with biases": ("Qwen3", {"head_dim": 10, "attention_bias": True}, "qwen3"),
}


def made(model):
    """Return a random model of transformers; its gains are not 1 and its biases are not 0."""
    name, changes, _ = MODELS[model]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES | changes)
    theirs = getattr(transformers, f"{name}ForCausalLM")(config)
    for parameter in theirs.parameters():
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            torch.nn.init.normal_(parameter, std=0.2)
    return theirs.eval()


@pytest.mark.parametrize("model", MODELS)
def test_logits_equal_those_of_transformers_both_ways(model):
    theirs = made(model)
    given = theirs.config.to_dict()
    if model == "llama with biases":
        del given["num_key_value_heads"]  # Llama 1 does not have this key
    ours = from_hugging_face(given, theirs.state_dict()).eval()
    tokens = torch.randint(V, (2, CONTEXT))
    expected = theirs(tokens).logits
    got = ours(tokens)
    largest = expected.abs().max()
    assert (got - expected).abs().max() < 1e-5 * largest

    config, state = to_hugging_face(ours)
    assert config["model_type"] == MODELS[model][2]
    again = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config)
    )
    again.load_state_dict(state, strict=not config["tie_word_embeddings"])
    with torch.no_grad():
        back = again.eval()(tokens).logits
    assert (back - expected).abs().max() < 1e-5 * largest


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("mistral", {"sliding_window": 128}, "sliding_window must be null .*, got 128"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window must be False .*qwen2"),
        ("qwen3", {"layer_types": ["sliding_attention"]}, "layer_types must be only full_attent"),
        ("llama 3", {"hidden_act": "gelu"}, "hidden_act must be silu to import .* llama"),
        ("llama 3", {"rope_parameters": LLAMA_3 | {"factor": 0}}, r"rotary_scaling\.factor: .* 0"),
        ("llama 3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1 .*, got 0.5"),
        ("llama 3", {"rope_scaling": {"rope_type": "yarn"}}, "rope_type must be one of default, "),
    ],
)
def test_what_gpt_does_not_compute_is_refused_by_its_key(model, changes, said):
    theirs = made(model)
    with pytest.raises(UserError, match=said):
        from_hugging_face(theirs.config.to_dict() | changes, theirs.state_dict())


def test_the_spelling_of_transformers_4_is_read():
    theirs = made("llama 3")
    config = theirs.config.to_dict()
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = rope
    ours = from_hugging_face(config, theirs.state_dict()).eval()

    tokens = torch.randint(V, (1, CONTEXT))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)


@pytest.fixture
def folder(tmp_path):
    """A folder of a Llama saved by transformers with a tokenizer.json, and the model."""
    name, changes, _ = MODELS["llama 3"]
    # Each digit is a piece, as in SmolLM2's tokenizer.
    coder = learned(
        "the cat sat on 12 mats and the other 345 cats",
        special=["<s>", "</s>"],
        steps=[pre_tokenizers.Digits(individual_digits=True)],
    )
    n_vocab = coder.get_vocab_size()
    torch.manual_seed(0)
    sizes = SIZES | changes | {"vocab_size": n_vocab + 5, "initializer_range": 0.2}
    config = getattr(transformers, f"{name}Config")(**sizes, eos_token_id=[1, 0], bos_token_id=0)
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    coder.save(str(tmp_path / "theirs" / "tokenizer.json"))
    return tmp_path / "theirs", theirs, coder


@pytest.mark.slow
def test_a_folder_is_read_and_written_with_its_tokenizer_to_the_letter(folder, tmp_path):
    path, theirs, coder = folder
    model, tokenizer = gptmini.load(path)
    assert isinstance(tokenizer, LibraryTokenizer)
    assert (tokenizer.end_of_text, list(tokenizer.prefix_ids)) == (1, [0])

    write_folder(tmp_path / "out", model, tokenizer, sampling={})
    written = (tmp_path / "out" / "tokenizer.json").read_bytes()
    assert written == (path / "tokenizer.json").read_bytes()

    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    prompt = coder.encode("the 12 cats").ids
    options = {"max_new_tokens": 64, "do_sample": False, "eos_token_id": 1}
    expected = theirs.generate(torch.tensor([prompt]), **options)
    assert torch.equal(back.generate(torch.tensor([prompt]), **options), expected)
    assert (back.config.bos_token_id, back.config.eos_token_id) == (0, [1, 0])
    coder_again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert coder_again("the 12 cats").input_ids == prompt

    (got,) = gptmini.generate(
        model, tokenizer, "the 12 cats", max_new_tokens=64, temperature=0, ignore_end_of_text=True
    )
    continuation = expected[0, len(prompt) :].tolist()
    assert got == tokenizer.decode(continuation)


def test_an_export_names_the_positions_of_the_weights_and_not_the_context_of_training(
    folder, tmp_path
):
    path, theirs, _ = folder
    model, tokenizer = gptmini.load(path)
    lengths = {"context_length": 7, "full_context_length": CONTEXT}
    tuned = adapt(model, GPTConfig(**asdict(model.config) | lengths)).eval()
    write_folder(tmp_path / "out", tuned, tokenizer, sampling={})

    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert back.config.max_position_embeddings == CONTEXT
    assert back.config.rope_parameters == theirs.config.rope_parameters
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == CONTEXT
    tokens = torch.randint(tokenizer.n_vocab, (1, CONTEXT))
    with torch.no_grad():
        expected = theirs(tokens).logits
        torch.testing.assert_close(back(tokens).logits, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(tuned(tokens), expected, atol=1e-4, rtol=1e-4)

    gguf = pytest.importorskip("gguf")
    write_gguf(tmp_path / "m.gguf", tuned, tokenizer, name="mine", dtype="fp32")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert reader.get_field("llama.context_length").contents() == CONTEXT


def test_a_sample_ends_at_each_id_that_ends_an_answer(folder, tmp_path):
    path, theirs, coder = folder
    prompt = torch.tensor([coder.encode("the 12 cats").ids])
    drawn = theirs.generate(prompt, max_new_tokens=9, do_sample=False, eos_token_id=1)
    end = int(drawn[0, -2])

    theirs.generation_config.eos_token_id = [1, end]
    theirs.generation_config.save_pretrained(path)
    model, tokenizer = gptmini.load(path)
    expected = theirs.generate(prompt, max_new_tokens=64, do_sample=False)
    *answer, last = expected[0, prompt.size(1) :].tolist()
    assert last == end
    pieces = [*generate_stream(model, tokenizer, "the 12 cats", max_new_tokens=64, temperature=0)]
    assert [piece.token for piece in pieces] == [*answer, last]
    assert pieces[-1].finish == "end_of_text"
    assert "".join(piece.text for piece in pieces) == tokenizer.decode(answer)

    # An id above the vocabulary is ignored.
    theirs.generation_config.eos_token_id = [1, end, 10**6]
    theirs.generation_config.save_pretrained(path)
    assert list(gptmini.load(path)[1].more_ends) == [0, end]

    # A checkpoint and an exported folder contain the ids.
    again = from_dict(tokenizer.to_dict())
    write_folder(tmp_path / "out", model, again, sampling={})
    exported = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert exported.eos_token_id == [1, 0, end]


def test_a_gguf_file_names_the_rule_and_pairs_neighbours(folder, tmp_path):
    gguf = pytest.importorskip("gguf")
    path, theirs, _ = folder
    model, tokenizer = gptmini.load(path)
    write_gguf(tmp_path / "m.gguf", model, tokenizer, name="mine", dtype="fp32")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert reader.get_field("tokenizer.ggml.pre").contents() == "smollm"
    assert reader.get_field("llama.attention.layer_norm_rms_epsilon").contents() == pytest.approx(
        1e-5
    )
    tensors = {tensor.name: torch.tensor(tensor.data.copy()) for tensor in reader.tensors}
    assert "output.weight" not in tensors  # tied

    # llama.cpp's converter permutes rows in the same way: conversion/llama.py.
    rows = theirs.get_parameter("model.layers.1.self_attn.k_proj.weight").detach()  # (G D, C)
    expected = rows.reshape(2, 2, 2, 24).swapaxes(1, 2).reshape(8, 24)
    torch.testing.assert_close(tensors["blk.1.attn_k.weight"], expected, atol=0, rtol=0)

    # llama.cpp divides the plain frequencies to get those of transformers.
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](theirs.config, "cpu")
    plain = 500.0 ** -(torch.arange(0, 4, 2) / 4)
    torch.testing.assert_close(plain / tensors["rope_freqs.weight"], scaled)


LETTERS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


@pytest.mark.parametrize("steps", [[{"type": "Whitespace"}, LETTERS], [LETTERS]])
def test_a_tokenizer_that_llama_cpp_has_no_rule_for_is_refused(folder, tmp_path, steps):
    pytest.importorskip("gguf")
    path, _, _ = folder
    tree = json.loads((path / "tokenizer.json").read_text())
    tree["pre_tokenizer"]["pretokenizers"] = steps
    (path / "tokenizer.json").write_text(json.dumps(tree))
    model, tokenizer = gptmini.load(path)
    with pytest.raises(UserError, match=r"llama\.cpp .*; export a folder instead"):
        write_gguf(tmp_path / "m.gguf", model, tokenizer, name="mine", dtype="fp32")
