"""Chats are read from the formats that datasets have, and anything else is named by line and message."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from gptmini.data import TextCorpus
from gptmini.data.reading.chat_formats import messages_of
from gptmini.data.reading.readers import Reader
from gptmini.system.errors import UserError

CHAT = [
    {"role": "user", "content": "Where is the hat?"},
    {"role": "assistant", "content": "In the garden."},
]
TOOL_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"name": "look", "arguments": {}}],
}
RECORDS = {
    "OpenAI": {"messages": CHAT},
    "OpenAI, in a string": {"messages": json.dumps(CHAT)},
    "OpenAI, in parts": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Where is "},
                    {"type": "text", "text": "the hat?"},
                ],
                "name": None,
            },
            CHAT[1],
        ]
    },
    "ShareGPT": {
        "id": 7,
        "conversations": [
            {"from": "human", "value": "Where is the hat?"},
            {"from": "gpt", "value": "In the garden."},
        ],
    },
    "Alpaca": {"instruction": "Where is the hat?", "input": "", "output": "In the garden."},
    "prompt and completion": {"prompt": "Where is the hat?", "completion": "In the garden."},
    "prompt and completion, as messages": {"prompt": CHAT[:1], "completion": CHAT[1:]},
    "a row of a table with all formats": {
        "messages": None,
        "conversations": [],
        "instruction": "",
        "output": None,
        "prompt": "Where is the hat?",
        "completion": "In the garden.",
    },
}


@pytest.mark.parametrize("name", RECORDS)
def test_each_format_is_told_by_its_fields(name):
    assert messages_of(RECORDS[name], None) == CHAT


def test_the_history_of_alpaca_comes_before_its_instruction_and_its_input_after_it():
    """LLaMA-Factory's README of its data describes these fields."""
    record = {"instruction": "Translate.", "input": "der Hut", "output": "the hat"}
    messages = messages_of(record | {"history": [["Who?", "Ada."]]}, None)
    contents = ["Who?", "Ada.", "Translate.\n\nder Hut", "the hat"]
    assert [message["content"] for message in messages] == contents
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2


@pytest.mark.parametrize(
    ("changes", "loss_on", "unused"),
    [
        ({"chosen": "a", "rejected": "b", "label": True}, "answers", {"chosen", "rejected"}),
        ({"chosen": None, "rejected": "", "label": 3, "score": 1}, "answers", {"label"}),
        ({"history": [["a", "b"]], "system": "Be brief."}, "answers", {"history"}),
        ({"messages": [CHAT[0], CHAT[1] | {"weight": 0}]}, "answers", set()),
        ({"messages": [CHAT[0], CHAT[1] | {"weight": 0}]}, "all", {"weight"}),
        ({"messages": [CHAT[0], CHAT[1] | {"weight": 1}]}, "all", set()),
    ],
)
def test_known_fields_that_are_not_used_are_named(tmp_path, changes, loss_on, unused):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": CHAT} | changes))
    corpus = TextCorpus(path, 0.5, template="chat", loss_on=loss_on)
    list(corpus.documents())
    named = {name for note in corpus.notes() for name in note.partition(": ")[2].split(", ")}
    assert named == unused


@pytest.mark.parametrize("name", ["OpenAI", "ShareGPT", "Alpaca", "prompt and completion"])
def test_chats_that_are_read_as_text_lead_to_the_template(tmp_path, name):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps(RECORDS[name]))
    with pytest.raises(UserError, match=r"chats\..*data\.template=chat"):
        list(Reader(field="text").read(path))


@pytest.mark.parametrize("name", RECORDS)
def test_the_field_system_is_the_system_message(name):
    system = {"role": "system", "content": "Be brief."}
    assert messages_of(RECORDS[name] | {"system": "Be brief."}, None) == [system, *CHAT]
    assert messages_of(RECORDS[name] | {"system": ""}, None) == CHAT
    own = {"messages": [system, *CHAT], "system": "Be verbose."}
    assert messages_of(own, None) == [system, *CHAT]


def test_a_message_may_hold_tool_calls_instead_of_content():
    assert messages_of({"messages": [TOOL_CALL]}, None) == [TOOL_CALL | {"content": ""}]


def test_a_field_may_be_named():
    assert messages_of({"a": {"b": CHAT}}, "a.b") == CHAT


@pytest.mark.parametrize(
    ("record", "names"),
    [
        ([], "record"),
        ({"text": "Once"}, "messages.*conversations.*instruction.*prompt.*text"),
        ({"messages": "Once"}, "messages.*'Once'"),
        ({"messages": [CHAT[0], "Once"]}, "message 2.*'Once'"),
        ({"messages": [{"content": "Once"}]}, "message 1.*role"),
        ({"messages": [{"role": "user", "content": 3}]}, "message 1.*content.*3"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "message 1.*image_url",
        ),
        ({"conversations": [{"from": "narrator", "value": "Once"}]}, "message 1.*narrator"),
        ({"prompt": "Once", "completion": CHAT}, "prompt.* and .*completion"),
        ({"instruction": "Once", "input": ["x"], "output": "a"}, "input.*'x'"),
        ({"prompt": "Once", "completion": "a", "label": False}, "label"),
        ({"messages": [CHAT[1] | {"weight": 0.5}]}, "message 1.*weight.*0.5"),
        ({"instruction": "Once", "output": "a", "history": ["x"]}, "history.*'x'"),
    ],
)
def test_anything_else_is_refused_with_what_was_found(record, names):
    with pytest.raises(UserError, match=names):
        messages_of(record, None)


def test_a_bad_chat_is_named_by_its_line_and_may_be_skipped(tmp_path):
    path = tmp_path / "chats.jsonl"
    lines = [*map(json.dumps, RECORDS.values()), json.dumps({"messages": [{"role": "user"}]})]
    path.write_text("\n".join(lines))

    with pytest.raises(UserError, match=rf"chats.jsonl, line {len(lines)}.*message 1"):
        list(Reader(field="messages", template="chat").read(path))
    reader = Reader(field="messages", template="chat", on_error="skip")
    parts = list(reader.read(path))
    assert [json.loads(part.text) for part in parts] == [CHAT] * len(RECORDS)
    assert reader.skipped.n == 1


# Arrow has no lists whose values are strings and lists.
@pytest.mark.parametrize("name", [name for name in RECORDS if name != "OpenAI, in parts"])
def test_parquet_has_the_same_formats(name, tmp_path):
    path = tmp_path / "chats.parquet"
    parquet.write_table(pa.Table.from_pylist([RECORDS[name] | {"source": "a"}]), path)
    (part,) = Reader(field="messages", template="chat").read(path)
    assert json.loads(part.text) == CHAT
