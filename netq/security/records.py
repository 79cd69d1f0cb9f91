"""Records: encrypts and authenticates what a sealed link moves in one direction. Pure.

A record is a unit whose body is the ciphertext, and a tag of 16 bytes. Its nonce counts the records of the direction,
so one that is lost, repeated or out of order does not authenticate. The header is authenticated too. Each direction of
each link has its own key, which is replaced after REKEY records. Used by netq/security/sealed.py.
"""

from __future__ import annotations

import struct
from typing import Any

from cryptography.exceptions import InvalidTag

from netq.buffers import Buffer
from netq.errors import SecurityError
from netq.security.handshake import AEADS, TAG, Aead, Cipher, Unit, derive, unit_header

RECORD = 256 * 1024  # bytes of plaintext in one record: they stay in the core's cache
_JOINED = 8 * 1024  # bytes: to copy these into one record costs less than a record of their own
# Records under one key: 16 GiB, where AES-GCM still has a margin of 2^60 against distinguishing (RFC 8446, section 5.5,
# allows 2^24.5 records of 16 KiB).
REKEY = 2**16
_pack_nonce = struct.Struct("<4xQ").pack


class _Direction:
    """A key, and the number of the next record."""

    def __init__(self, cipher: Cipher, key: bytes) -> None:
        self._cipher = cipher
        self._key = key
        self._aead: Aead = AEADS[cipher](key)
        self._count = 0

    def _nonce(self) -> bytes:
        """Return the nonce of the next record, and count it first: after an exception no nonce is used twice."""
        if self._count and self._count % REKEY == 0:
            self._key = derive(self._key, b"netq seal 1: next key")
            self._aead = AEADS[self._cipher](self._key)
        self._count += 1
        return _pack_nonce(self._count)


class RecordWriter(_Direction):
    """Makes the records of one direction."""

    def __init__(self, cipher: Cipher, key: bytes) -> None:
        super().__init__(cipher, key)
        self._small: list[Buffer] = []  # for one record
        self._size = 0  # bytes of them

    def add(self, data: Buffer, out: list[Any]) -> None:
        """Append records of `data` to `out`; keep small data back, to join it with what follows, until `flush`."""
        if len(data) <= _JOINED:
            self._small.append(data)
            self._size += len(data)
            if self._size > RECORD - _JOINED:
                self.flush(out)
            return
        # A large buffer has records of its own. The receiver then decrypts them into the memory of the message.
        self.flush(out)
        view = memoryview(data)
        for start in range(0, len(view), RECORD):
            out += self.seal(Unit.DATA, view[start : start + RECORD])

    def flush(self, out: list[Any]) -> None:
        """Append the record of what `add` has kept."""
        if self._size:
            out += self.seal(Unit.DATA, b"".join(self._small))
        self._small, self._size = [], 0

    def seal(self, kind: Unit, plaintext: Buffer) -> tuple[bytes, bytes]:
        """Return header and body of the next record."""
        header = unit_header(kind, len(plaintext) + TAG)
        return header, self._aead.encrypt(self._nonce(), plaintext, header)


class RecordReader(_Direction):
    """Opens the records of one direction. Raises SecurityError for all but the next one, and is useless then."""

    def open(self, header: bytes, body: memoryview) -> bytes:
        """Return the plaintext."""
        try:
            return self._aead.decrypt(self._nonce(), body, header)
        except InvalidTag:
            raise self._error() from None

    def open_into(self, header: bytes, body: memoryview, target: memoryview) -> None:
        """Write the plaintext into `target`, of exactly its size. After an error the content is undefined."""
        try:
            self._aead.decrypt_into(self._nonce(), body, header, target)
        except InvalidTag:
            raise self._error() from None

    def _error(self) -> SecurityError:
        return SecurityError(
            f"record {self._count} does not authenticate: what lies between the peers has changed, repeated, reordered "
            "or dropped bytes"
        )
