"""GGUF files, read by the gguf library: weights, vocabulary, settings, and models that llama.cpp does not support."""

import jinja2
import numpy as np
import pytest

from full_disk import files_of_at_most
from gptmini import tokenizer
from gptmini.interop import write_gguf
from gptmini.interop.hugging_face import to_hugging_face
from gptmini.system.errors import UserError
from gptmini.tokenizer import chat_encoder_of
from sizes import GPT2, LLAMA, MODERN
from tokenizer.texts import TRAIN
from toys import documents_of, wide_gpt

gguf = pytest.importorskip("gguf")
SIZES = {"d_model": 64, "n_heads": 4, "n_kv_heads": 2, "d_ff": 96}
MODELS = {
    "qwen3": LLAMA | SIZES | {"d_head": None, "attention_bias": None},
    "gpt2": GPT2 | {"d_model": 64, "n_heads": 4},
    "gpt2 untied": GPT2 | {"d_model": 64, "n_heads": 4, "tie_embeddings": False, "bias": False},
}


def written(path, model="qwen3", coder=None, dtype="fp32"):
    """Write a GGUF file; return the model, its tokenizer, and the file as the library reads it."""
    coder = coder or tokenizer.bpe(documents_of(TRAIN), vocab_size=300)
    ours = wide_gpt(MODELS[model] | {"vocab_size": coder.n_vocab}).eval()
    write_gguf(path, ours, coder, name="mine", dtype=dtype)
    return ours, coder, gguf.GGUFReader(path)


def value(reader, key):
    """Return the value of a key of a file."""
    return reader.get_field(key).contents()


# Names of some weights in transformers and in llama.cpp's documentation of GGUF.
NAMES = {
    "qwen3": {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.1.self_attn.q_proj.weight": "blk.1.attn_q.weight",
        "model.layers.1.self_attn.k_norm.weight": "blk.1.attn_k_norm.weight",
        "model.layers.1.self_attn.o_proj.weight": "blk.1.attn_output.weight",
        "model.layers.1.mlp.gate_proj.weight": "blk.1.ffn_gate.weight",
        "model.layers.1.mlp.up_proj.weight": "blk.1.ffn_up.weight",
        "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
        "lm_head.weight": "output.weight",
    },
    "gpt2": {
        "transformer.wte.weight": "token_embd.weight",
        "transformer.wpe.weight": "position_embd.weight",
        "transformer.h.1.attn.c_attn.bias": "blk.1.attn_qkv.bias",
        "transformer.ln_f.weight": "output_norm.weight",
    },
    "gpt2 untied": {"lm_head.weight": "output.weight", "transformer.ln_f.bias": "output_norm.bias"},
}


@pytest.mark.parametrize("model", MODELS)
def test_weights_have_the_names_and_values_of_llama_cpp(tmp_path, model):
    ours, _, reader = written(tmp_path / "m.gguf", model)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    _, state = to_hugging_face(ours)
    for theirs, name in NAMES[model].items():
        assert np.array_equal(tensors[name].data, state[theirs].numpy())
    assert ("output.weight" in tensors) == (model != "gpt2")  # llama.cpp uses the embedding

    n_written = sum(int(np.prod(tensor.shape)) for tensor in reader.tensors)
    n_numbers = sum(weight.numel() for weight in state.values())
    assert n_written == n_numbers


def test_matrices_of_gpt2_are_those_of_transformers_transposed(tmp_path):
    ours, _, reader = written(tmp_path / "m.gguf", "gpt2")
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    # transformers' Conv1D stores (in, out), and llama.cpp multiplies by (out, in), as gptmini does.
    block = ours.blocks[1]
    for name, module in (
        ("attn_qkv", block.attention.qkv),
        ("attn_output", block.attention.output),
        ("ffn_up", block.mlp.input),
        ("ffn_down", block.mlp.output),
    ):
        assert np.array_equal(tensors[f"blk.1.{name}.weight"], module.weight.detach().numpy())


def test_heads_of_qwen_3_have_their_halves_exchanged(tmp_path):
    ours, _, reader = written(tmp_path / "m.gguf")
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    qkv = ours.blocks[0].attention.qkv.weight.detach().numpy()
    # Four query heads and two key heads of width 16, and then values, which are not reordered.
    queries, keys, values = qkv[:64], qkv[64:96], qkv[96:]
    for name, rows in (("attn_q", queries), ("attn_k", keys)):
        heads = [rows[first : first + 16] for first in range(0, len(rows), 16)]
        exchanged = np.concatenate([np.concatenate((head[8:], head[:8])) for head in heads])
        assert np.array_equal(tensors[f"blk.0.{name}.weight"], exchanged)
    assert np.array_equal(tensors["blk.0.attn_v.weight"], values)


def test_the_settings_are_those_of_the_model(tmp_path):
    ours, coder, reader = written(tmp_path / "m.gguf")
    config = ours.config
    expected = {
        "general.architecture": "qwen3",
        "general.name": "mine",
        "qwen3.context_length": config.context_length,
        "qwen3.embedding_length": 64,
        "qwen3.feed_forward_length": 96,
        "qwen3.block_count": config.n_layers,
        "qwen3.attention.head_count": 4,
        "qwen3.attention.head_count_kv": 2,
        "qwen3.rope.freq_base": config.rotary_base,
        "qwen3.rope.dimension_count": 16,
        "qwen3.attention.layer_norm_rms_epsilon": pytest.approx(1e-5),
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.eos_token_id": coder.end_of_text,
        "tokenizer.ggml.add_bos_token": False,
    }
    assert {key: value(reader, key) for key in expected} == expected
    tokens = value(reader, "tokenizer.ggml.tokens")
    assert (len(tokens), tokens[-1], tokens[ord("a")]) == (coder.n_vocab, "<|endoftext|>", "a")
    assert tokens[ord(" ")] == "\u0120"  # GPT-2's letter for a space
    assert value(reader, "tokenizer.ggml.token_type")[-1] == gguf.TokenType.CONTROL


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "q8_0"])
def test_matrices_are_rounded_and_vectors_are_not(tmp_path, dtype):
    ours, _, reader = written(tmp_path / "m.gguf", "gpt2", dtype=dtype)
    _, state = to_hugging_face(ours)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    exact = tensors["position_embd.weight"], tensors["blk.0.attn_norm.bias"]
    assert {tensor.tensor_type.name for tensor in exact} == {"F32"}

    embedding = tensors["token_embd.weight"]
    assert embedding.tensor_type.name == {"fp16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}[dtype]
    read = gguf.quants.dequantize(embedding.data, embedding.tensor_type)
    wanted = state["transformer.wte.weight"].numpy()
    largest = np.abs(wanted).max()
    assert 0 < np.abs(read - wanted).max() < largest / 100


def test_a_tokenizer_of_bytes_has_the_one_merge_that_llama_cpp_demands(tmp_path):
    _, _, reader = written(tmp_path / "m.gguf", coder=tokenizer.byte([]))
    (merge,) = value(reader, "tokenizer.ggml.merges")
    assert merge == "\u00c0 \u00c1"  # GPT-2's letters of two bytes that UTF-8 never contains


@pytest.mark.parametrize(
    ("changes", "coder", "said"),
    [
        (MODERN | SIZES, None, "model type nanochat .* model=qwen_tiny"),
        ({"smear": 2}, None, "smear must be 0 to export as qwen3, got smear=2"),
        (GPT2 | {"mlp": "gelu_exact"}, None, "mlp must be gelu .* GGUF file, got mlp=gelu_exact"),
        ({}, tokenizer.character(documents_of(TRAIN)), "got kind char; .* tokenizer=bpe"),
    ],
)
def test_what_llama_cpp_does_not_know_is_refused(tmp_path, changes, coder, said):
    coder = coder or tokenizer.byte([])
    base = changes if "norm" in changes else MODELS["qwen3"] | changes
    ours = wide_gpt(base | {"vocab_size": coder.n_vocab})
    with pytest.raises(UserError, match=said):
        write_gguf(tmp_path / "m.gguf", ours, coder, name="m", dtype="fp32")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    written(tmp_path / "m.gguf")
    before = (tmp_path / "m.gguf").read_bytes()

    said = rf"^.* {tmp_path}: .*; check the free disk space\Z"
    with files_of_at_most(20_000), pytest.raises(UserError, match=said):
        written(tmp_path / "m.gguf", "gpt2")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
    assert (tmp_path / "m.gguf").read_bytes() == before


def test_the_chat_template_needs_no_tags_of_transformers(tmp_path):
    coder = tokenizer.with_chat_template(tokenizer.bpe(documents_of(TRAIN), vocab_size=300))
    _, _, reader = written(tmp_path / "m.gguf", coder=coder)
    template = jinja2.Environment(trim_blocks=True).from_string(
        value(reader, "tokenizer.chat_template")
    )
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ids, _ = chat_encoder_of(coder).encode(chat)
    assert template.render(messages=chat, eos_token="<|endoftext|>") == coder.decode(ids)
