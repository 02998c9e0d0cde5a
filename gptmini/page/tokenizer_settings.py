"""Describe a tokenizer for the page, where tokenizer.js encodes and decodes."""

import json
from itertools import pairwise
from typing import Any

from gptmini.system.errors import UserError
from gptmini.tokenizer import (
    END_OF_TEXT,
    SPACES,
    SPLIT_PATTERN,
    BytePairTokenizer,
    LibraryTokenizer,
    Tokenizer,
    chat_encoder_of,
)

# GPT-2's pattern in the syntax of JavaScript, where \s has other characters, and where no quantifier is possessive.
_SPACE = "".join(f"\\u{ord(character):04x}" for character in SPACES)
GPT2_PATTERN = (
    rf"'(?:[sdmt]|ll|ve|re)| ?\p{{L}}+| ?\p{{N}}+| ?[^{_SPACE}\p{{L}}\p{{N}}]+|"
    rf"[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]"
)
EACH_CHARACTER = r"[\s\S]"
DIGITS = r"\p{N}|[^\p{N}]+"


def tokenizer_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the settings that tokenizer.js takes. The setting chat is None if the page cannot chat.

    Raises UserError if the page cannot encode text with this tokenizer.
    """
    size = max(tokenizer.bytes_of) + 1
    settings = {
        # Each character stands for a byte.
        "tokens": [tokenizer.token_bytes(i).decode("latin-1") for i in range(size)],
        "special": {},
        "split": [EACH_CHARACTER],
        "merges": None,
        "whole": True,
        "prefix": list(tokenizer.prefix_ids),
        "empty": [tokenizer.end_of_text or 0],
        "ends": tokenizer.ends,
        "chat": None,
    }

    if isinstance(tokenizer, LibraryTokenizer):
        settings |= _of_library(json.loads(tokenizer.text))
    elif tokenizer.end_of_text is not None:
        settings["special"] = {END_OF_TEXT: tokenizer.end_of_text}
    if isinstance(tokenizer, BytePairTokenizer) and tokenizer.pattern == SPLIT_PATTERN:
        settings["split"] = [GPT2_PATTERN]

    if tokenizer.chat_template is not None:
        settings["chat"] = _chat_texts(tokenizer)
    return settings


def _of_library(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a tokenizer.json. Raises UserError with the part that the page does not have."""
    model = tree["model"]
    if model["type"] != "BPE" or model.get("byte_fallback"):
        raise _refused("model", model["type"])
    if tree.get("normalizer"):
        raise _refused("normalizer", tree["normalizer"]["type"])

    special = {}
    for token in tree.get("added_tokens") or []:
        if not token["special"]:
            raise _refused("added token", token["content"])
        special[token["content"]] = token["id"]

    before = tree.get("pre_tokenizer") or {}
    steps = before["pretokenizers"] if before.get("type") == "Sequence" else [before]
    split = []
    for step in steps:
        match step:
            case {"type": "ByteLevel", "add_prefix_space": False}:
                split += [GPT2_PATTERN] if step.get("use_regex", True) else []
            case {"type": "Digits", "individual_digits": True}:
                split.append(DIGITS)
            case {"type": "Split", "pattern": {"Regex": pattern}} if pattern == SPLIT_PATTERN:
                split.append(GPT2_PATTERN)
            case _:
                raise _refused("pre_tokenizer", step.get("type"))
    if steps[-1].get("type") != "ByteLevel":
        raise _refused("pre_tokenizer", steps[-1].get("type"))

    # The merges of older files are strings.
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    return {
        "special": special,
        "split": split,
        "merges": [model["vocab"][token] for pair in pairs for token in pair],
        "whole": model.get("ignore_merges", False),
    }


def _refused(part: str, got: object) -> UserError:
    return UserError(
        f"a page supports tokenizers of characters and GPT-2's byte pairs, got the {part} {got!r:.80}; "
        "export a folder or a GGUF file"
    )


def _chat_texts(tokenizer: Tokenizer) -> dict[str, str] | None:
    """Return the texts that a chat template puts between messages, by the roles before and behind: "user>assistant".

    The text for "user>" ends a chat and starts an answer. Return None if the template renders anything else, such as
    a date or the number of a message.
    """
    encoder = chat_encoder_of(tokenizer)
    texts = {"leading": encoder.leading}
    # A template that trims a message, changes its case or cuts out thoughts changes this content.
    content = "q{} </think> <B "
    for roles in (["user"], ["user", "assistant", "user"], ["system", "user", "assistant", "user"]):
        messages = [{"role": role, "content": content.format(i)} for i, role in enumerate(roles)]
        try:
            rest = encoder.prompt_text(messages)
        except UserError:
            if roles[0] == "system":
                continue  # some templates have no system message
            return None

        for i, (before, behind) in enumerate(pairwise(["", *roles])):
            between, found, rest = rest.partition(content.format(i))
            if not found or texts.setdefault(f"{before}>{behind}", between) != between:
                return None
        if texts.setdefault("user>", rest) != rest:
            return None
    return texts
