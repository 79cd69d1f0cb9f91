"""Blocks that one publication serves for several peers: each is sealed once, under a key of its own. Thread-safe.

A broadcast over MQTT enters the broker once. A link that was to be sealed by its own key could not share those bytes.
So the block is encrypted under a fresh key, and each peer gets that key, and the hash of the ciphertext, in a record of
its own link. The hash is needed because all members know the key: without it, a member that conspires with the broker
could send the others another block. There is no key of a group that would outlive its blocks, so nothing must be
rotated when a member leaves.

One SharedBlocks serves all links of a communicator. It has a block as long as a link or a group refers to it.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from netq.errors import SecurityError
from netq.protocol.sender import Part
from netq.security.handshake import TAG, Unit, unit_header
from netq.utils.stream import Stream

LARGEST = 2**24 - 1 - TAG  # bytes of plaintext: the length of a unit has 24 bits
OPENING = 32 + 32 + 4  # bytes: key, hash, bytes of the block's body
_NONCE = bytes(12)  # each key encrypts one block


class SharedBlock:
    """A Part of a broadcast as one unit, and what opens it."""

    def __init__(self, part: Part) -> None:
        # ChaCha20, whatever cipher each link uses: some peer of a group may have no AES instructions.
        key = os.urandom(32)
        header = unit_header(Unit.BLOCK, part.size + TAG)
        buffers = part.buffers()
        plaintext = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        ciphertext = ChaCha20Poly1305(key).encrypt(_NONCE, plaintext, header)
        self.stream: Stream = part.stream
        self.buffers = [memoryview(header), memoryview(ciphertext)]
        hash = hashlib.sha256(header)
        hash.update(ciphertext)
        self.opening = key + hash.digest() + len(ciphertext).to_bytes(4, "little")


class SharedBlocks:
    """Makes each block once for all peers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # links of several loops ask for one block
        self._blocks: weakref.WeakValueDictionary[tuple[int, int, int], SharedBlock] = weakref.WeakValueDictionary()

    def seal(self, part: Part) -> SharedBlock:
        """Return the sealed block of a Part."""
        # A block keeps its stream, so no other stream has this id as long as the block is found here. A block that is
        # gone is sealed again, under another key: the same nonce never meets other bytes.
        key = id(part.stream), part.start, part.stop
        with self._lock:
            block = self._blocks.get(key)
            if block is None:
                block = self._blocks[key] = SharedBlock(part)
            return block


class Opening:
    """What a peer was told of the block that comes next."""

    def __init__(self, plaintext: bytes) -> None:
        if len(plaintext) != OPENING:
            raise SecurityError(f"a record SHARED of {len(plaintext)} bytes; expected {OPENING}")
        self._key, self._hash = plaintext[:32], plaintext[32:64]
        self.length = int.from_bytes(plaintext[64:], "little")
        if not TAG < self.length <= LARGEST + TAG:
            raise SecurityError(f"a record SHARED of a block of {self.length} bytes")

    @property
    def size(self) -> int:
        """Bytes of plaintext."""
        return self.length - TAG

    def open_into(self, header: bytes, body: memoryview, target: memoryview) -> None:
        """Write the plaintext into `target`, of exactly its size. Another block raises SecurityError."""
        hash = hashlib.sha256(header)
        hash.update(body)
        try:
            if hash.digest() != self._hash:
                raise InvalidTag
            ChaCha20Poly1305(self._key).decrypt_into(_NONCE, body, header, target)
        except InvalidTag:
            raise SecurityError("a shared block is not the one that the server has announced") from None
