"""Vectors of words, and masks that vanish in their sum."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fl.secure.words import Words

# RFC 8439, section 2.3.2, has the key stream of block 1 for a nonce; appendix A.1, test vector 1, that of block 0 for
# a key of zeros, which is the form of a mask.
BLOCK = bytes.fromhex(
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
)


def words(small: int, large: int) -> Words:
    found = Words.zeros(small, large)
    found.memory[:] = np.frombuffer(os.urandom(found.memory.nbytes), np.uint8)
    return found


def test_a_mask_is_the_key_stream_of_rfc_8439() -> None:
    found = Words.zeros(8, 4)
    found.mask([bytes(32)])
    assert found.memory.tobytes() == BLOCK


@pytest.mark.parametrize(("small", "large"), [(0, 1), (2, 3), (65536, 5), (65538, 40000), (200_000, 70_000)])
def test_a_mask_that_is_added_and_subtracted_vanishes(small: int, large: int) -> None:
    found = words(small, large)
    before = found.memory.copy()
    keys = [os.urandom(32) for _ in range(3)]
    found.mask(keys[:2], keys[2:])
    assert not np.array_equal(found.memory, before)
    found.mask(keys[2:], keys[:2])
    assert np.array_equal(found.memory, before)


def test_masks_of_two_clients_vanish_in_their_sum() -> None:
    one, other, key = words(1000, 10), words(1000, 10), os.urandom(32)
    total = Words(one.memory.copy(), 1000)
    total.add(other)
    one.mask([key])
    other.mask([], [key])
    one.add(other)
    assert np.array_equal(one.memory, total.memory)


def test_a_masked_vector_has_bytes_of_all_values_alike() -> None:
    """A chi-square test: 255 degrees of freedom have a value beyond 377 in one of a million cases."""
    found = Words.zeros(250_000, 0)
    found.mask([os.urandom(32)])
    counts = np.bincount(found.memory, minlength=256)
    expected = found.memory.size / 256
    assert ((counts - expected) ** 2 / expected).sum() < 377


def test_the_checksum_of_a_sum_is_the_sum_of_the_checksums() -> None:
    one, other = words(1000, 10), words(1000, 10)
    sums = one.checksum() + other.checksum()
    one.add(other)
    assert one.checksum() == sums % 2**32
