"""A GGUF file, which llama.cpp and what builds on it reads: Ollama, LM Studio and others.

The file is written by the library gguf from a Hugging Face form of the model. llama.cpp's own converter knows a
tokenizer by a hash of the ids that it gives to a fixed text, and so refuses every tokenizer that was learned from
another text. The file names GPT-2's rule for pieces instead, which all byte pairs of gptmini have.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from gptmini.attention.rotary import frequencies, lowered
from gptmini.files import flush_file, naming, temporary_beside
from gptmini.interop.architectures import ARCHITECTURES, is_conv1d
from gptmini.interop.folder_settings import parsed, special_ids
from gptmini.interop.gguf_tokenizer import add_tokenizer
from gptmini.interop.hugging_face import to_hugging_face
from gptmini.interop.llama import TURNED
from gptmini.model.gpt import GPT
from gptmini.model.layers import RMS_NORM_EPS
from gptmini.tokenizer import Tokenizer
from gptmini.user_error import UserError

if TYPE_CHECKING:
    import gguf

# The model types that llama.cpp knows, and its names of them.
KINDS = {
    "gpt2": "gpt2",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}
# The name of each dtype in the library gguf, of a tensor and of a file.
DTYPES = {
    "fp32": ("F32", "ALL_F32"),
    "fp16": ("F16", "MOSTLY_F16"),
    "bf16": ("BF16", "MOSTLY_BF16"),
    "q8_0": ("Q8_0", "MOSTLY_Q8_0"),
}
Q8_0_WIDTH = 32  # numbers that share a scale; rows whose length is no multiple of it stay in fp16
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
    """Write a GGUF file whole or not at all.

    Args:
        path: the file; one that is there is replaced.
        model: on the CPU, its weights in float32.
        tokenizer: of byte pairs whose rule llama.cpp knows.
        dtype: of its matrices, a key of DTYPES; vectors and positions stay in float32.
        published: settings of the folder that its weights come from, as read_published gives them; None for none.

    Returns the model type.
    Raises UserError: llama.cpp does not know the model or the tokenizer, or the library gguf is not installed.
    """
    try:
        import gguf
    except ImportError:
        raise UserError(
            "a GGUF file needs the library gguf; install it with pip install 'gptmini[gguf]'"
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
        add_tokenizer(writer, tokenizer, special_ids(tokenizer, parsed(published or {}), kind))
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
        # numpy says how many numbers could be written, and not what the system said.
        raise UserError(f"{path.parent} must have room for the weights ({error.args[0]})") from None
    finally:
        writer.close()
        temporary.unlink(missing_ok=True)
    return kind


def _check_kind(model: GPT, kind: str) -> None:
    """Raise UserError unless llama.cpp computes a model of this type."""
    if kind not in KINDS:
        raise UserError(
            f"a GGUF file of model type {kind} is not supported; train a model of Llama's form, such as "
            "model=qwen_tiny, llama_tiny or llama"
        )
    if model.config.mlp == "gelu_exact":
        raise UserError("mlp must be gelu to export as a GGUF file, got mlp=gelu_exact")
    scaling = model.config.rotary_scaling
    if KINDS[kind] != "llama" and scaling is not None and len(scaling) > 1:
        raise UserError(
            f"rotary_scaling must be null or a factor alone in a GGUF file of type {kind}, got that of Llama 3"
        )


def _add_sizes(writer: "gguf.GGUFWriter", model: GPT, kind: str) -> None:
    """Add the sizes and settings of a model."""
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
    writer.add_layer_norm_rms_eps(config.norm_eps or RMS_NORM_EPS)
    writer.add_key_length(config.head_width)
    writer.add_value_length(config.head_width)
    writer.add_rope_dimension_count(config.head_width)
    writer.add_rope_freq_base(config.rotary_base)
    if config.rotary_scaling is not None and len(config.rotary_scaling) == 1:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rotary_scaling["factor"])


def _tensors_of(model: GPT, kind: str, state: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """The weights in float32, under the names that llama.cpp has for them; UserError for one that is not finite."""
    import gguf

    name_of = gguf.MODEL_ARCH_NAMES
    architecture = next(arch for arch, name in name_of.items() if name == KINDS[kind])
    names = gguf.get_tensor_name_map(architecture, model.config.n_layers)

    tensors = {}
    for their_name, weight in state.items():
        # llama.cpp takes the embedding where there is no unembedding.
        if their_name == "lm_head.weight" and model.config.tie_embeddings:
            continue
        name = names.get_name(their_name, try_suffixes=(".weight", ".bias"))
        assert name is not None, their_name
        if not bool(weight.isfinite().all()):
            raise UserError(f"every weight must be finite, and {their_name} is not")

        is_transposed = is_conv1d(their_name, weight.ndim)
        values = (weight.T if is_transposed else weight).contiguous()
        if KINDS[kind] == "llama" and their_name.endswith(TURNED):
            values = _with_neighbours_paired(values, model.config.head_width)
        tensors[name] = values.numpy().astype(np.float32)
    # What llama.cpp divides each frequency of rotary positions by, for a context as Llama 3 has it.
    scaling: Any = model.config.rotary_scaling
    if scaling is not None and len(scaling) > 1:
        plain = frequencies(model.config.head_width, model.config.rotary_base or 0.0)  # (D/2)
        tensors["rope_freqs.weight"] = (plain / lowered(plain, **scaling)).numpy()  # (D/2)
    return tensors


def _with_neighbours_paired(weight: Tensor, d_head: int) -> Tensor:
    """Rows of queries or keys (H D, ...) as llama.cpp turns them: neighbours, where Hugging Face's pairs are D/2 apart.

    Only its architecture llama does so. Source: llama.cpp, conversion/llama.py.
    """
    heads = weight.unflatten(0, (-1, 2, d_head // 2))  # (H, 2, D/2, ...)
    return heads.transpose(1, 2).flatten(0, 2).contiguous()  # (H D, ...)


def _add_tensors(writer: "gguf.GGUFWriter", tensors: dict[str, np.ndarray], dtype: str) -> None:
    """Add the weights, each in the type that fits it; UserError for one that fp16 does not hold."""
    import gguf

    tensor_type, file_type = DTYPES[dtype]
    writer.add_file_type(gguf.LlamaFileType[file_type])
    for name, values in tensors.items():
        chosen = gguf.GGMLQuantizationType[_type_of(name, values, tensor_type)]
        if chosen.name == "F16" and np.abs(values).max() > LARGEST_FP16:
            raise UserError(
                f"every weight must be at most {LARGEST_FP16} in fp16, and {name} has more"
            )
        writer.add_tensor(name, gguf.quants.quantize(values, chosen), raw_dtype=chosen)


def _type_of(name: str, values: np.ndarray, wanted: str) -> str:
    """The type of a tensor in a file whose matrices have the type `wanted`."""
    is_exact = values.ndim == 1 or name.startswith("position_embd")  # llama.cpp reads no other
    if is_exact:
        return "F32"
    if wanted == "Q8_0" and values.shape[1] % Q8_0_WIDTH:
        return "F16"
    return wanted
