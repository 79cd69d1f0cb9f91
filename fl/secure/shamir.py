"""Shares of secrets: any `threshold` of them give the secret, fewer say nothing of it. Pure.

Source: Shamir, 1979, "How to share a secret". The field is the integers modulo 2**256 + 297, which is a prime, so a
secret of 32 bytes is an element. Shares are not verifiable: who deals them commits to each (fl/secure/packets.py).
Python's integers take a time that depends on their values; the secrets here live for one round.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

PRIME = 2**256 + 297
SECRET = 32  # bytes
SHARE = 33  # bytes, big-endian


def split(secret: bytes, count: int, threshold: int) -> list[bytes]:
    """Return `count` shares. The share at index i is the value of the polynomial at i + 1."""
    assert len(secret) == SECRET
    assert 1 <= threshold <= count
    coefficients = [*(secrets.randbelow(PRIME) for _ in range(threshold - 1)), int.from_bytes(secret)]
    return [_value(coefficients, x).to_bytes(SHARE) for x in range(1, count + 1)]


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of `threshold` shares, by the index that each has in `split`.

    Wrong shares give a wrong secret, or raise ValueError: the caller compares it with what its dealer has committed to.
    """
    points = {index + 1: int.from_bytes(share) for index, share in shares.items()}
    total = 0
    for x, y in points.items():  # Lagrange's interpolation at 0
        numerator = denominator = 1
        for other in points:
            if other != x:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - x) % PRIME
        total += y * numerator * pow(denominator, -1, PRIME)
    value = total % PRIME
    if value >= 2 ** (8 * SECRET):
        raise ValueError("these shares are of no secret of 32 bytes")
    return value.to_bytes(SECRET)


def _value(coefficients: list[int], x: int) -> int:
    value = 0
    for coefficient in coefficients:
        value = (value * x + coefficient) % PRIME
    return value
