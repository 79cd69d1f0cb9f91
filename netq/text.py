"""Text for people: escapes text that a peer supplied, and suggests the nearest of some known names. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_LONGEST = 500  # characters of a peer's text in one log line


def printable(text: str) -> str:
    """Escape and shorten untrusted text, so that it fits in one line of a log and cannot forge another."""
    shown = "".join([character if character.isprintable() else repr(character)[1:-1] for character in text[:_LONGEST]])
    return shown if len(text) <= _LONGEST else f"{shown}…"


def did_you_mean(name: str, names: Collection[str], form: str = "{}") -> str:
    """Return a hint for an unknown name: the nearest of `names`, or all of them. `form` formats each name."""
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {form.format(near[0])}?"
    return f"expected one of {', '.join(form.format(name) for name in names)}"
