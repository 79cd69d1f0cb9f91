"""Text for people: what a peer supplied made fit for one log line, and the nearest of some known names. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_LONGEST = 500  # characters


def printable(text: str) -> str:
    """Return what may stand in a line of a log, whoever wrote it."""
    shown = "".join([character if character.isprintable() else repr(character)[1:-1] for character in text[:_LONGEST]])
    return shown if len(text) <= _LONGEST else f"{shown}…"


def did_you_mean(name: str, names: Collection[str], form: str = "{}") -> str:
    """Return the hint for a name that is not among `names`: the one that is near it, or all; each written in `form`."""
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {form.format(near[0])}?"
    return f"expected one of {', '.join(form.format(name) for name in names)}"
