"""Tokenizers for text. Their ids are characters, bytes, byte pairs learned from a corpus, or GPT-2's byte pairs.

A builder (character, byte, bpe, gpt2) makes a tokenizer from the documents of a corpus. Each builder has a settings
class for the configuration.
"""

from gptmini.tokenizer.builders import BytePairSettings as BytePairSettings
from gptmini.tokenizer.builders import ByteSettings as ByteSettings
from gptmini.tokenizer.builders import CharacterSettings as CharacterSettings
from gptmini.tokenizer.builders import GPT2Settings as GPT2Settings
from gptmini.tokenizer.builders import prebuilt as prebuilt
from gptmini.tokenizer.byte_pairs import ALL_BYTES as ALL_BYTES
from gptmini.tokenizer.byte_pairs import BYTE_PATTERN as BYTE_PATTERN
from gptmini.tokenizer.byte_pairs import BytePairTokenizer as BytePairTokenizer
from gptmini.tokenizer.byte_pairs import byte as byte
from gptmini.tokenizer.byte_pairs import gpt2 as gpt2
from gptmini.tokenizer.characters import CharTokenizer as CharTokenizer
from gptmini.tokenizer.characters import character as character
from gptmini.tokenizer.chat.encoder import chat_encoder_of as chat_encoder_of
from gptmini.tokenizer.chat.encoder import missing_template as missing_template
from gptmini.tokenizer.chat.marks import common_prefix_length as common_prefix_length
from gptmini.tokenizer.chat.plain import plain_text as plain_text
from gptmini.tokenizer.chat.plain import with_chat_template as with_chat_template
from gptmini.tokenizer.chat.template import RefusedChatError as RefusedChatError
from gptmini.tokenizer.chat.template import plain_jinja as plain_jinja
from gptmini.tokenizer.learning import bpe as bpe
from gptmini.tokenizer.letters import bytes_to_letters as bytes_to_letters
from gptmini.tokenizer.letters import letters_to_bytes as letters_to_bytes
from gptmini.tokenizer.library import METASPACE as METASPACE
from gptmini.tokenizer.library import LibraryTokenizer as LibraryTokenizer
from gptmini.tokenizer.library import check_byte_pair_settings as check_byte_pair_settings
from gptmini.tokenizer.pieces import SPACES as SPACES
from gptmini.tokenizer.pieces import SPLIT_PATTERN as SPLIT_PATTERN
from gptmini.tokenizer.restoring import from_dict as from_dict
from gptmini.tokenizer.restoring import identity_of as identity_of
from gptmini.tokenizer.rust_errors import library_errors as library_errors
from gptmini.tokenizer.tokenizer import END_OF_TEXT as END_OF_TEXT
from gptmini.tokenizer.tokenizer import REPLACEMENT as REPLACEMENT
from gptmini.tokenizer.tokenizer import Document as Document
from gptmini.tokenizer.tokenizer import Tokenizer as Tokenizer
from gptmini.tokenizer.tokenizer import bos_id_of as bos_id_of
from gptmini.tokenizer.tokenizer import document_prefix as document_prefix
from gptmini.tokenizer.tokenizer import without_prefix as without_prefix
