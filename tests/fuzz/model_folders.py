"""Tiny Hugging Face model folders: every supported model type, with each kind of tokenizer and extra file."""

import json

import pytest

from gptmini import tokenizer
from gptmini.interop import write_folder
from gptmini.tokenizer import LibraryTokenizer
from interop.library_tokenizers import learned, of_sentence_piece
from sizes import GPT2, LLAMA, MODERN
from toys import documents_of, lines, wide_gpt

TEXT = "the cat sat on 12 mats: where are they?"
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
LLAMA_3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_context_length": 7,
}
PLAIN_LLAMA = LLAMA | {"attention_bias": None, "qk_norm": False}
# Arguments of GPTConfig by model type.
MODELS = {
    "gpt2": GPT2,
    "nanochat": MODERN,
    "llama": PLAIN_LLAMA | {"rotary_scaling": LLAMA_3},
    "mistral": PLAIN_LLAMA,
    "qwen2": LLAMA | {"qk_norm": False},
    "qwen3": LLAMA | {"attention_bias": None},
}


def coder_of(kind):
    """Return the tokenizer of a folder: gptmini's own, or a library tokenizer with a chat template."""
    if kind == "qwen3":
        return tokenizer.bpe(documents_of([lines(40)]), vocab_size=300)
    if kind == "gpt2":
        return tokenizer.byte([])
    if kind == "nanochat":
        return tokenizer.character(documents_of([TEXT, "two documents"]))

    made = of_sentence_piece() if kind == "mistral" else learned(TEXT, special=["<s>", "</s>"])
    return LibraryTokenizer(
        made.to_str(),
        n_vocab=made.get_vocab_size() + 3,
        end_of_text=1,
        more_ends=[0],
        chat={"chat_template": TEMPLATE, "bos_token": "<s>"},
    )


def write_model(path, kind):
    """Write the folder of a model type. qwen3 has its weights in several files, qwen2 has a list of chat templates."""
    coder = coder_of(kind)
    model = wide_gpt(MODELS[kind] | {"vocab_size": coder.n_vocab}).eval()
    with pytest.MonkeyPatch.context() as patch:
        if kind == "qwen3":
            patch.setattr("gptmini.interop.folder.LARGEST_FILE", "20KB")
        write_folder(path, model, coder, kind=kind, sampling={"top_k": 0})

    if kind == "qwen2":
        file = path / "tokenizer_config.json"
        config = json.loads(file.read_text())
        config["chat_template"] = [{"name": "default", "template": TEMPLATE}]
        config["bos_token"] = {"content": "<s>", "special": True}
        file.write_text(json.dumps(config))
