"""Download models from the Hugging Face Hub into the cache of the hub's library."""

import os
import re
from pathlib import Path

from gptmini.system.errors import downloading

# The files that gptmini reads. The patterns do not contain *, because * matches files in subfolders too. For example,
# *.safetensors matches onnx/model.safetensors.
PATTERNS = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-?????-of-?????.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
]
# The pattern of a name on the hub. A name with one of the extensions in FILE_ENDS is a file, not a name on the hub.
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
FILE_ENDS = (".ckpt", ".pt", ".safetensors", ".gguf", ".txt")


def is_hub_name(text: str) -> bool:
    """Return whether a string can be the name of a model on the hub, such as gpt2 or openai-community/gpt2.

    A string whose first part is an existing folder, such as runs/mine, is a misspelt path instead.
    """
    owner, slash, _ = text.partition("/")
    is_path = os.path.lexists(text) or (bool(slash) and Path(owner).exists())
    return HUB_NAME.fullmatch(text) is not None and not is_path and not text.endswith(FILE_ENDS)


def download_model(name: str) -> Path:
    """Return the folder of a model of the hub. Download the model if it is not in the cache."""
    # The library is imported here, because the import takes a third of a second.
    from huggingface_hub import snapshot_download

    instead = "a local folder or file of this name does not exist either"
    with downloading(f"the model {name}", instead):
        return Path(snapshot_download(name, allow_patterns=PATTERNS))
