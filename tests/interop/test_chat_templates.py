"""Chats with the rules of well-known templates: ids and answers are the same as in transformers, or refused."""

import json
import os
import random
import re
from itertools import groupby

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, trainers

from gptmini.interop.tokenizer_reading import read_tokenizer
from gptmini.system.errors import UserError
from gptmini.tokenizer import chat_encoder_of
from interop.library_tokenizers import learned

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

SPECIAL = ["<s>", "</s>", "<|start|>", "<|end|>", "<|head|>", "<think>", "</think>", "<mask>"]
WORDS = "the cat sat on 12 mats, where is it? system user assistant Be brief. And nowhere"
TAGS = re.compile(r"\{% (end)?generation %\}")

CHATML = (
    "<|start|>{{ m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}{{ c + '<|end|>\n' }}{% endgeneration %}"
    "{% else %}{{ c + '<|end|>\n' }}{% endif %}"
)
ASKS = "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
EACH = "{% for m in messages %}{% set c = m.content %}"
# Short templates with the rules of the models that their names start with. Only transformers gets the tags.
TEMPLATES = {
    "qwen2.5": (
        "{% if messages[0].role != 'system' %}{{ '<|start|>system\n12 cats<|end|>\n' }}{% endif %}"
        f"{{% if tools %}}tools{{% endif %}}{EACH}{CHATML}{{% endfor %}}{ASKS}"
    ),
    "llama2": (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}"
        "{{ bos_token + '[INST] ' + m.content.strip() + ' [/INST]' }}{% else %}"
        "{% generation %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
    ),
    # Llama 3's first template always adds the generation prompt.
    "llama3": (
        "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
        "{{ '<|start|>' + m.role + '<|head|>\n\n' }}"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim + '<|end|>' }}{% endgeneration %}"
        "{% else %}{{ m.content | trim + '<|end|>' }}{% endif %}{% endfor %}{{ '<|start|>assistant<|head|>\n\n' }}"
    ),
    "gemma": (
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
        "{{ '<|start|>' + role + '\n' }}{% if role == 'model' %}{% generation %}{{ m.content | trim + '<|end|>\n' }}"
        "{% endgeneration %}{% else %}{{ m.content | trim + '<|end|>\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start|>model\n' }}{% endif %}"
    ),
    "deepseek": (
        "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
        "{% set ns.system = m.content %}{% endif %}{% endfor %}{{ ns.system }}{% for m in messages %}"
        "{% if m.role == 'user' %}{{ '<|start|>' + m.content }}{% elif m.role == 'assistant' %}<|head|>{% generation %}"
        "{{ m.content.split('</think>')[-1] + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|head|>{% endif %}"
    ),
    # No special tokens, and the generation prompt after every chat.
    "plain": (
        "{% for m in messages %}{{ m.role + ': ' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '\n' }}"
        "{% endgeneration %}{% else %}{{ m.content + '\n' }}{% endif %}{% endfor %}{{ 'assistant: ' }}"
    ),
}
TOOLS = [{"name": "sit", "parameters": {"on": {"type": "string", "description": "where a cat is"}}}]
THINKS = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}{% set c = m.content %}{% set thoughts = '' %}"
    "{% if m.role == 'assistant' %}{% if m.reasoning_content is string %}{% set thoughts = m.reasoning_content %}"
    "{% elif '</think>' in c %}{% set thoughts = c.split('</think>')[0].rstrip('\n') %}"
    "{% set thoughts = thoughts.split('<think>')[-1].lstrip('\n') %}"
    "{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}{% if loop.index0 > ns.last %}"
    "{% set c = '<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + c.lstrip('\n') %}{% endif %}{% endif %}"
    f"{CHATML}{{% endfor %}}{ASKS}"
)


def of_bytes():
    return learned(WORDS, special=SPECIAL)


def of_pieces():
    """Return a tokenizer that adds a space before each text, like those of Llama 1 and 2."""
    made = Tokenizer(models.BPE(unk_token="<mask>", byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[*SPECIAL, *(f"<0x{i:02X}>" for i in range(256))],
        show_progress=False,
    )
    made.train_from_iterator([*WORDS.split(), WORDS] * 9, trainer)
    tree = json.loads(made.to_str())
    n_special = len(SPECIAL)
    tree["added_tokens"] = [token for token in tree["added_tokens"] if token["id"] < n_special]
    return Tokenizer.from_str(json.dumps(tree))


@pytest.fixture(scope="module", params=[of_bytes, of_pieces])
def tokenizer_json(request):
    return request.param().to_str()


@pytest.fixture
def pair(tmp_path, tokenizer_json):
    """Make a tokenizer of transformers and a chat encoder of gptmini from a template, by default without its tags."""

    def make(template, *, tagged=False, **config):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
        ours = template if tagged else TAGS.sub("", template)
        config |= {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "chat_template": ours,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        return theirs, chat_encoder_of(read_tokenizer(folder, n_vocab=500, ends=[1]))

    return make


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def random_chats(n, *, special=()):
    """Return chats with white space around messages; some chats start with the system or the assistant."""
    draw = random.Random(5)
    words = [*WORDS.split(), "naïve 🙂", "\n", " ", "Ġ", *special]
    starts = [["user"], ["system", "user"], ["assistant", "user"]]
    chats = []
    for _ in range(n):
        roles = [*draw.choice(starts), *["assistant", "user"] * draw.randrange(3)]
        roles = roles[: draw.randrange(1, len(roles) + 1)]
        texts = [" ".join(draw.choices(words, k=draw.randrange(8))) for _ in roles]
        # Without a prompt before an answer, white space around it could belong to the template or to the answer.
        texts[0] = "the" + texts[0]
        chats.append([said(role, text) for role, text in zip(roles, texts, strict=True)])
    return chats


def outcome(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return error


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_and_answers_of_chats_are_those_of_transformers(pair, name):
    template = TEMPLATES[name]
    theirs, ours = pair(template)
    _, tagged = pair(template, tagged=True)
    n_refused = 0
    for chat in random_chats(20):
        expected = outcome(
            theirs.apply_chat_template,
            chat,
            chat_template=template,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        if isinstance(expected, Exception):
            n_refused += 1
            with pytest.raises(UserError, match=re.escape(str(expected))):
                ours.encode(chat, loss_on="all")
            continue
        assert theirs.apply_chat_template(chat)["input_ids"] == expected["input_ids"]
        for encoder in (ours, tagged):
            ids, is_counted = encoder.encode(chat, loss_on="all")
            assert ids.tolist() == expected["input_ids"]
            assert is_counted.all()

            ids, is_answer = encoder.encode(chat, loss_on="answers")
            assert ids.tolist() == expected["input_ids"]
            assert is_answer.tolist() == [bool(i) for i in expected["assistant_masks"]], chat
    assert n_refused < 20


@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("name", ["qwen2.5", "llama2"])
def test_tools_reach_the_template_and_an_answer_of_weight_0_is_not_counted(pair, name, tagged):
    template = "{{ tools | tojson if tools else '' }}" + TEMPLATES[name]
    theirs, ours = pair(template, tagged=tagged)
    chat = [
        said("user", "where is the cat"),
        said("assistant", "12", weight=0),
        said("user", "where?"),
        said("assistant", "on the mat", weight=1),
    ]
    expected = theirs.apply_chat_template(
        chat,
        tools=TOOLS,
        chat_template=template,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    ids, is_counted = ours.with_names({"tools": TOOLS}).encode(chat)
    assert ids.tolist() == expected["input_ids"]
    runs = groupby(range(len(ids)), lambda i: expected["assistant_masks"][i])
    _, last_answer = [list(places) for is_answer, places in runs if is_answer]
    assert np.flatnonzero(is_counted).tolist() == last_answer

    special = json.loads(json.dumps(TOOLS).replace("cat", "<|end|>"))
    expected = theirs.apply_chat_template(chat, tools=special, sanitize_control_tokens=True)
    ids, _ = ours.with_names({"tools": special}).encode(chat, loss_on="all")
    assert ids.tolist() == expected["input_ids"]


THOUGHT = "<think>\nOn 12 mats?\n</think>\n\n"
THOUGHTFUL = [
    said("user", "where is the cat"),
    said("assistant", f"{THOUGHT} on the mat"),
    said("user", "and the other"),
    said("assistant", f"{THOUGHT}nowhere\n"),
]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"reasoning_content": "By mats.\n"},
        {"thinking": "By mats."},
        {"name": "cat", "tool_calls": [{"function": {"name": "sit", "arguments": {"on": "12"}}}]},
    ],
)
def test_thoughts_that_only_the_last_answers_have_are_those_of_transformers(pair, more):
    theirs, ours = pair(THINKS + "{{ (messages[1].tool_calls or 'none') | tojson(indent=1) }}")
    chat = [*THOUGHTFUL]
    if more:
        chat[1] = said("assistant", "on the mat", **more)
        chat[3] = said("assistant", "nowhere", **more)
    ids, is_counted = ours.encode(chat, loss_on="all")
    assert ids.tolist() == theirs.apply_chat_template(chat)["input_ids"]
    assert is_counted.all()


def test_answers_that_a_template_changes_later_are_those_of_its_tags_or_refused(pair):
    theirs, ours = pair(THINKS)
    _, tagged = pair(THINKS, tagged=True)

    def expected_of(chat):
        return theirs.apply_chat_template(
            chat, chat_template=THINKS, return_dict=True, return_assistant_tokens_mask=True
        )

    for chat in (THOUGHTFUL, THOUGHTFUL[:2], [said("assistant", "the cat"), *THOUGHTFUL[:2]]):
        ids, is_answer = tagged.encode(chat)
        assert ids.tolist() == expected_of(chat)["input_ids"]
        assert is_answer.tolist() == [bool(i) for i in expected_of(chat)["assistant_masks"]]

    ids, is_answer = ours.encode(THOUGHTFUL[:2])
    assert is_answer.tolist() == [bool(i) for i in expected_of(THOUGHTFUL[:2])["assistant_masks"]]
    with pytest.raises(
        UserError, match=r"loss_on=answers cannot find the answer .*12 mats.* use data\.loss_on=all"
    ):
        ours.encode(THOUGHTFUL)


def test_an_answer_that_does_not_follow_the_prompt_for_one_is_refused(pair):
    """In DeepSeek R1's templates, the prompt starts the thoughts, which the templates remove from answers."""
    asks = "{% if add_generation_prompt %}{{ '<|start|>assistant\n<think>' }}{% endif %}"
    theirs, ours = pair(f"{EACH}{CHATML}{{% endfor %}}{asks}")
    for chat in (THOUGHTFUL[:1], [said("assistant", "the cat")]):
        ids, _ = ours.encode(chat, loss_on="all")
        assert ids.tolist() == theirs.apply_chat_template(chat)["input_ids"]
    for answer in ([said("assistant", "the cat")], [*THOUGHTFUL[:1], said("assistant", "the cat")]):
        with pytest.raises(UserError, match=r"answer 'the cat' .* \{% generation %\}"):
            ours.encode(answer)


@pytest.mark.parametrize("name", ["qwen2.5", "llama2", "llama3", "gemma"])
def test_special_tokens_in_messages_are_text_as_transformers_makes_it(pair, name):
    theirs, ours = pair(TEMPLATES[name])
    n_encoded = 0
    for chat in random_chats(
        40, special=["<|end|>", "a<s>b</s>", "<mask><mask>", "</think>", "\ufdd0"]
    ):
        expected = outcome(theirs.apply_chat_template, chat, sanitize_control_tokens=True)
        if not isinstance(expected, Exception):
            n_encoded += 1
            for loss_on in ("all", "answers"):
                ids, _ = ours.encode(chat, loss_on=loss_on)
                assert ids.tolist() == expected["input_ids"], chat
    assert n_encoded > 10


def test_special_tokens_that_a_template_takes_apart_or_makes_are_refused(pair):
    theirs, ours = pair("{{ messages[0].content | replace('<s>', '') }}<|end|>")
    chat = [said("user", "the <s>cat")]
    assert ours.encode(chat)[0].tolist() == theirs.apply_chat_template(chat)["input_ids"]
    with pytest.raises(UserError, match=r"<\|end\|>"):
        ours.encode([said("user", "the <|e<s>nd|>")])
    with pytest.raises(UserError, match=r"must not contain <s>; .* template"):
        pair("{{ messages[0].content | length }}")[1].encode([said("user", "<s>")], loss_on="all")


def test_the_names_of_tokens_and_none_for_tools_are_those_of_transformers(pair):
    names = {"sep_token": "<|head|>", "cls_token": "<mask>", "mask_token": "<think>"}
    names |= {"unk_token": "<mask>", "pad_token": {"content": "<|end|>", "__type": "AddedToken"}}
    template = (
        "{% if tools is none %}1{% endif %}{% if documents is none %}2{% endif %}{{ tools }}{{ documents }}"
        "{{ sep_token }}{{ cls_token }}{{ mask_token }}{{ pad_token }}{{ messages[0].content }}"
    )
    theirs, ours = pair(template, **names)
    chat = [said("user", "the cat")]
    ids, _ = ours.encode(chat, loss_on="all")
    assert ids.tolist() == theirs.apply_chat_template(chat)["input_ids"]
    assert {SPECIAL.index(token) for token in ("<|head|>", "<mask>", "<think>", "<|end|>")} <= {
        *ids
    }


def test_a_template_that_needs_more_memory_than_there_is_says_so(pair):
    with pytest.raises(UserError, match="ran out of memory"):
        pair("{{ messages[0].content * 10 ** 18 }}")[1].encode([said("user", "the cat")])
