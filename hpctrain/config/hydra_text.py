"""Values as Hydra's grammar takes them; free of Hydra, which takes a third of a second to import."""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*")
"""What means itself: all but words that Hydra reads as null or true."""
_OTHER_MEANINGS = frozenset(("null", "true", "false", "nan", "inf"))


def hydra_text(value: str) -> str:
    """The value in Hydra's double quotes, in which backslashes stand for themselves but in front of a quote."""
    inner = re.sub(r'(\\*)("|\Z)', lambda match: match[1] * 2 + match[2].replace('"', '\\"'), value)
    return f'"{inner}"'


def typed_override(key: str, value: str) -> str:
    """``key=value`` for a command line that a user copies: quoted for Hydra and for the shell where it must be.

    >>> print(typed_override("data.path", "data/books"), typed_override("data.path", "a b"), typed_override("data.path", "it's"))
    data.path=data/books 'data.path="a b"' 'data.path="it'\\''s"'
    """
    if _PLAIN.fullmatch(value) and value.lower() not in _OTHER_MEANINGS:
        return f"{key}={value}"
    return quoted_word(f"{key}={hydra_text(value)}")


def quoted_word(word: str) -> str:
    """The word in the shell's single quotes, around Hydra's double ones."""
    return "'" + word.replace("'", "'\\''") + "'"
