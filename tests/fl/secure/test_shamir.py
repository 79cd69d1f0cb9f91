"""Shares of a secret: a threshold of them, whichever, gives it, and fewer do not."""

from __future__ import annotations

import contextlib
import itertools
import os

import pytest

from fl.secure import shamir


@pytest.mark.parametrize(("count", "threshold"), [(1, 1), (3, 3), (5, 4), (10, 7)])
def test_any_threshold_of_shares_gives_the_secret(count: int, threshold: int) -> None:
    secret = os.urandom(32)
    shares = dict(enumerate(shamir.split(secret, count, threshold)))
    assert {len(share) for share in shares.values()} == {shamir.SHARE}
    for chosen in itertools.combinations(shares, threshold):
        assert shamir.join({at: shares[at] for at in chosen}) == secret


def test_fewer_shares_give_something_else() -> None:
    secret = os.urandom(32)
    shares = dict(enumerate(shamir.split(secret, 5, 3)))
    for chosen in itertools.combinations(shares, 2):
        with contextlib.suppress(ValueError):  # for 2**256 to 2**256 + 296
            assert shamir.join({at: shares[at] for at in chosen}) != secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_the_smallest_and_the_largest_secret(secret: bytes) -> None:
    shares = dict(enumerate(shamir.split(secret, 3, 2)))
    assert shamir.join({0: shares[0], 2: shares[2]}) == secret


def test_shares_of_no_secret_of_32_bytes_raise() -> None:
    with pytest.raises(ValueError, match="no secret"):
        shamir.join({0: (2**256 + 5).to_bytes(shamir.SHARE)})


def test_the_modulus_is_prime() -> None:
    """Miller and Rabin's test by the first 40 primes as bases."""
    odd, twos = shamir.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    bases = [each for each in range(2, 174) if all(each % other for other in range(2, each))]
    assert len(bases) == 40
    for base in bases:
        value = pow(base, odd, shamir.PRIME)
        powers = [pow(value, 2**each, shamir.PRIME) for each in range(twos)]
        assert value == 1 or shamir.PRIME - 1 in powers
