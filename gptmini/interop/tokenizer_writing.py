"""Export the tokenizers of gptmini to the tokenizers library, and to files for transformers."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from gptmini.system.errors import UserError
from gptmini.tokenizer import (
    BYTE_PATTERN,
    END_OF_TEXT,
    BytePairTokenizer,
    CharTokenizer,
    LibraryTokenizer,
    Tokenizer,
    bos_id_of,
    bytes_to_letters,
)


def to_tokenizers(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Return a tokenizer of the tokenizers library that gives the same ids for every text.

    There is one exception: the library encodes the string <|endoftext|> in a text as the end-of-text id.
    Raises UserError unless the tokenizer is a CharTokenizer or a BytePairTokenizer.
    """
    if isinstance(tokenizer, CharTokenizer):
        exported = _of_characters(tokenizer)
    elif isinstance(tokenizer, BytePairTokenizer):
        exported = _of_byte_pairs(tokenizer)
    else:
        raise UserError(f"cannot export a tokenizer of kind {tokenizer.kind}")

    # Add end-of-text after the model is built. Then the id of end-of-text follows the ids of the model.
    if tokenizer.end_of_text is not None:
        exported.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return exported


def _of_characters(tokenizer: CharTokenizer) -> tokenizers.Tokenizer:
    """Return a word-level tokenizer. A byte-pair model without merges would silently drop unknown characters."""
    vocabulary = {character: i for i, character in enumerate(tokenizer.characters)}
    exported = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    exported.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    exported.decoder = decoders.Fuse()
    return exported


def _of_byte_pairs(tokenizer: BytePairTokenizer) -> tokenizers.Tokenizer:
    vocabulary = {bytes_to_letters(token): rank for rank, token in enumerate(tokenizer.ranks)}
    # Before tiktoken merges, it looks up the entire piece. The option ignore_merges has the same effect.
    model = models.BPE(vocab=vocabulary, merges=list_merges(tokenizer.ranks), ignore_merges=True)
    exported = tokenizers.Tokenizer(model)

    to_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if tokenizer.pattern == BYTE_PATTERN and len(tokenizer.ranks) == 256:
        exported.pre_tokenizer = to_letters
    else:
        by_rule = pre_tokenizers.Split(Regex(tokenizer.pattern), behavior="isolated")
        exported.pre_tokenizer = pre_tokenizers.Sequence([by_rule, to_letters])
    exported.decoder = decoders.ByteLevel()
    return exported


def list_merges(ranks: list[bytes]) -> list[tuple[str, str]]:
    """Return the merges in order, written in letters: each pair of shorter tokens that together are a token.

    tiktoken merges two adjacent tokens if their joined bytes are a token. It starts with the pair that forms the token
    with the lowest rank. transformers converts the tokenizers of tiktoken in the same way.
    """
    rank_of = {token: rank for rank, token in enumerate(ranks)}
    merges = []
    for token in ranks:
        pairs = []
        for i in range(1, len(token)):
            left = rank_of.get(token[:i])
            right = rank_of.get(token[i:])
            if left is not None and right is not None:
                pairs.append((left, right))
        for left, right in sorted(pairs):
            merges.append((bytes_to_letters(ranks[left]), bytes_to_letters(ranks[right])))
    return merges


def write_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    context_length: int,
    published: dict[str, Any] | None = None,
) -> None:
    """Write tokenizer.json and tokenizer_config.json. transformers reads these files as PreTrainedTokenizerFast.

    context_length is the maximum number of tokens that the model accepts. published is the tokenizer_config.json of the
    original folder, or None if there is no such file.
    """
    if isinstance(tokenizer, LibraryTokenizer):
        text = tokenizer.text
    else:
        text = to_tokenizers(tokenizer).to_str(pretty=True)
    (folder / "tokenizer.json").write_bytes(text.encode("utf-8"))

    config = _own_config(tokenizer, context_length) if published is None else published
    # Without this class, transformers 5 builds the tokenizer class of GPT-2 and ignores ignore_merges.
    config = config | {"tokenizer_class": "PreTrainedTokenizerFast"}
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")

    template = tokenizer.chat_template
    entry = config.get("chat_template")
    entries = entry if isinstance(entry, list) else [entry]
    templates = [one.get("template") if isinstance(one, dict) else one for one in entries]
    if template is not None and template not in templates:
        (folder / "chat_template.jinja").write_bytes(template.encode("utf-8"))


def _own_config(tokenizer: Tokenizer, context_length: int) -> dict[str, Any]:
    config: dict[str, Any] = {"clean_up_tokenization_spaces": False}
    for name, i in (
        ("bos_token", bos_id_of(tokenizer)),
        ("eos_token", tokenizer.end_of_text),
        # A token is required to pad a batch of prompts. Use end-of-text, because it never occurs inside a document.
        ("pad_token", tokenizer.end_of_text),
    ):
        if i is not None:
            config[name] = tokenizer.decode([i])
    # A model continues after the last token of a row. Therefore, the padding is on the left.
    config["padding_side"] = "left"
    config["model_max_length"] = context_length
    return config
