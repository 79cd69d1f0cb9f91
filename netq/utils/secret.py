"""Makes, compares and hides secrets."""

from __future__ import annotations

import os


def new_token() -> bytes:
    """Return a new token of a session: 16 random bytes."""
    return os.urandom(16)


def is_same_secret(a: bytes, b: bytes) -> bool:
    """Return whether two secrets are equal, in a time that does not depend on where they differ."""
    import hmac  # it loads OpenSSL, 4 MB, which a client without TLS does not need

    return hmac.compare_digest(a, b)


class Hidden(str):
    """A text that `repr` hides, also within the repr of an object or a dict that holds it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"
