"""Text from files and folders, for people to read."""

from __future__ import annotations

from unicodedata import category

__all__ = ["printable"]


def printable(text: object) -> str:
    r"""The text in one line, with what a terminal would obey instead of showing as escapes.

    These are control characters, the ends of lines among them, those that turn the direction of writing, and bytes of
    file names that are no text.

    >>> printable("fc1\x1b[2J\n\u202eweight"), printable("naïve 层"), printable("5\xa0%") == "5\xa0%"
    ('fc1\\x1b[2J\\n\\u202eweight', 'naïve 层', True)
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        # Spaces of all kinds (a no-break one, say) are harmless, and are not called printable.
        letter if letter.isprintable() or category(letter) == "Zs" else letter.encode("unicode_escape").decode("ascii")
        for letter in shown
    )
