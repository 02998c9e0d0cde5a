"""Read tokenizers of Hugging Face folders.

If gptmini exported the tokenizer, the result is a tokenizer of gptmini. Otherwise, the tokenizers library runs the
file. In this module, "theirs" are the tokenizers of Hugging Face and "ours" are the tokenizers of gptmini.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tokenizers
from pydantic import BeforeValidator
from tokenizers.processors import TemplateProcessing
from typing_extensions import TypedDict  # pydantic requires this class before Python 3.12

from gptmini.interop.tokenizer_writing import to_tokenizers
from gptmini.settings import checked
from gptmini.system.errors import UserError
from gptmini.system.untrusted import read_json, read_text
from gptmini.tokenizer import (
    ALL_BYTES,
    BYTE_PATTERN,
    END_OF_TEXT,
    SPLIT_PATTERN,
    BytePairTokenizer,
    CharTokenizer,
    LibraryTokenizer,
    Tokenizer,
    check_byte_pair_settings,
    letters_to_bytes,
    library_errors,
)

# Names of end-of-text in published tokenizers without tokenizer_config.json.
USUAL_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")


def _named(templates: Any) -> Any:
    # A string is the template with the name 'default'.
    return [{"name": "default", "template": templates}] if isinstance(templates, str) else templates


def _string_of(token: Any) -> Any:
    # A token may be an object. tokenizer.json has the other settings of the token.
    return token.get("content") if isinstance(token, dict) else token


class Template(TypedDict):
    """A named chat template."""

    name: str
    template: str


Token = Annotated[str | None, BeforeValidator(_string_of)]


class TokenizerConfig(TypedDict, total=False):
    """The part of tokenizer_config.json that gptmini reads: templates, and tokens that a chat template may use."""

    chat_template: Annotated[list[Template] | None, BeforeValidator(_named)]
    bos_token: Token
    eos_token: Token
    unk_token: Token
    sep_token: Token
    pad_token: Token
    cls_token: Token
    mask_token: Token


def read_tokenizer(
    path: Path,
    *,
    n_vocab: int | None = None,
    ends: Sequence[int] | None = None,
) -> Tokenizer:
    """Return the tokenizer in the file tokenizer.json of a folder.

    Return a tokenizer of gptmini if gptmini exported it and the folder has no chat template. Otherwise, the tokenizers
    library runs the file.

    Args:
        path: the folder.
        n_vocab: number of ids of the model. The tokenizer may have fewer ids. None if the folder has no model.
        ends: the ids at which a sample ends, from the config files of the model. The first id also separates documents.
            None if the folder has no model. The tokenizer's eos_token, or a common name, then determines the only end.
    """
    file = path / "tokenizer.json"
    if not file.exists():
        raise UserError(
            f"{path} has no tokenizer.json; save the tokenizer with transformers: "
            f"AutoTokenizer.from_pretrained(MODEL).save_pretrained({str(path)!r})"
        )
    values = read_json(file)
    with library_errors(f"cannot load the tokenizer {file}"):
        check_byte_pair_settings(values)
        theirs = tokenizers.Tokenizer.from_file(str(file))

    by_id = {i: token for token, i in theirs.get_vocab(with_added_tokens=True).items()}
    names, chat = _names_and_chat(path)
    if n_vocab is None:
        n_vocab = max(by_id, default=0) + 1
    if ends is None:
        usual = (names.get("eos_token"), *USUAL_ENDS)
        ends = [i for name in usual for i, token in by_id.items() if token == name][:1]

    # A config may claim any number of ids, so do not list them all.
    is_whole = len(by_id) == n_vocab and max(by_id) < n_vocab
    # A tokenizer of gptmini has at most one end id.
    if chat is None and len(ends) <= 1 and is_whole:
        ours = _ours(theirs, [by_id[i] for i in range(n_vocab)])
        if ours is not None and _is_export_of(ours, theirs):
            return ours

    try:
        return LibraryTokenizer(
            read_text(file),
            n_vocab=n_vocab,
            end_of_text=ends[0] if ends else None,
            more_ends=ends[1:],
            chat=chat,
            bos_token=names.get("bos_token"),
        )
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def _names_and_chat(path: Path) -> tuple[dict[str, str], dict[str, str] | None]:
    file = path / "tokenizer_config.json"
    config = checked(read_json(file) if file.exists() else {}, TokenizerConfig, file)
    templates = config.pop("chat_template", None) or []
    names = {name: token for name, token in config.items() if token is not None}

    template = {one["name"]: one["template"] for one in templates}.get("default")
    if (path / "chat_template.jinja").exists():
        template = read_text(path / "chat_template.jinja")
    return names, None if template is None else {"chat_template": template, **names}


def _ours(theirs: tokenizers.Tokenizer, tokens: list[str]) -> Tokenizer | None:
    ends = tokens[-1:] == [END_OF_TEXT]
    plain = tokens[:-1] if ends else tokens
    kind = type(theirs.model).__name__
    if kind == "WordLevel" and all(len(token) == 1 for token in plain):
        return CharTokenizer("".join(plain), end_of_text=ends)
    if kind != "BPE" or not ends:
        return None
    try:
        ranks = [letters_to_bytes(token) for token in plain]
        return BytePairTokenizer(BYTE_PATTERN if ranks == ALL_BYTES else SPLIT_PATTERN, ranks)
    except (KeyError, UserError):  # a character is not a letter of a byte, or a byte is missing
        return None


def _is_export_of(ours: Tokenizer, theirs: tokenizers.Tokenizer) -> bool:
    theirs.no_truncation()
    theirs.no_padding()
    exported = to_tokenizers(ours)
    if theirs.to_str() == exported.to_str() or _is_like_gpt2(json.loads(theirs.to_str())):
        return True
    # transformers writes this step, which adds nothing, into each file that it saves.
    exported.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    return theirs.to_str() == exported.to_str()


def _is_like_gpt2(values: dict[str, Any]) -> bool:
    """Whether a tokenizer.json has the form of GPT-2's published one, in which merge i makes the token 256 + i."""
    model = values["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)[256:]
    merged = ["".join(pair) for pair in model["merges"]]

    steps = [values[name] for name in ("pre_tokenizer", "post_processor", "decoder")]
    settings = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")

    return (
        values["normalizer"] is None
        and [step and step["type"] for step in steps] == ["ByteLevel"] * 3
        and not values["pre_tokenizer"]["add_prefix_space"]
        and values["pre_tokenizer"]["use_regex"]
        and not any(model[name] for name in settings)
        and merged == [token for token in tokens if token != END_OF_TEXT]
        and len(values["added_tokens"]) == 1
    )
