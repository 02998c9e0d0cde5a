"""Import and export models and tokenizers in the formats of Hugging Face, llama.cpp and nanoGPT."""

from gptmini.interop.architectures import ARCHITECTURES as ARCHITECTURES
from gptmini.interop.folder import write_folder as write_folder
from gptmini.interop.gguf_file import write_gguf as write_gguf
from gptmini.interop.hugging_face import from_hugging_face as from_hugging_face
from gptmini.interop.hugging_face import to_hugging_face as to_hugging_face
from gptmini.interop.nanogpt import read_nanogpt as read_nanogpt
from gptmini.interop.reading import read_folder as read_folder
from gptmini.interop.tokenizer_writing import to_tokenizers as to_tokenizers
