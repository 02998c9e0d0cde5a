"""Read tokenizers of Hugging Face folders.

If a tokenizer of gptmini gives the same ids, gptmini uses its own tokenizer. Otherwise, the tokenizers library runs the
file. In this module, "theirs" are the tokenizers of Hugging Face and "ours" are the tokenizers of gptmini.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator
from typing_extensions import TypedDict  # pydantic requires this class before Python 3.12

from gptmini.settings import checked
from gptmini.tokenizer import (
    END_OF_TEXT,
    REPLACEMENT,
    SPLIT_PATTERN,
    BytePairTokenizer,
    CharTokenizer,
    LibraryTokenizer,
    Tokenizer,
)
from gptmini.tokenizer.byte_pairs import ALL_BYTES, BYTE_PATTERN
from gptmini.tokenizer.letters import letters_to_bytes
from gptmini.tokenizer.library import check_settings
from gptmini.tokenizer.library_errors import library_errors
from gptmini.untrusted import read_json, read_text
from gptmini.user_error import UserError

if TYPE_CHECKING:
    import tokenizers

# Random texts of these words are used to compare our tokenizer with the tokenizer of the library. The words contain all
# kinds of pieces.
LATIN = ("the", " The", " tokenizer", "'s", "'ll", "'", "é", " naïve", "a" * 30)
OTHERS = (" 1984", "3.14", "==", " (", ")", "_x", "日本", "🙂", "\u0301", "\u017f")
SPACES = (" ", "  ", "\n", "\n\n    ", "\t", "\u3000", "\xa0")
N_COMPARED = 2000  # number of random texts
# Keys of tokenizer_config.json for tokens that a chat template may use.
NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# Names of end-of-text in published tokenizers without tokenizer_config.json.
USUAL_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")


class Template(TypedDict):
    """A named chat template."""

    name: str
    template: str


def _named(templates: object) -> object:
    """Return chat templates as a list of named templates. A string becomes the template with the name 'default'."""
    if isinstance(templates, str):
        return [{"name": "default", "template": templates}]
    return [] if templates is None else templates


def _string_of(token: Any) -> Any:
    """Return the string of a token. A token may be an object; tokenizer.json has the other settings of the token."""
    return token.get("content") if isinstance(token, dict) else token


class Templates(TypedDict, total=False):
    """The chat templates of tokenizer_config.json."""

    chat_template: Annotated[list[Template], BeforeValidator(_named)]


# Maps keys of tokenizer_config.json, such as bos_token, to tokens.
Tokens = dict[str, Annotated[str | None, BeforeValidator(_string_of)]]


def read_tokenizer(
    path: Path,
    *,
    n_vocab: int | None = None,
    ends: Sequence[int] | None = None,
) -> Tokenizer:
    """Return the tokenizer in the file tokenizer.json of a folder.

    Return a tokenizer of gptmini if it gives the same ids and the folder has no chat template. Otherwise, the
    tokenizers library runs the file.

    Args:
        path: the folder.
        n_vocab: number of ids of the model. The tokenizer may have fewer ids. None if the folder has no model.
        ends: the ids at which a sample ends, from the config files of the model. The first id also separates documents.
            None if the folder has no model. The tokenizer's eos_token, or a common name, then determines the only end.

    Raises UserError if a file is missing or damaged, or has more ids than the model.
    """
    import tokenizers

    file = path / "tokenizer.json"
    if not file.exists():
        raise UserError(
            f"{path} has no tokenizer.json; save the tokenizer of the model with transformers: "
            f"AutoTokenizer.from_pretrained(MODEL).save_pretrained({str(path)!r})"
        )
    values = read_json(file)
    with library_errors(f"cannot load the tokenizer {file}"):
        check_settings(values)
        theirs = tokenizers.Tokenizer.from_file(str(file))

    by_id = {i: token for token, i in theirs.get_vocab(with_added_tokens=True).items()}
    ours = _ours(theirs, [by_id[i] for i in sorted(by_id)])
    settings = _tokenizer_config(path)
    chat = _chat_of(path, settings)
    if n_vocab is None:
        n_vocab = max(by_id, default=0) + 1
    if ends is None:
        names = (settings["eos_token"], *USUAL_ENDS)
        ends = [i for name in names for i, token in by_id.items() if token == name][:1]
    is_whole = sorted(by_id) == list(range(n_vocab))
    has_one_end = len(ends) <= 1  # a tokenizer of gptmini has at most one end id
    if ours is not None and chat is None and has_one_end and is_whole:
        with library_errors(f"{file}: the tokenizer cannot encode text"):
            if _are_same(theirs, ours):
                return ours

    try:
        return LibraryTokenizer(
            read_text(file),
            n_vocab=n_vocab,
            end_of_text=ends[0] if ends else None,
            more_ends=ends[1:],
            chat=chat,
            bos_token=settings["bos_token"],
        )
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def _chat_of(path: Path, settings: dict) -> dict[str, str] | None:
    """Return a dict with the chat template of a folder, under the key chat_template, and the named tokens.

    Return None if the folder has no chat template. settings is the result of _tokenizer_config.
    """
    template = settings["chat_template"].get("default")
    if (path / "chat_template.jinja").exists():
        template = read_text(path / "chat_template.jinja")
    if template is None:
        return None

    chat = {"chat_template": template}
    for name in NAMED_TOKENS:
        if settings[name] is not None:
            chat[name] = settings[name]
    return chat


def _tokenizer_config(path: Path) -> dict:
    """Return the tokenizer_config.json of a folder. Templates are in a dict by name, and tokens are strings.

    Raises UserError if a template or a token has the wrong type.
    """
    file = path / "tokenizer_config.json"
    config = read_json(file) if file.exists() else {}
    templates = checked(config, Templates, file).get("chat_template", [])
    by_name = {one["name"]: one["template"] for one in templates}
    tokens = checked({name: config.get(name) for name in NAMED_TOKENS}, Tokens, file)
    return config | tokens | {"chat_template": by_name}


def _ours(theirs: "tokenizers.Tokenizer", tokens: list[str]) -> Tokenizer | None:
    """Return the tokenizer of gptmini that has these tokens. `tokens` is in the order of the ids.

    Return None if gptmini has no such kind of tokenizer.
    """
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


def _are_same(theirs: "tokenizers.Tokenizer", ours: Tokenizer) -> bool:
    """Return whether two tokenizers give the same ids for single tokens, for joined tokens, and for random texts.

    Return False if the library adds ids before a text, because the tokenizers of gptmini do not add ids.
    """
    draw = random.Random(0)
    words = [*LATIN, *OTHERS, *SPACES]
    if isinstance(ours, CharTokenizer):
        words = list(ours.characters)
    tokens = [ours.decode([i]) for i in range(ours.n_vocab) if i != ours.end_of_text]
    whole_tokens = [token for token in tokens if REPLACEMENT not in token]

    texts = list(whole_tokens)
    for some in (words, whole_tokens):
        texts += ["".join(draw.choices(some, k=draw.randrange(1, 12))) for _ in range(N_COMPARED)]

    texts = [text for text in texts if END_OF_TEXT not in text]
    if theirs.encode(words[0]).ids[:1] != ours.encode(words[0])[:1]:
        return False
    batch = theirs.encode_batch(texts, add_special_tokens=False)
    expected = ours.encode_batch(texts)
    return all(encoded.ids == ids.tolist() for encoded, ids in zip(batch, expected, strict=True))
