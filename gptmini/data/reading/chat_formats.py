"""Read chats in the formats that datasets use. The result is a list of messages with a role and a content."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from gptmini.console.printable import printable
from gptmini.data.reading.cutting import PART
from gptmini.system.errors import UserError, value_text

CHAT_FIELD = "messages"  # the field that contains the chat, unless data.field names another one
CHAT_VERSION = 2  # part of the fingerprint; raise it when the same chats lead to other tokens
# The role for each name that datasets in ShareGPT's format give a speaker.
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
# Fields that change what other programs train on. gptmini ignores them, except "history" in Alpaca's format.
UNUSED = ("chosen", "rejected", "label", "functions", "documents", "history")
LABELS = ("label", "kto_tag")  # false if the answer of a record is a bad example


def messages_of(record: Any, field: str | None) -> list[dict[str, Any]]:
    """Return the messages of a record. Each message has the strings "role" and "content", and maybe other fields.

    If `field` is None, the fields of the record determine the format:

    - "messages": OpenAI's list of records with the fields "role" and "content", or a string of this list in JSON.
    - "conversations": ShareGPT's list of records with the fields "from" and "value".
    - "instruction", "output" and sometimes "input": Alpaca's format.
    - "prompt" and "completion": two strings, or two lists of messages.

    The string in the field "system" becomes the system message of a chat that has no system message. Otherwise `field`
    contains OpenAI's or ShareGPT's messages.

    Raises UserError if the record has a different format, or if it is labelled as a bad example.
    """
    if not isinstance(record, dict):
        raise UserError(f"expected a record, got {value_text(record)}")
    for name in LABELS:
        if record.get(name) is False:
            raise UserError(f"the field '{name}' is false, so the answer is a bad example")
    if field is not None:
        return checked_messages(value_of(record, field))
    fields = format_of_chat(record)
    if fields is not None:
        return _with_system(record, checked_messages(FORMATS[fields](record)))
    formats = "; ".join(" and ".join(fields) for fields in FORMATS)
    raise UserError(f"expected the fields of a chat ({formats}), got {_fields_of(record)}")


def format_of_chat(record: dict[str, Any]) -> tuple[str, ...] | None:
    """Return the fields that determine the format of a chat. Return None if the record has no format.

    A table has the fields of all formats in each row. Therefore, prefer a format whose fields have values.
    """
    named = [fields for fields in FORMATS if all(name in record for name in fields)]
    filled = [fields for fields in named if all(record[name] for name in fields)]
    return next(iter([*filled, *named]), None)


def document_of(record: Any, field: str) -> tuple[str, set[str]]:
    """Return the messages of a record in JSON, with its tools if it has any, and the known fields that are not used.

    Raises UserError if the record does not contain a chat, or if the chat is longer than a part.
    """
    messages = messages_of(record, None if field == CHAT_FIELD else field)
    tools = _list_in(record.get("tools") or [], "the field 'tools'")
    if not all(isinstance(tool, dict) for tool in tools):
        raise UserError(f"the field 'tools' must contain only records, got {value_text(tools)}")
    try:
        chat = {"messages": messages, "tools": tools} if tools else messages
        text = json.dumps(chat, ensure_ascii=False)
    except TypeError as error:  # a value that JSON does not support, such as a date in Parquet
        raise UserError(f"messages must contain only JSON values: {error}") from None
    if len(text) > PART:
        raise UserError(f"a chat must have at most {PART:,} characters, got {len(text):,}")

    unused = {name for name in UNUSED if record.get(name) not in (None, "", [], True)}
    if format_of_chat(record) == ALPACA:
        unused.discard("history")
    if any(message.get("weight") == 0 for message in messages):
        unused.add("weight")
    return text, unused


def parse_chat(text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Return the messages and the tools of a chat from the text of its document."""
    chat = json.loads(text)
    return (chat, None) if isinstance(chat, list) else (chat["messages"], chat["tools"])


def _with_system(record: dict[str, Any], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    system = record.get("system")
    if system is None or system == "" or messages[0]["role"] == "system":
        return messages
    if not isinstance(system, str):
        raise UserError(f"the field 'system' must be a string, got {value_text(system)}")
    return [{"role": "system", "content": system}, *messages]


def _alpaca(record: dict[str, Any]) -> list[Any]:
    question = record["instruction"]
    material = record.get("input")
    if isinstance(question, str) and material:
        if not isinstance(material, str):
            raise UserError(f"the field 'input' must be a string, got {value_text(material)}")
        question = f"{question}\n\n{material}"
    earlier = _list_in(record.get("history") or [], "the field 'history'")
    turns = [*earlier, [question, record["output"]]]
    if not all(isinstance(turn, list) and len(turn) == 2 for turn in turns):
        raise UserError(
            f"the field 'history' must contain questions with their answers, got {value_text(earlier)}"
        )
    roles = ("user", "assistant")
    return [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(roles, turn, strict=True)
    ]


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
    raise UserError(
        "the fields 'prompt' and 'completion' must be two strings or two lists of messages, got "
        f"{value_text(prompt)} and {value_text(completion)}"
    )


ALPACA = ("instruction", "output")
# The function that reads each format. The keys are the fields that identify the format.
FORMATS: dict[tuple[str, ...], Callable[[dict[str, Any]], Any]] = {
    ("messages",): lambda record: record["messages"],
    ("conversations",): lambda record: record["conversations"],
    ALPACA: _alpaca,
    ("prompt", "completion"): _prompt_and_completion,
}

# All fields that the formats read or name.
CHAT_FIELDS = {*sum(FORMATS, ()), "input", "system", "tools", *LABELS, *UNUSED}


def value_of(record: Any, field: str) -> Any:
    """Return the value of a field. The name a.b means the field b of the record in the field a."""
    value = record
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            raise UserError(missing_field(field, value))
        value = value[name]
    return value


def missing_field(field: str, value: Any) -> str:
    """Return the error message for a value that does not have a field."""
    # gptmini evaluate replaces data.field by the option --field.
    return f"expected the field '{field}' (set data.field to read another one), got {_fields_of(value)}"


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """Return messages with the strings "role" and "content". Raise UserError if this is not possible."""
    messages = _list_in(messages, "messages")
    if not messages:
        raise UserError("messages must be a list with at least one message, got []")
    return [_message(message, number) for number, message in enumerate(messages, start=1)]


def _list_in(value: Any, name: str) -> Sequence[Any]:
    parsed = value
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            parsed = json.loads(value)
    if not isinstance(parsed, Sequence) or isinstance(parsed, str):
        raise UserError(
            f"{name} must be a list, or a string with a list in JSON, got {value_text(value)}"
        )
    return parsed


def _message(message: Any, number: int) -> dict[str, Any]:
    """Return a message with the strings "role" and "content". Remove fields that are None, as transformers does."""
    if not isinstance(message, dict):
        raise UserError(f"message {number} must be a record, got {value_text(message)}")
    fields = {name: value for name, value in message.items() if value is not None}

    if "role" not in fields and "from" in fields:
        speaker = fields.pop("from")
        if not isinstance(speaker, str) or speaker not in SPEAKERS:
            raise _wrong(number, "from", f"one of {', '.join(SPEAKERS)}", speaker)
        fields = {"role": SPEAKERS[speaker], "content": fields.pop("value", None), **fields}

    role = fields.pop("role", None)
    if not isinstance(role, str):
        raise _wrong(number, "role", "a string", role)
    if fields.get("weight", 1) not in (0, 1):
        raise _wrong(number, "weight", "0 or 1", fields["weight"])
    return {
        "role": "system" if role == "developer" else role,  # OpenAI's newer name
        "content": _content(fields.pop("content", None), number, fields),
        **fields,
    }


def _content(content: Any, number: int, others: dict[str, Any]) -> str:
    if content is None and ("tool_calls" in others or "function_call" in others):
        return ""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for part in parts:
        is_text = isinstance(part, dict) and part.get("type") == "text"
        if not is_text or not isinstance(part.get("text"), str):
            raise _wrong(number, "content", "text", part if parts is content else content)
        texts.append(part["text"])
    return "".join(texts)


def _wrong(number: int, field: str, wanted: str, value: Any) -> UserError:
    return UserError(
        f"message {number}: the field '{field}' must be {wanted}, got {value_text(value)}"
    )


def _fields_of(value: Any) -> str:
    if not isinstance(value, dict):
        return value_text(value)
    names = printable(", ".join(map(str, value)))
    return f"the fields {names or 'none':.200}"
