"""Import and export models and tokenizers in the formats of Hugging Face, llama.cpp and nanoGPT.

In this package, "their" names come from Hugging Face, and "our" names come from GPT and GPTConfig.
Each name is imported at its first use, because most of them require torch.
"""

from typing import TYPE_CHECKING

from gptmini.system.lazy import lazy_names

if TYPE_CHECKING:
    from gptmini.interop.architectures import ARCHITECTURES as ARCHITECTURES
    from gptmini.interop.architectures import choose_architecture as choose_architecture
    from gptmini.interop.folder import require_empty as require_empty
    from gptmini.interop.folder import write_folder as write_folder
    from gptmini.interop.folder_settings import read_source_settings as read_source_settings
    from gptmini.interop.folder_settings import stored_source_settings as stored_source_settings
    from gptmini.interop.gguf_file import write_gguf as write_gguf
    from gptmini.interop.hub_models import download_model as download_model
    from gptmini.interop.hub_models import is_hub_name as is_hub_name
    from gptmini.interop.nanogpt import read_nanogpt as read_nanogpt
    from gptmini.interop.reading import read_config_and_tokenizer as read_config_and_tokenizer
    from gptmini.interop.reading import read_model as read_model
    from gptmini.interop.tokenizer_reading import read_tokenizer as read_tokenizer
else:
    __getattr__ = lazy_names(__name__)
