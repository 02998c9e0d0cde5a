"""Export gptmini's tokenizers to the tokenizers library, and to files for transformers."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gptmini.tokenizer import (
    END_OF_TEXT,
    BytePairTokenizer,
    CharTokenizer,
    LibraryTokenizer,
    Tokenizer,
    bos_id_of,
)
from gptmini.tokenizer.byte_pairs import BYTE_PATTERN
from gptmini.tokenizer.letters import bytes_to_letters
from gptmini.user_error import UserError

if TYPE_CHECKING:
    import tokenizers

ANY_CHARACTER = r"[\s\S]"


def to_tokenizers(tokenizer: Tokenizer) -> "tokenizers.Tokenizer":
    """Return a tokenizer of the tokenizers library that gives the same ids for every text.

    There is one exception: the library encodes the string <|endoftext|> in a text as the end-of-text id.
    Raises UserError unless the tokenizer is one of gptmini's own kinds.
    """
    from tokenizers import AddedToken

    if isinstance(tokenizer, CharTokenizer):
        exported = _of_characters(tokenizer)
    elif isinstance(tokenizer, BytePairTokenizer):
        exported = _of_byte_pairs(tokenizer)
    else:
        raise UserError(f"cannot export a tokenizer of kind {tokenizer.kind}")

    # Add end-of-text after the model is built, so that its id follows the ids of the model.
    if tokenizer.end_of_text is not None:
        exported.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return exported


def _of_characters(tokenizer: CharTokenizer) -> "tokenizers.Tokenizer":
    """Return a word-level model with a word for each character.

    A byte-pair model without merges would silently drop unknown characters.
    """
    import tokenizers
    from tokenizers import Regex, decoders, models, pre_tokenizers

    vocabulary = {character: i for i, character in enumerate(tokenizer.characters)}
    exported = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    exported.pre_tokenizer = pre_tokenizers.Split(Regex(ANY_CHARACTER), behavior="isolated")
    exported.decoder = decoders.Fuse()
    return exported


def _of_byte_pairs(tokenizer: BytePairTokenizer) -> "tokenizers.Tokenizer":
    """Return a byte-pair model in which every pair that forms a token is a merge.

    transformers converts tiktoken's tokenizers in the same way.
    """
    import tokenizers
    from tokenizers import Regex, decoders, models, pre_tokenizers

    vocabulary = {bytes_to_letters(token): rank for rank, token in enumerate(tokenizer.ranks)}
    # tiktoken looks up the entire piece before it merges; ignore_merges does the same.
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
    """Return the pairs of tokens that form a token, in letters, in merge order.

    tiktoken merges two adjacent tokens if their joined bytes are a token. It begins with the pair whose token has the
    lowest rank. Therefore every pair of tokens that joins to a token is a merge.
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
    is_cut: bool = False,
) -> None:
    """Write tokenizer.json and tokenizer_config.json, which transformers reads as PreTrainedTokenizerFast.

    Args:
        tokenizer, folder: any tokenizer, and an existing folder.
        context_length: most tokens that the model accepts.
        published: the tokenizer_config.json of the folder that the tokenizer came from, or None.
        is_cut: whether the model of that folder accepted more tokens.
    """
    if isinstance(tokenizer, LibraryTokenizer):
        text = tokenizer.text
    else:
        text = to_tokenizers(tokenizer).to_str(pretty=True)
    (folder / "tokenizer.json").write_bytes(text.encode("utf-8"))

    config: dict[str, Any] = dict(published or {})
    if published is None:
        config = _own_config(tokenizer)
    if published is None or is_cut:
        config["model_max_length"] = context_length
    # Without this class, transformers 5 builds GPT-2's own tokenizer and drops ignore_merges.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"

    if isinstance(tokenizer, LibraryTokenizer) and tokenizer.chat is not None:
        templates = config.get("chat_template")
        config |= tokenizer.chat
        # A list may have several templates. The tokenizer stores only the template with the name default.
        if isinstance(templates, list):
            default = {"name": "default", "template": tokenizer.chat.get("chat_template")}
            config["chat_template"] = [
                default if one["name"] == "default" else one for one in templates
            ]
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _own_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokenizer_config.json of a tokenizer without published settings; class and length are not included."""
    config: dict[str, Any] = {"clean_up_tokenization_spaces": False}
    for name, i in (
        ("bos_token", bos_id_of(tokenizer)),
        ("eos_token", tokenizer.end_of_text),
        # Padding a batch of prompts requires a token. Use end-of-text, because it never occurs inside a document.
        ("pad_token", tokenizer.end_of_text),
    ):
        if i is not None:
            config[name] = tokenizer.decode([i])
    # A model continues after the last token of a row, so padding is on the left.
    config["padding_side"] = "left"
    return config
