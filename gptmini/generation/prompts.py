"""Prompts from the bytes of a file or of stdin, in UTF-8."""

import json
from pathlib import Path

from gptmini.user_error import UserError


def prompt_from(data: bytes, name: str) -> str:
    """The prompt that bytes hold, without the line break that programs such as echo, and most editors, end with.

    Args:
        data: UTF-8; a byte order mark is left out.
        name: what an error calls the bytes.
    """
    return _decoded(data, name).removesuffix("\n").removesuffix("\r")


def prompts_from(path: Path) -> list[str]:
    """The prompts of a file that holds one a line: as plain text, or in .jsonl as an object with the key prompt.

    Raises UserError: the file is not UTF-8, holds no prompt, or a line of its .jsonl is no object with a text under
    prompt.
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
        raise UserError(f"{path} must hold at least one prompt, got none")
    return prompts


def _decoded(data: bytes, name: str) -> str:
    """Text from bytes in UTF-8, without a byte order mark; UserError names the bytes."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{name} must be UTF-8: {error}") from None


def _prompt_of(line: str, place: str) -> str:
    """The prompt of a line of .jsonl; place names the line in an error message."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UserError(f"{place} must be JSON: {error}") from None
    if not isinstance(record, dict) or type(record.get("prompt")) is not str:
        raise UserError(f'{place} must be an object with a text, as in {{"prompt": "Once"}}')
    return record["prompt"]
