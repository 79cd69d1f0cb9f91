"""Blocks for several peers: sealed once, and opened only as the server has announced them."""

from __future__ import annotations

import gc
import uuid
import weakref

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from netq.errors import SecurityError
from netq.protocol.sender import Part
from netq.security.handshake import TAG, UNIT, Unit, unit_header
from netq.security.shared import LARGEST, Opening, SharedBlocks
from netq.utils.stream import Stream

PEERS = (uuid.UUID(int=1), uuid.UUID(int=2))
MESSAGE = Stream([bytes(range(100)), b"x" * 1000])


def opened(opening: Opening, header: bytes, body: bytes) -> bytes:
    target = bytearray(opening.size)
    opening.open_into(header, memoryview(body), memoryview(target))
    return bytes(target)


def test_block_is_sealed_once_for_all_peers() -> None:
    blocks, part = SharedBlocks(), Part(MESSAGE, 50, 400, PEERS)
    block = blocks.seal(part)
    assert blocks.seal(part) is block
    assert part._replace(sealed=block).buffers() is block.buffers
    header, body = map(bytes, block.buffers)
    assert len(header) == UNIT
    assert opened(Opening(block.opening), header, body) == bytes(MESSAGE)[50:400]


def test_each_block_has_its_own_key() -> None:
    blocks = SharedBlocks()
    parts = [Part(MESSAGE, 0, 100, PEERS), Part(MESSAGE, 100, 200, PEERS), Part(Stream([b"y" * 100]), 0, 100, PEERS)]
    found = [blocks.seal(part) for part in parts]
    assert len({block.opening[:32] for block in found}) == 3


def test_block_that_no_link_needs_is_forgotten_and_sealed_anew() -> None:
    blocks, part = SharedBlocks(), Part(MESSAGE, 0, 1100, PEERS)
    block = blocks.seal(part)
    key, gone = block.opening[:32], weakref.ref(block)
    del block
    gc.collect()
    assert gone() is None
    assert blocks.seal(part).opening[:32] != key, "the same nonce must not meet other bytes"


def test_any_other_block_is_refused() -> None:
    block = SharedBlocks().seal(Part(MESSAGE, 0, 1100, PEERS))
    header, body = map(bytes, block.buffers)
    opening = Opening(block.opening)
    for at in range(0, len(body), 7):
        changed = bytearray(body)
        changed[at] ^= 1
        with pytest.raises(SecurityError, match="not the one that the server has announced"):
            opened(opening, header, bytes(changed))
    # A member knows the key, so its forgery authenticates. It has another hash.
    forged = ChaCha20Poly1305(block.opening[:32]).encrypt(bytes(12), b"z" * 1100, header)
    with pytest.raises(SecurityError, match="not the one that the server has announced"):
        opened(opening, header, forged)
    with pytest.raises(SecurityError, match="not the one that the server has announced"):
        opened(opening, unit_header(Unit.DATA, len(body)), body)


@pytest.mark.parametrize(
    ("plaintext", "text"),
    [
        (b"", "SHARED of 0 bytes; expected 68"),
        (bytes(69), "SHARED of 69 bytes"),
        (bytes(68), "a block of 0 bytes"),
        (bytes(64) + (TAG).to_bytes(4, "little"), "a block of 16 bytes"),
        (bytes(64) + (LARGEST + TAG + 1).to_bytes(4, "little"), "a block of 16777216 bytes"),
    ],
)
def test_announcement_is_checked(plaintext: bytes, text: str) -> None:
    with pytest.raises(SecurityError, match=text):
        Opening(plaintext)
