"""Read prompts from UTF-8 files or stdin."""

import json
from pathlib import Path

from gptmini.system.errors import UserError


def prompt_from(data: bytes, name: str) -> str:
    """Decode a prompt and remove one line break at its end, because echo and most editors append one.

    Args:
        data: the prompt in UTF-8. A byte order mark is removed.
        name: name of the source in error messages.
    """
    return _decoded(data, name).removesuffix("\n").removesuffix("\r")


def prompts_from(path: Path) -> list[str]:
    """Read a file with one prompt per line: plain text, or objects with the key "prompt" in a .jsonl file.

    Raises UserError if the file is not UTF-8 or has no prompts, or if a line of a .jsonl file is not an object with a
    string for "prompt".
    """
    text = _decoded(path.read_bytes(), str(path))
    prompts = []
    for i, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if not line.strip():
            continue
        if path.suffix == ".jsonl":
            prompts.append(_prompt_of(line, f"{path}, line {i}"))
        else:
            prompts.append(line)

    if not prompts:
        raise UserError(f"{path} must contain at least one prompt")
    return prompts


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{name} must be UTF-8: {error}") from None


def _prompt_of(line: str, place: str) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UserError(f"{place} must be JSON: {error}") from None
    if not isinstance(record, dict) or type(record.get("prompt")) is not str:
        raise UserError(
            f'{place} must be an object with the key "prompt" and a string, such as {{"prompt": "Once"}}'
        )
    return record["prompt"]
