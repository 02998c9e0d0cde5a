"""Convert a tokenizer.json to the tokenizer of a GGUF file, if llama.cpp has a pre-tokenizer that gives the same ids.

Source: llama.cpp, src/llama-vocab.cpp. This file contains the pre-tokenizers by name, and the merging by scores of
SentencePiece.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gptmini.interop.tokenizer_writing import to_tokenizers
from gptmini.system.errors import UserError
from gptmini.tokenizer import (
    METASPACE,
    SPLIT_PATTERN,
    BytePairTokenizer,
    LibraryTokenizer,
    Tokenizer,
    bos_id_of,
    bytes_to_letters,
    plain_jinja,
)

if TYPE_CHECKING:
    import gguf

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_WORDS}\p{{N}}{{1,3}}{_REST}"
QWEN2 = rf"{_WORDS}\p{{N}}{_REST}"
DIGITS = "digits"  # makes each digit a separate piece before the next step
LETTERS = "letters"  # writes each byte as a letter, without splitting the text
GPT2 = "GPT-2's rule"  # splits with GPT-2's pattern, and writes each byte as a letter
# llama.cpp's name of each pre-tokenizer. A key has three entries: the steps of the pre_tokenizer in tokenizer.json,
# whether ignore_merges is set, and the normalizer.
RULES: dict[tuple, str] = {
    ((GPT2,), False, None): "gpt-2",
    ((SPLIT_PATTERN, LETTERS), True, None): "gpt-2",  # the byte-pair tokenizers of gptmini
    ((DIGITS, GPT2), False, None): "smollm",
    ((LLAMA3, LETTERS), True, None): "llama-bpe",
    ((QWEN2, LETTERS), False, "NFC"): "qwen2",
}
# llama.cpp requires at least one merge. UTF-8 never contains these two bytes. Therefore, llama.cpp never applies
# this merge.
NO_MERGE = (bytes_to_letters(b"\xc0"), bytes_to_letters(b"\xc1"))
NO_SCORE = -1e9  # score of a token that no merge makes
NO_RULE = (
    "llama.cpp has no pre-tokenizer that splits text like this tokenizer; export a folder instead"
)


def add_tokenizer(
    writer: "gguf.GGUFWriter", tokenizer: Tokenizer, special_ids: Mapping[str, Any]
) -> None:
    """Add the vocabulary, the merges or scores, and the special ids of a tokenizer to a GGUF file.

    special_ids contains the ids that config.json has for the same model.
    Raises UserError if llama.cpp has no such tokenizer or pre-tokenizer.
    """
    is_bytes_alone = isinstance(tokenizer, BytePairTokenizer) and len(tokenizer.ranks) == 256
    template = tokenizer.chat_template
    if isinstance(tokenizer, BytePairTokenizer):
        tokenizer = LibraryTokenizer(
            to_tokenizers(tokenizer).to_str(),
            n_vocab=tokenizer.n_vocab,
            end_of_text=tokenizer.end_of_text,
        )
    if not isinstance(tokenizer, LibraryTokenizer):
        raise UserError(
            f"a GGUF file requires a byte-pair tokenizer, got kind {tokenizer.kind}; export a folder instead, or "
            "train with tokenizer=bpe"
        )
    tree = json.loads(tokenizer.text)
    model = tree["model"]
    if model.get("type") != "BPE":
        raise UserError(
            f"a GGUF file requires a byte-pair tokenizer, got {model.get('type')}; export a folder instead"
        )
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    tokens, types, scores = _vocabulary(tree, merges, tokenizer.n_vocab)

    if model.get("byte_fallback"):
        _check_spaces(tree)
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores(scores)
        writer.add_add_space_prefix(True)
    else:
        writer.add_tokenizer_model("gpt2")
        # If each id is a byte, the ids do not depend on the way in which the text is split.
        writer.add_tokenizer_pre("gpt-2" if is_bytes_alone else _rule_of(tree))
        writer.add_token_merges([f"{left} {right}" for left, right in merges or [NO_MERGE]])
    writer.add_token_list(tokens)
    writer.add_token_types(types)

    # In a folder, an id may be a list of ids, or an id of no token. A GGUF file needs the id of one token.
    n_vocab = tokenizer.n_vocab
    ids = {name: i for name, i in special_ids.items() if type(i) is int and 0 <= i < n_vocab}
    # Always write BOS and end-of-text. If they are missing in a byte-pair tokenizer, llama.cpp uses the id 11 for both.
    writer.add_bos_token_id(ids.get("bos_token_id", bos_id_of(tokenizer) or 0))
    writer.add_eos_token_id(tokenizer.end_of_text or 0)
    if tokenizer.answer_end is not None:
        writer.add_eot_token_id(tokenizer.answer_end)  # llama.cpp stops here too
    if "pad_token_id" in ids:
        writer.add_pad_token_id(ids["pad_token_id"])
    writer.add_add_bos_token(bool(tokenizer.prefix_ids))
    if template is not None:
        writer.add_chat_template(plain_jinja(template))


def _check_spaces(tree: dict) -> None:
    # Llama's tokenizer writes spaces as SentencePiece does and adds a space before each text.
    prepend = {"type": "Prepend", "prepend": METASPACE}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": METASPACE}
    is_llamas = tree.get("normalizer") == {"type": "Sequence", "normalizers": [prepend, replace]}
    if not is_llamas or tree.get("pre_tokenizer") is not None:
        raise UserError(NO_RULE)


def _rule_of(tree: dict) -> str:
    pre_tokenizer = tree.get("pre_tokenizer") or {}
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    normalizer = (tree.get("normalizer") or {}).get("type")
    ignores_merges = bool(tree["model"].get("ignore_merges"))
    rule = RULES.get((tuple(map(_name_of, steps)), ignores_merges, normalizer))
    if rule is None:
        raise UserError(NO_RULE)
    return rule


def _name_of(step: dict) -> str:
    """Return the entry of a step in the keys of RULES: a pattern or a name. For any other step, return its JSON."""
    plain = {key: value for key, value in step.items() if key != "trim_offsets"}
    if plain == {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}:
        return LETTERS
    if plain == {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
        return GPT2
    if plain == {"type": "Digits", "individual_digits": True}:
        return DIGITS
    pattern = plain.get("pattern", {})
    if plain == {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}:
        return pattern.get("Regex", "")
    return json.dumps(plain)


def _vocabulary(
    tree: dict, merges: list[list[str]], n_vocab: int
) -> tuple[list[str], list["gguf.TokenType"], list[float]]:
    """Return the token, type and score of each id. Earlier merges have higher scores. Ids without token are unused."""
    import gguf

    rank_of = {f"{left}{right}": rank for rank, (left, right) in reversed([*enumerate(merges)])}
    kind = gguf.TokenType
    tokens = [f"[PAD{i}]" for i in range(n_vocab)]
    types = [kind.UNUSED] * n_vocab
    scores = [NO_SCORE] * n_vocab
    for token, i in tree["model"]["vocab"].items():
        tokens[i] = token
        is_byte = len(token) == 6 and token.startswith("<0x") and token.endswith(">")
        types[i] = kind.BYTE if is_byte else kind.NORMAL
        if token in rank_of:
            scores[i] = -float(rank_of[token])
    for added in tree.get("added_tokens") or []:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = kind.CONTROL if added["special"] else kind.USER_DEFINED
    unknown = tree["model"].get("unk_token")
    if unknown in tree["model"]["vocab"]:
        types[tree["model"]["vocab"][unknown]] = kind.UNKNOWN
    return tokens, types, scores
