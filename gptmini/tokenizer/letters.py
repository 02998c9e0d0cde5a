"""The letters that stand for bytes in the byte-level vocabularies of Hugging Face and llama.cpp.

The mapping is bytes_to_unicode of GPT-2's code. A printable Latin-1 character stands for its own byte. The characters
from U+0100 on stand for the other bytes, in order.
"""

_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]

_LETTER_OF = {byte: chr(byte) for byte in _PRINTABLE}
_LETTER_OF |= {byte: chr(256 + i) for i, byte in enumerate(_OTHERS)}
_BYTE_OF = {letter: byte for byte, letter in _LETTER_OF.items()}


def bytes_to_letters(token: bytes) -> str:
    """Return the letters that stand for a byte string. Each byte becomes one letter."""
    return "".join(_LETTER_OF[byte] for byte in token)


def letters_to_bytes(letters: str) -> bytes:
    """Return the byte string that letters stand for. Raises KeyError if a character does not stand for a byte."""
    return bytes(_BYTE_OF[letter] for letter in letters)
