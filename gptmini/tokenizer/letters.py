"""The letters by which the byte-level vocabularies of Hugging Face and llama.cpp write bytes.

It is bytes_to_unicode of GPT-2's code: a printable Latin-1 character stands for its own byte, and the other bytes have
the characters from U+0100 on, in their order.
"""

from functools import cache


@cache
def byte_of_letter() -> dict[str, int]:
    """The byte that each letter stands for."""
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    byte_of = {}
    next_letter = 256
    for byte in range(256):
        if byte in printable:
            byte_of[chr(byte)] = byte
        else:
            byte_of[chr(next_letter)] = byte
            next_letter += 1
    return byte_of


@cache
def _letter_of_byte() -> list[str]:
    """The letter of each byte."""
    letters = [""] * 256
    for letter, byte in byte_of_letter().items():
        letters[byte] = letter
    return letters


def in_letters(token: bytes) -> str:
    """A byte string as letters, one a byte."""
    letter_of = _letter_of_byte()
    return "".join(letter_of[byte] for byte in token)


def in_bytes(letters: str) -> bytes:
    """The byte string of letters; KeyError for a character that is no letter."""
    byte_of = byte_of_letter()
    return bytes(byte_of[letter] for letter in letters)
