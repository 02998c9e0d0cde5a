"""Chats with unusual templates or special tokens have the right ids and answers, or are refused."""

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from gptmini.tokenizer import LibraryTokenizer, RefusedChatError, chat_encoder_of

ANSWERED = [{"role": "assistant", "content": "yo  "}, {"role": "assistant", "content": "more"}]


def chats_of(template, **names):
    """Return the chat encoder of a byte tokenizer with the special token <s>."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Library(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>"])
    chat = {"chat_template": template, **names}
    coder = LibraryTokenizer(made.to_str(), n_vocab=257, end_of_text=256, chat=chat)
    return coder, chat_encoder_of(coder)


@pytest.mark.parametrize("changed", ["x | trim", "x[1:]", "x | upper"])
def test_a_template_that_changes_text_inside_its_tags_has_no_answers(changed):
    body = "{% generation %}{{ m.content }}{% endgeneration %}"
    template = f"{{% for m in messages %}}{{% set x %}}{body}{{% endset %}}[{{{{ {changed} }}}}]{{% endfor %}}"
    coder, chats = chats_of(template)
    if changed == "x | upper":  # keeps the marks in place
        ids, is_counted = chats.encode(ANSWERED)
        assert coder.decode(ids[is_counted]) == "YO  MORE"
        return
    with pytest.raises(RefusedChatError, match="loss_on=answers"):
        chats.encode(ANSWERED)
    chats.encode(ANSWERED, loss_on="all")
