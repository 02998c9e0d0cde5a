"""Make text from other people safe to print."""


def printable(text: str) -> str:
    """Return the text with escaped unprintable characters, so that a terminal does not execute control characters."""
    shown = ""
    for character in text:
        if character.isprintable():
            shown += character
        else:
            shown += character.encode("unicode_escape").decode()
    return shown
