"""Make text from other people safe to print."""


def printable(text: str) -> str:
    """Return the text with escaped unprintable characters, so that a terminal does not execute control characters."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
