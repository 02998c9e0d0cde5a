"""Raise clear errors for peft adapters and GGUF files, because gptmini does not read these files."""

from pathlib import Path

from gptmini.interop.reading import INDEX, WEIGHTS
from gptmini.user_error import UserError

GGUF_MAGIC = b"GGUF"  # the first bytes of a GGUF file
# If a folder contains one of these names, gptmini reads it. It is a folder of weights, a run, or a folder of runs.
READ = (WEIGHTS, INDEX, "config.yaml", "checkpoints", "latest")
ADAPTER = "adapter_config.json"  # peft writes this file next to the weights of an adapter


def check_is_supported(path: Path) -> None:
    """Raise UserError if a path is a peft adapter, a GGUF file, or a folder that contains only such weights."""
    if _is_gguf(path):
        raise _unsupported_gguf(path)
    if not path.is_dir() or any((path / name).exists() for name in READ):
        return
    if any(path.glob("*/config.yaml")):  # the folder contains runs with the same name
        return

    if (path / ADAPTER).exists():
        raise UserError(
            f"{path} is a LoRA or other peft adapter, not a model; merge the adapter into its base model: "
            f"AutoPeftModelForCausalLM.from_pretrained({str(path)!r}).merge_and_unload().save_pretrained(FOLDER), "
            "save the tokenizer in FOLDER too, and use FOLDER"
        )
    found = next((file for file in sorted(path.glob("*.gguf")) if _is_gguf(file)), None)
    if found is not None:
        raise _unsupported_gguf(found)


def _is_gguf(path: Path) -> bool:
    """Return whether a path is a GGUF file. The file may have any name."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC


def _unsupported_gguf(path: Path) -> UserError:
    """Return the error for a GGUF file."""
    return UserError(
        f"{path} is a GGUF file, and gptmini cannot read this format; use the Hugging Face folder of the model, "
        f"or create it: AutoModelForCausalLM.from_pretrained({str(path.parent)!r}, gguf_file={path.name!r})"
        ".save_pretrained(FOLDER), and do the same with AutoTokenizer"
    )
