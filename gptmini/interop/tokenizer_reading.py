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
from gptmini.untrusted import LARGEST_JSON, file_size, read_json, read_text
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
# The tokenizer files of older GPT-2 folders. These files do not contain the pattern that splits text into pieces.
GPT2_FILES = ("vocab.json", "merges.txt")
# Keys that list more special tokens in transformers 4 and in transformers 5.
MORE_TOKENS = ("additional_special_tokens", "extra_special_tokens")


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
    kind: str = "gpt2",
) -> Tokenizer:
    """Return the tokenizer of a folder. Read tokenizer.json, or vocab.json and merges.txt of an older GPT-2 folder.

    Return a tokenizer of gptmini if it gives the same ids and the folder has no chat template. Otherwise, the
    tokenizers library runs the file.

    Args:
        path: the folder.
        n_vocab: number of ids of the model. The tokenizer may have fewer ids. None if the folder has no model.
        ends: the ids at which a sample ends, from the config files of the model. The first id also separates documents.
            None if the folder has no model. The tokenizer's eos_token, or a common name, then determines the only end.
        kind: the model type. It determines the pattern that splits text, because vocab.json and merges.txt do not
            contain this pattern.

    Raises UserError if a file is missing or damaged, or has more ids than the model.
    """
    file = _tokenizer_file(path, kind)
    theirs = _read_theirs(file)

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

    text = theirs.to_str() if file.name == "vocab.json" else read_text(file)
    try:
        return LibraryTokenizer(
            text,
            n_vocab=n_vocab,
            end_of_text=ends[0] if ends else None,
            more_ends=ends[1:],
            chat=chat,
            bos_token=settings["bos_token"],
        )
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def _tokenizer_file(path: Path, kind: str) -> Path:
    """Return the vocabulary file in a folder. Raises UserError if no file determines all ids of the tokenizer."""
    file = path / "tokenizer.json"
    if file.exists():
        return file

    is_gpt2s = all((path / name).exists() for name in GPT2_FILES)
    if is_gpt2s and kind == "gpt2":
        return path / GPT2_FILES[0]

    others = [name for name in (*GPT2_FILES, "tokenizer.model") if (path / name).exists()]
    found = f" (it has {' and '.join(others)})" if others else ""
    source = repr(str(path)) if others else "BASE_MODEL"
    raise UserError(
        f"{path} is a {kind} model without tokenizer.json{found}; save the fast tokenizer of transformers in the "
        f"folder: AutoTokenizer.from_pretrained({source}).save_pretrained({str(path)!r})"
    )


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


def _read_theirs(file: Path) -> "tokenizers.Tokenizer":
    """Load tokenizer.json, or vocab.json with merges.txt, with the tokenizers library.

    Raises UserError if a file is damaged.
    """
    import tokenizers

    values = read_json(file)
    if file.name == "vocab.json":
        # Check the size here, because the library opens this file itself.
        file_size(file.with_name("merges.txt"), LARGEST_JSON)
    with library_errors(f"cannot load the tokenizer {file}"):
        if file.name == "vocab.json":
            return _of_vocabulary_and_merges(file)
        check_settings(values)
        return tokenizers.Tokenizer.from_file(str(file))


def _of_vocabulary_and_merges(file: Path) -> "tokenizers.Tokenizer":
    """Return GPT-2's tokenizer from vocab.json and merges.txt, with the tokens that other files of the folder add.

    This function reads the files in the same way as GPT2Tokenizer of transformers 5.24. Sources:
    tokenization_utils_base.py and tokenization_gpt2.py of transformers.
    """
    import tokenizers
    from tokenizers import AddedToken, decoders, models, pre_tokenizers

    vocabulary, merges = models.BPE.read_file(str(file), str(file.with_name("merges.txt")))
    settings = _json_beside(file, "tokenizer_config.json")
    added, special = _added_tokens(file, settings)
    vocabulary |= {token["content"]: i for i, token in added.items()}
    if len(set(vocabulary.values())) != len(vocabulary):
        raise ValueError("two tokens have the same id")

    theirs = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=settings.get("add_prefix_space") is True
    )
    theirs.decoder = decoders.ByteLevel()

    # A named token, such as end-of-text, may be in the vocabulary without being an added token. It is special too.
    known = [token["content"] for token in added.values()]
    for name in special:
        if name in vocabulary and name not in known:
            theirs.add_special_tokens([AddedToken(name, special=True, normalized=False)])
    theirs.add_tokens([AddedToken(**added[i]) for i in sorted(added)])
    return theirs


def _added_tokens(file: Path, settings: dict) -> tuple[dict[int, dict], list[str]]:
    """Return the tokens that were added to a vocab.json, and the strings of all special tokens.

    The first result maps the id of each added token to the settings of this token. tokenizer_config.json lists added
    tokens with their settings. In older folders, added_tokens.json has only the ids.
    """
    names: dict = settings
    if "added_tokens_decoder" not in settings:
        names = settings | _json_beside(file, "special_tokens_map.json")
    listed = [names.get(name) for name in NAMED_TOKENS]
    for key in MORE_TOKENS:
        more = names.get(key) or []
        listed += more.values() if isinstance(more, dict) else more
    special = [_string_of(token) for token in listed]
    special.append(END_OF_TEXT)  # transformers uses this token by default

    if "added_tokens_decoder" in settings:
        return {int(i): token for i, token in settings["added_tokens_decoder"].items()}, special

    added = {}
    for token, i in _json_beside(file, "added_tokens.json").items():
        is_special = token in special
        added[i] = {"content": token, "special": is_special, "normalized": not is_special}
    return added, special


def _json_beside(file: Path, name: str) -> dict:
    """Return the object in another JSON file of the same folder. Return an empty dict if the file does not exist."""
    beside = file.with_name(name)
    return read_json(beside) if beside.exists() else {}


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
