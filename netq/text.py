"""Text for people: escapes text that a peer supplied, describes errors, suggests the nearest of some names. Pure."""

from __future__ import annotations

from collections.abc import Collection

_LONGEST = 500  # characters of a peer's text in one log line


def printable(text: str, longest: int = _LONGEST) -> str:
    """Escape and shorten untrusted text, so that it fits in one line of a log and cannot forge another."""
    shown = "".join([character if character.isprintable() else repr(character)[1:-1] for character in text[:longest]])
    return shown if len(text) <= longest else f"{shown}…"


def text_of(error: BaseException) -> str:
    """Return the text of an error, which may be a class of the user: a sentence about it if its `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return "it has no text, because its __str__ raises"


def describe(error: BaseException) -> str:
    """Return the class and the text of an error, also of one whose `__str__` raises."""
    return f"{type(error).__name__}: {text_of(error)}"


def did_you_mean(name: str, names: Collection[str], form: str = "{}") -> str:
    """Return a hint for an unknown name: the nearest of `names`, or all of them. `form` formats each name."""
    import difflib

    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {form.format(near[0])}?"
    return f"expected one of {', '.join(form.format(name) for name in names)}"


def parse_netloc(text: str) -> tuple[str, int]:
    """Return host and port of "host:port"; of the path of a socket, which begins with "/", the path and 0.

    Raises ValueError with a sentence for the user.
    """
    if text.startswith("/"):
        return text, 0
    host, _, port = text.rpartition(":")
    if not host.strip("[]") or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r}; expected HOST:PORT, as in 127.0.0.1:51966")
    return host.removeprefix("[").removesuffix("]"), int(port)


def format_netloc(host: str, port: int) -> str:
    """Return what `parse_netloc` reads: "host:port", with an IPv6 address in brackets; or a path."""
    if host.startswith("/"):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
