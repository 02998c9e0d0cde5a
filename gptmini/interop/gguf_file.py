"""Write a GGUF file for llama.cpp and for programs that use llama.cpp, such as Ollama and LM Studio.

The gguf library writes the file from the Hugging Face form of the model. llama.cpp's own converter identifies a
tokenizer by a hash of its ids for a fixed text. Therefore, the converter rejects every tokenizer that was learned from
a different corpus. This module writes the name of the pre-tokenizer instead. All byte-pair tokenizers of gptmini
use GPT-2's pre-tokenizer.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from gptmini.attention import frequencies, scale_frequencies
from gptmini.interop.architectures import ARCHITECTURES
from gptmini.interop.folder_settings import parse_source_settings, special_ids
from gptmini.interop.gguf_tokenizer import add_tokenizer
from gptmini.interop.hugging_face import to_hugging_face, transpose_conv1d
from gptmini.interop.llama import ROTATED_SUFFIXES
from gptmini.model import GPT, NORM_EPS
from gptmini.system.errors import UserError
from gptmini.system.files import flush_file, install_command, naming, temporary_beside
from gptmini.tokenizer import Tokenizer

if TYPE_CHECKING:
    import gguf

# Map each model type that llama.cpp supports to its name in llama.cpp.
KINDS = {
    "gpt2": "gpt2",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}
# The gguf library has two names for each dtype. The first name is for a tensor, and the second name is for a file.
DTYPES = {
    "fp32": ("F32", "ALL_F32"),
    "fp16": ("F16", "MOSTLY_F16"),
    "bf16": ("BF16", "MOSTLY_BF16"),
    "q8_0": ("Q8_0", "MOSTLY_Q8_0"),
}
# In q8_0, this many numbers share a scale. If the row length of a matrix is not a multiple, the matrix stays in fp16.
Q8_0_WIDTH = 32
LARGEST_FP16 = int(np.finfo(np.float16).max)


def write_gguf(
    path: Path,
    model: GPT,
    tokenizer: Tokenizer,
    *,
    name: str,
    dtype: str,
    published: Mapping[str, str] | None = None,
) -> str:
    """Write a GGUF file atomically, and return the model type. An existing file is replaced.

    Args:
        model: a GPT on the CPU. Its weights must be float32.
        tokenizer: a byte-pair tokenizer with a pre-tokenizer that llama.cpp supports.
        dtype: the dtype of the matrices. It must be a key of DTYPES. Vectors and positions stay in float32.
        published: the result of read_source_settings for the folder that the weights came from, if there is one.

    Raises UserError if llama.cpp does not support the model or the tokenizer, or if gguf is not installed.
    """
    try:
        import gguf
    except ImportError:
        raise UserError(
            f"a GGUF file requires the gguf library; run: {install_command('gguf')}"
        ) from None

    config, state = to_hugging_face(model)
    kind = config["model_type"]
    _check_kind(model, kind)

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(path)
    writer = gguf.GGUFWriter(temporary, KINDS[kind])
    try:
        writer.add_name(name)
        _add_sizes(writer, model, kind)
        ids = special_ids(tokenizer, parse_source_settings(published))
        add_tokenizer(writer, tokenizer, ids)
        tensors = _tensors_of(model, kind, state)
        _add_tensors(writer, tensors, dtype)

        with naming(path):
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            with temporary.open("rb+") as file:
                flush_file(file)

        temporary.replace(path)
    except OSError as error:
        if error.errno is not None:
            raise
        # NumPy reports how many numbers it has written, but not the error of the operating system.
        raise UserError(
            f"cannot write the weights to {path.parent}: {error.args[0]}; check the free disk space"
        ) from None
    finally:
        writer.close()
        temporary.unlink(missing_ok=True)
    return kind


def _check_kind(model: GPT, kind: str) -> None:
    if kind not in KINDS:
        raise UserError(
            f"cannot write model type {kind} as a GGUF file; train a Llama-style model, such as model=qwen_tiny"
        )
    if model.config.mlp == "gelu_exact":
        raise UserError("mlp must be gelu to export the model as a GGUF file, got mlp=gelu_exact")
    scaling = model.config.rotary_scaling
    if KINDS[kind] != "llama" and scaling is not None and len(scaling) > 1:
        raise UserError(
            f"rotary_scaling must be null or a factor to write {kind} as a GGUF file, got Llama 3's scaling"
        )


def _add_sizes(writer: "gguf.GGUFWriter", model: GPT, kind: str) -> None:
    import gguf

    config = model.config
    writer.add_context_length(config.longest_input)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.n_layers)
    writer.add_feed_forward_length(config.d_ff or 4 * config.d_model)
    writer.add_head_count(config.n_heads)
    writer.add_vocab_size(config.vocab_size)
    if kind == "gpt2":
        writer.add_layer_norm_eps(ARCHITECTURES[kind].their_values["layer_norm_epsilon"])
        return

    assert config.rotary_base is not None
    writer.add_head_count_kv(config.n_kv_heads or config.n_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps or NORM_EPS["rmsnorm"])
    writer.add_key_length(config.head_width)
    writer.add_value_length(config.head_width)
    writer.add_rope_dimension_count(config.head_width)
    writer.add_rope_freq_base(config.rotary_base)
    if config.rotary_scaling is not None and len(config.rotary_scaling) == 1:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rotary_scaling["factor"])


def _tensors_of(model: GPT, kind: str, state: dict[str, Tensor]) -> dict[str, np.ndarray]:
    import gguf

    name_of = gguf.MODEL_ARCH_NAMES
    architecture = next(arch for arch, name in name_of.items() if name == KINDS[kind])
    names = gguf.get_tensor_name_map(architecture, model.config.n_layers)

    tensors = {}
    for their_name, weight in state.items():
        name = names.get_name(their_name, try_suffixes=(".weight", ".bias"))
        assert name is not None, their_name
        if not bool(weight.isfinite().all()):
            raise UserError(f"every weight must be finite, but {their_name} is not")

        values = transpose_conv1d(their_name, weight).contiguous()
        if KINDS[kind] == "llama" and their_name.endswith(ROTATED_SUFFIXES):
            values = _with_adjacent_pairs(values, model.config.head_width)
        tensors[name] = values.numpy().astype(np.float32)
    # To scale positions as Llama 3 does, llama.cpp divides each rotary frequency by one of these numbers.
    scaling: Any = model.config.rotary_scaling
    if scaling is not None and len(scaling) > 1:
        plain = frequencies(model.config.head_width, model.config.rotary_base or 0.0)  # (D/2)
        divisors = plain / scale_frequencies(plain, **scaling)  # (D/2)
        tensors["rope_freqs.weight"] = divisors.numpy()
    return tensors


def _with_adjacent_pairs(weight: Tensor, d_head: int) -> Tensor:
    """Reorder the rows of a weight of queries or keys, (H D, ...), for the rotary positions of llama.cpp.

    llama.cpp rotates pairs of adjacent dimensions. In Hugging Face models, the two dimensions of a pair are D/2
    apart. The order differs only for the architecture 'llama' of llama.cpp. Source: llama.cpp, conversion/llama.py.
    """
    heads = weight.unflatten(0, (-1, 2, d_head // 2))  # (H, 2, D/2, ...)
    return heads.transpose(1, 2).flatten(0, 2).contiguous()  # (H D, ...)


def _add_tensors(writer: "gguf.GGUFWriter", tensors: dict[str, np.ndarray], dtype: str) -> None:
    import gguf

    tensor_type, file_type = DTYPES[dtype]
    writer.add_file_type(gguf.LlamaFileType[file_type])
    for name, values in tensors.items():
        kind = tensor_type
        if values.ndim == 1 or name.startswith("position_embd"):  # llama.cpp requires float32
            kind = "F32"
        elif kind == "Q8_0" and values.shape[1] % Q8_0_WIDTH:
            kind = "F16"
        chosen = gguf.GGMLQuantizationType[kind]
        if chosen.name == "F16" and np.abs(values).max() > LARGEST_FP16:
            raise UserError(
                f"every weight must be at most {LARGEST_FP16} in fp16, but {name} has a larger weight"
            )
        writer.add_tensor(name, gguf.quants.quantize(values, chosen), raw_dtype=chosen)
