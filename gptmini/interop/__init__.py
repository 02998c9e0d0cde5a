"""Import and export models and tokenizers in the formats of Hugging Face, llama.cpp and nanoGPT."""

from gptmini.interop.architectures import ARCHITECTURES
from gptmini.interop.folder import write_folder
from gptmini.interop.gguf_file import write_gguf
from gptmini.interop.hugging_face import from_hugging_face, to_hugging_face
from gptmini.interop.nanogpt import read_nanogpt
from gptmini.interop.reading import read_folder
from gptmini.interop.tokenizer_writing import to_tokenizers

__all__ = [
    "ARCHITECTURES",
    "from_hugging_face",
    "read_folder",
    "read_nanogpt",
    "to_hugging_face",
    "to_tokenizers",
    "write_folder",
    "write_gguf",
]
