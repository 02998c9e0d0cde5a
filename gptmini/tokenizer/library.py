"""Tokenizers of models from other programs. The tokenizers library runs the tokenizer.json of these models."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np
import tokenizers
from pydantic import NonNegativeInt, PositiveInt, validate_call

from gptmini.settings import STRICT
from gptmini.system.errors import UserError
from gptmini.tokenizer.byte_pairs import group_texts
from gptmini.tokenizer.chat.coder import ChatVocabulary
from gptmini.tokenizer.chat.encoder import chat_encoder_of
from gptmini.tokenizer.letters import letters_to_bytes
from gptmini.tokenizer.rust_errors import library_errors
from gptmini.tokenizer.tokenizer import Tokenizer

METASPACE = "\u2581"  # this character stands for a space in SentencePiece's vocabularies
# A ByteFallback decoder decodes a token of this form as a byte. Any other token stands for its own characters.
BYTE_TOKEN = re.compile("<0x[+0-9A-Fa-f][0-9A-Fa-f]>")
# Settings of byte pairs that must be unset. dropout makes ids random. The other two settings can crash the library
# and end the process.
REFUSED = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")


class LibraryTokenizer(Tokenizer):
    """A tokenizer that runs an unchanged tokenizer.json. The string of a special token in a text is ordinary text."""

    kind = "tokenizers"

    @validate_call(config=STRICT)
    def __init__(
        self,
        text: str,
        *,
        n_vocab: PositiveInt,
        end_of_text: NonNegativeInt | None,
        more_ends: Sequence[NonNegativeInt] = (),
        chat: dict[str, str] | None = None,
        bos_token: str | None = None,
    ) -> None:
        """Load the content of a tokenizer.json.

        Args:
            text: the content of the file. It is stored unchanged.
            n_vocab: number of ids of the model. A model may have more ids than its tokenizer.
            end_of_text: the id that separates documents, or None.
            more_ends: other ids at which a sample ends too.
            chat: the chat template, and the named tokens that it may use, such as bos_token. None without a template.
            bos_token: the bos_token of tokenizer_config.json. It is used only if chat is None.

        Raises UserError if the library cannot use the tokenizer, or if its ids are random or exceed the vocabulary.
        """
        with library_errors("cannot load the tokenizer"):
            tree = json.loads(text)
            check_byte_pair_settings(tree)
            self._tokenizer = tokenizers.Tokenizer.from_str(text)

        # The file stores the truncation and padding of its last user. These settings would silently change the ids.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True

        self.text = text
        self.n_vocab = n_vocab
        self.end_of_text = end_of_text
        self._more_ends = more_ends
        self.chat = chat
        self.chat_template = None if chat is None else chat.get("chat_template")
        self.bos_token = bos_token if chat is None else chat.get("bos_token")

        with library_errors("the tokenizer cannot encode text"):
            self.prefix_ids: Sequence[int] = self._ids_before_a_text()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        named = None if self.bos_token is None else vocabulary.get(self.bos_token)
        self.bos_id: int | None = None if self.prefix_ids or named == end_of_text else named
        self.bytes_of = _bytes_of_ids(vocabulary, tree)
        self.prefix_text = " " if self.decode(self.encode("a")).startswith(" ") else ""

        ids = [*self.bytes_of, *more_ends, *([] if end_of_text is None else [end_of_text])]
        if max(ids, default=0) >= n_vocab:
            raise UserError(
                f"the tokenizer's ids must be below vocab_size={n_vocab} of the model, got {max(ids)}"
            )

    def encode_batch(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Yield the ids of each text as a uint32 array of shape (n,). Short texts are encoded together."""
        for group in group_texts(texts):
            with library_errors("the tokenizer cannot encode text"):
                try:
                    encoded = self._tokenizer.encode_batch_fast(group, add_special_tokens=False)
                except (TypeError, UnicodeEncodeError):  # the text is not valid Unicode
                    raise UserError(
                        "text must not contain lone surrogates; check that the input is UTF-8"
                    ) from None
            for one in encoded:
                yield np.array(one.ids, dtype=np.uint32)

    def chat_vocabulary(self) -> ChatVocabulary:
        """Return what the encoder of chats needs. The named tokens of the chat template are special tokens, too."""
        with_special = tokenizers.Tokenizer.from_str(self.text)
        with_special.no_truncation()
        with_special.no_padding()

        # transformers treats a named token as special, even if this token is only a word of the vocabulary.
        names = {
            name: token for name, token in (self.chat or {}).items() if name != "chat_template"
        }
        added = json.loads(self.text).get("added_tokens") or []
        added_strings = {token["content"] for token in added}
        vocabulary = self._tokenizer.get_vocab()
        words = [
            token for token in names.values() if token in vocabulary and token not in added_strings
        ]
        with_special.add_special_tokens(words)

        return ChatVocabulary(
            names=names,
            special=[token["content"] for token in added if token["special"]],
            words=words,
            coder=with_special,
            plain_coder=self._tokenizer,
        )

    @cached_property
    def answer_end(self) -> int | None:
        """The id of the added token that closes an answer in the chat template. None if there is no such token."""
        if self.chat_template is None:
            return None
        with suppress(UserError):  # a model whose template is invalid can still continue text
            added = self._tokenizer.get_added_tokens_decoder()
            behind = chat_encoder_of(self).ids_behind_answer()
            return next((i for i in behind if i in added and added[i].content.strip()), None)
        return None

    @cached_property
    def more_ends(self) -> Sequence[int]:
        """Other ids at which a sample ends too, such as answer_end."""
        ends = dict.fromkeys([*self._more_ends, self.answer_end])
        return [i for i in ends if i is not None and i != self.end_of_text]

    def with_template(self, template: str) -> "LibraryTokenizer":
        """Return a copy with the given chat template, which may use eos_token, and bos_token if there is one."""
        names = {
            "eos_token": self.end_of_text,
            "bos_token": next(iter(self.prefix_ids), self.bos_id),
        }
        tokens = {
            name: self._tokenizer.id_to_token(i) for name, i in names.items() if i is not None
        }
        named_tokens = {name: token for name, token in tokens.items() if token is not None}

        return LibraryTokenizer(
            self.text,
            n_vocab=self.n_vocab,
            end_of_text=self.end_of_text,
            more_ends=self._more_ends,
            chat={"chat_template": template, **named_tokens},
        )

    def _ids_before_a_text(self) -> list[int]:
        text = self._tokenizer.encode("a", add_special_tokens=False).ids
        with_others = self._tokenizer.encode("a").ids
        for i in range(len(with_others)):
            if with_others[i : i + len(text)] == text:
                return with_others[:i]
        return []

    def to_dict(self) -> dict:
        """Return the state that from_dict reads, in plain JSON types."""
        state = {
            "kind": self.kind,
            "json": self.text,
            "n_vocab": self.n_vocab,
            "end_of_text": self.end_of_text,
            "more_ends": list(self._more_ends),
        }
        if self.chat is not None:
            return state | {"chat": self.chat}
        # Add bos_token only if there is no `chat`, because the digest of these keys identifies prepared texts.
        return state if self.bos_id is None else state | {"bos_token": self.bos_token}


def check_byte_pair_settings(tree: dict) -> None:
    """Raise ValueError for settings of byte pairs that make ids random or that can crash the library."""
    model = tree.get("model")
    if not isinstance(model, dict):
        raise ValueError(f"model must be an object, got {model!r:.80}")
    for name in REFUSED:
        if model.get(name):
            raise ValueError(f"model.{name} must be unset, got {model[name]!r:.80}")


def _bytes_of_ids(vocabulary: dict[str, int], tree: dict) -> dict[int, bytes]:
    # The decoder shows whether tokens are in letters, in SentencePiece's characters, or plain text. Without a decoder,
    # they are in letters if the file converts text to letters before it encodes the text.
    added = {token["id"] for token in tree.get("added_tokens") or []}
    decoder = json.dumps(tree.get("decoder") or tree.get("pre_tokenizer"))
    is_in_letters = '"ByteLevel"' in decoder
    has_byte_tokens = '"ByteFallback"' in decoder

    bytes_of = {}
    for token, i in vocabulary.items():
        if has_byte_tokens and BYTE_TOKEN.fullmatch(token):
            bytes_of[i] = bytes([int(token[3:5], 16)])
        elif is_in_letters:
            bytes_of[i] = token.encode() if i in added else _from_letters(token)
        else:
            bytes_of[i] = token.replace(METASPACE, " ").encode()
    return bytes_of


def _from_letters(token: str) -> bytes:
    try:
        return letters_to_bytes(token)
    except KeyError:  # a token with other characters is plain text
        return token.encode()
