"""What users name for a model and gptmini does not read: an adapter of peft, or a GGUF file."""

from pathlib import Path

from gptmini.interop.reading import INDEX, WEIGHTS
from gptmini.user_error import UserError

GGUF_MAGIC = b"GGUF"  # the first bytes of every such file
# What a folder holds that is read: weights, or a run's checkpoints, or runs.
READ = (WEIGHTS, INDEX, "config.yaml", "checkpoints", "latest")
ADAPTER = "adapter_config.json"  # which peft writes beside the weights of a LoRA


def check_is_read(path: Path) -> None:
    """Raise UserError for an adapter of peft or a GGUF file, or for a folder that holds one and no other weights."""
    if _is_gguf(path):
        raise _not_read_gguf(path)
    if not path.is_dir() or any((path / name).exists() for name in READ):
        return
    if any(path.glob("*/config.yaml")):  # runs of one name
        return

    if (path / ADAPTER).exists():
        raise UserError(
            f"{path} is a LoRA or another adapter of peft, not a model; merge it into its base: "
            f"AutoPeftModelForCausalLM.from_pretrained({str(path)!r}).merge_and_unload().save_pretrained(FOLDER), "
            "save the tokenizer there too, and name FOLDER"
        )
    found = next((file for file in sorted(path.glob("*.gguf")) if _is_gguf(file)), None)
    if found is not None:
        raise _not_read_gguf(found)


def _is_gguf(path: Path) -> bool:
    """Whether a path is a GGUF file, whatever its name."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC


def _not_read_gguf(path: Path) -> UserError:
    """The error for a GGUF file."""
    return UserError(
        f"{path} is a GGUF file, which gptmini writes but does not read; name the Hugging Face folder it was made from "
        f"or make one: AutoModelForCausalLM.from_pretrained({str(path.parent)!r}, gguf_file={path.name!r})"
        ".save_pretrained(FOLDER), and the same with AutoTokenizer"
    )
