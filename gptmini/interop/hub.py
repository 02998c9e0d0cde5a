"""Models of the Hugging Face hub, downloaded into the hub's own cache."""

from pathlib import Path

from gptmini.hub_errors import downloading

# Files of a model on the hub that are read.
PATTERNS = ["config.json", "*.safetensors", "model.safetensors.index.json", "tokenizer.json"]


def is_hub_name(text: str) -> bool:
    """Whether a text can be the name of a model on the hub, as gpt2 or openai-community/gpt2."""
    return text.count("/") <= 1 and not text.startswith((".", "/", "~"))


def download_model(name: str) -> Path:
    """The folder of a model of the hub, downloaded unless the cache has it.

    Raises UserError: the hub cannot be reached, or has no such model.
    """
    # Imported here, because it takes a third of a second.
    from huggingface_hub import snapshot_download

    instead = "there is no folder or file of this name here, either"
    with downloading(f"the model {name}", instead):
        return Path(snapshot_download(name, allow_patterns=PATTERNS))
