"""Models of the Hugging Face hub, downloaded into the hub's own cache."""

import os
import re
from pathlib import Path

from gptmini.hub_errors import downloading

# Files of a model on the hub that are read, and one that says why a repository is not read. A * would also match the
# names of folders: *.safetensors is onnx/model.safetensors too.
PATTERNS = [
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "model.safetensors",
    "model-?????-of-?????.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
]


# The alphabet of names on the hub; the name of a file is none of them.
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
FILE_ENDS = (".ckpt", ".pt", ".safetensors", ".gguf", ".txt")


def is_hub_name(text: str) -> bool:
    """Whether a text can be the name of a model on the hub, as gpt2 or openai-community/gpt2.

    What lies in a folder that is here, as runs/mine, is a misspelt path and no name on the hub.
    """
    owner, slash, _ = text.partition("/")
    is_path = os.path.lexists(text) or (bool(slash) and Path(owner).exists())
    return HUB_NAME.fullmatch(text) is not None and not is_path and not text.endswith(FILE_ENDS)


def download_model(name: str) -> Path:
    """The folder of a model of the hub, downloaded unless the cache has it.

    Raises UserError: the hub cannot be reached, or has no such model.
    """
    # Imported here, because it takes a third of a second.
    from huggingface_hub import snapshot_download

    instead = "there is no folder or file of this name here, either"
    with downloading(f"the model {name}", instead):
        return Path(snapshot_download(name, allow_patterns=PATTERNS))
