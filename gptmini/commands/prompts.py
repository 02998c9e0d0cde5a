"""The prompts of gptmini sample, from its options, a file or stdin."""

import argparse
import json
import sys
from pathlib import Path

from gptmini.user_error import UserError


def read_prompts(arguments: argparse.Namespace) -> list[str]:
    """The prompts of the file --prompts, or else the one prompt of --prompt-file, of stdin or of --prompt.

    A prompt from stdin or a file loses its last line break, because programs such as echo, and most editors, add one to
    what they write.

    Raises UserError: a text is not UTF-8, the file --prompts holds no prompt, or a line of its .jsonl is no object with
    a text under prompt.
    """
    if arguments.prompts is not None:
        return _read_prompt_list(arguments.prompts)
    if arguments.prompt_file is not None:
        path = arguments.prompt_file
        return [_without_line_break(_decoded(path.read_bytes(), str(path)))]
    if arguments.prompt == "-":
        text = _decoded(sys.stdin.buffer.read(), "stdin")
        return [_without_line_break(text)]
    return [arguments.prompt or ""]


def _read_prompt_list(path: Path) -> list[str]:
    """The prompts of a file that holds one a line: as plain text, or in .jsonl as an object with the key prompt."""
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


def _without_line_break(text: str) -> str:
    """A text without the line break that it may end with."""
    return text.removesuffix("\n").removesuffix("\r")


def _decoded(data: bytes, name: str) -> str:
    """Text from bytes in UTF-8, without the byte order mark with which some editors begin a file."""
    from gptmini.data.sources.decoding import decode_text

    return decode_text(data, name)


def _prompt_of(line: str, place: str) -> str:
    """The prompt of a line of .jsonl; place names the line in an error message."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UserError(f"{place} must be JSON: {error}") from None
    if not isinstance(record, dict) or type(record.get("prompt")) is not str:
        raise UserError(f'{place} must be an object with a text, as in {{"prompt": "Once"}}')
    return record["prompt"]
