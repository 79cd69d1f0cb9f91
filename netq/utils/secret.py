"""Compares secrets."""

from __future__ import annotations


def is_same_secret(a: bytes, b: bytes) -> bool:
    """Return whether two secrets are equal, in a time that does not depend on where they differ."""
    import hmac  # it loads OpenSSL, 4 MB, which a client without TLS does not need

    return hmac.compare_digest(a, b)
