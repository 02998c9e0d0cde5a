"""Read chats in the formats that datasets use. The result is a list of messages with a role and a content."""

import json
from collections.abc import Callable, Sequence
from typing import Any

CHAT_FIELD = "messages"  # the field that contains the chat, unless data.field is set
SHOWN = 60  # number of characters of a value that an error message shows
# The role of each speaker in ShareGPT's format. The keys are the names of speakers that datasets use.
SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
}


class ChatFormatError(ValueError):
    """An error for a record that does not contain a chat. The text of the error states the problem for the user."""


def messages_of(record: Any, field: str | None) -> list[dict[str, Any]]:
    """Return the messages of a record.

    Each message has the strings "role" and "content". It may have other fields for the template. If `field` is None,
    the names of the fields in the record determine the format of the chat:

    - "messages": OpenAI's format. The value is a list of records with the fields "role" and "content", or a string that
      contains this list in JSON.
    - "conversations": ShareGPT's format. The value is a list of records with the fields "from" and "value".
    - "instruction", "output" and sometimes "input": Alpaca's format.
    - "prompt" and "completion": the values are two strings, or two lists of messages.

    The string in the field "system", if there is one, becomes the system message of a chat that has no system message.

    Args:
        record: a JSON value.
        field: the field that contains the messages in OpenAI's or ShareGPT's format. The name a.b means the field b of
            the record in the field a.

    Raises ChatFormatError if the record has a different format.
    """
    if field is not None:
        return checked_messages(_field(record, field))
    if not isinstance(record, dict):
        raise ChatFormatError(f"expected a record, got {_shown(record)}")
    for fields, read in FORMATS.items():
        if all(name in record for name in fields):
            return _with_system(record, checked_messages(read(record)))
    known = "; ".join(" and ".join(fields) for fields in FORMATS)
    found = ", ".join(map(str, record)) or "none"
    raise ChatFormatError(f"expected the fields of a chat ({known}), got the fields {found:.200}")


def _with_system(record: dict[str, Any], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with the text of the field "system" before them, unless they start with a system message."""
    system = record.get("system")
    if system is None or system == "" or messages[0]["role"] == "system":
        return messages
    if not isinstance(system, str):
        raise ChatFormatError(f"the field 'system' must be a string, got {_shown(system)}")
    return [{"role": "system", "content": system}, *messages]


def _alpaca(record: dict[str, Any]) -> list[Any]:
    asked = record["instruction"]
    more = record.get("input")
    if isinstance(asked, str) and more:
        if not isinstance(more, str):
            raise ChatFormatError(f"the field 'input' must be a string, got {_shown(more)}")
        asked = f"{asked}\n\n{more}"
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": record["output"]}]


def _prompt_and_completion(record: dict[str, Any]) -> list[Any]:
    prompt = record["prompt"]
    completion = record["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        return [
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": completion},
        ]
    if isinstance(prompt, list) and isinstance(completion, list):
        return [*prompt, *completion]
    raise ChatFormatError(
        f"the fields 'prompt' and 'completion' must be two strings or two lists of messages, got {_shown(prompt)} "
        f"and {_shown(completion)}"
    )


# The function that reads each format. The keys are the names of the fields that identify the format.
FORMATS: dict[tuple[str, ...], Callable[[dict[str, Any]], Any]] = {
    ("messages",): lambda record: record["messages"],
    ("conversations",): lambda record: record["conversations"],
    ("instruction", "output"): _alpaca,
    ("prompt", "completion"): _prompt_and_completion,
}

# All fields that the formats read.
CHAT_FIELDS = {*(name for fields in FORMATS for name in fields), "input", "system"}


def _field(record: Any, field: str) -> Any:
    """Return the value of a field. Raise ChatFormatError if the record does not have this field."""
    value = record
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            found = ", ".join(map(str, value)) if isinstance(value, dict) else _shown(value)
            raise ChatFormatError(
                f"expected the field '{field}', as data.field says, got the fields {found:.200}"
            )
        value = value[name]
    return value


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """Return messages with the strings "role" and "content". Raise ChatFormatError if this is not possible."""
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
        except (ValueError, RecursionError):
            raise ChatFormatError(
                f"messages must be a list, or a string with a list in JSON, got {_shown(messages)}"
            ) from None
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ChatFormatError(
            f"messages must be a list with at least one message, got {_shown(messages)}"
        )
    return [_message(message, number) for number, message in enumerate(messages, start=1)]


def _message(message: Any, number: int) -> dict[str, Any]:
    """Return a message with the strings "role" and "content". Remove fields that are None, as transformers does."""
    if not isinstance(message, dict):
        raise ChatFormatError(f"message {number} must be a record, got {_shown(message)}")
    fields = {name: value for name, value in message.items() if value is not None}

    if "role" not in fields and "from" in fields:
        speaker = fields.pop("from")
        role = SPEAKERS.get(speaker) if isinstance(speaker, str) else None
        if role is None:
            raise ChatFormatError(
                f"message {number}: the field 'from' must be one of {', '.join(SPEAKERS)}, got {_shown(speaker)}"
            )
        fields = {"role": role, "content": fields.pop("value", None), **fields}

    role = fields.get("role")
    if not isinstance(role, str):
        raise ChatFormatError(
            f"message {number}: the field 'role' must be a string, got {_shown(role)}"
        )
    return {
        "role": role,
        "content": _content(fields.get("content"), number, fields),
        **_others(fields),
    }


def _others(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in ("role", "content")}


def _content(content: Any, number: int, fields: dict[str, Any]) -> str:
    """Return the text in the content of a message.

    The content is a string or a list of parts with text. If the message has tool calls, the content may be missing.
    """
    if isinstance(content, str):
        return content
    if content is None and ("tool_calls" in fields or "function_call" in fields):
        return ""
    if isinstance(content, list):
        texts = []
        for part in content:
            text = (
                part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
            )
            if not isinstance(text, str):
                raise ChatFormatError(
                    f"message {number}: every part of the field 'content' must be text, got {_shown(part)}"
                )
            texts.append(text)
        return "".join(texts)
    raise ChatFormatError(
        f"message {number}: the field 'content' must be text, got {_shown(content)}"
    )


def _shown(value: Any) -> str:
    return f"{value!r:.{SHOWN}}"
