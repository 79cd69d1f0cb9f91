"""The secrets that each two clients of a session share, which the server carries and cannot read.

Each client makes a key for the session, X25519 and ML-KEM-768 in one (X-Wing: draft-ietf-hpke-pq, FIPS 203), signs it
with the key of its certificate, and erases it when the secrets are there. In each pair both seal 32 random bytes for
the other (HPKE, RFC 9180), and both are in the pair's key: so it is secret if one of the two keys is honest. Equal keys
prove themselves by a tag before they are used.

The pair's key of a round makes the masks and packets of that round, and the key of the next round by HKDF (RFC 5869);
then it is erased. A state that is seized opens no round before it. Python copies `bytes` as it likes: what is erased is
what this module holds, not what an attacker with the memory of the process may find.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fl.errors import InvalidUpdate
from netq.errors import SecurityError

KEY = 1216  # bytes of a public key: ML-KEM-768 and X25519
BOX = 1168  # of a sealed secret
TAG = 16
NONCE = 32  # of a nonce, and of the commitment to it
_SECRET = 32
_AHEAD = 2**20  # steps of all pairs, at most, over rounds in which a client was not asked: some 8 s
_LARGEST, _CHAIN = 2**14, 8  # bytes of a certificate, and certificates of a client


class Entry(NamedTuple):
    """The key of a client, and the proof that it is the client's.

    commitment: to its nonce, which it reveals when it has those of all (`commitment`).
    chain:      of its certificate, in DER; none: the client has none.
    signature:  by the certificate's key, over `Entry.signed`.
    """

    client: str
    key: bytes
    commitment: bytes
    chain: Sequence[bytes] = ()
    signature: bytes = b""

    def signed(self, session: str) -> bytes:
        """Return what the client signs."""
        return b"\0".join((b"netq secure key", session.encode(), self.client.encode(), self.commitment + self.key))

    def check(self, *, tries: bool) -> None:
        """Raise InvalidUpdate for values of other types or sizes; with `tries` also for a key that cannot be used."""
        parts = [self.key, self.signature, *self.chain]
        if not all(type(each) is bytes and len(each) <= _LARGEST for each in parts) or len(self.chain) > _CHAIN:
            raise InvalidUpdate(f"a key, a chain or a signature is not bytes, {_LARGEST} of each part at most")
        if type(self.commitment) is not bytes or len(self.commitment) != NONCE:
            raise InvalidUpdate(f"a commitment is not {NONCE} bytes")
        if tries:  # as its peers will: some keys fail only then
            Sealing("", "").boxes([self], b"")

    @property
    def fingerprint(self) -> bytes:
        """The SHA-256 of the key."""
        return hashlib.sha256(self.key).digest()


class Sealing:
    """The set-up of a session at one client: makes its key, seals secrets, opens those of others."""

    def __init__(self, session: str, client: str) -> None:
        from cryptography.hazmat.primitives import hpke
        from cryptography.hazmat.primitives.asymmetric import mlkem, x25519

        self.session, self.client = session, client
        halves = mlkem.MLKEM768PrivateKey.generate(), x25519.X25519PrivateKey.generate()
        self._private: Any = hpke.MLKEM768X25519PrivateKey(*halves)
        self.key = halves[0].public_key().public_bytes_raw() + halves[1].public_key().public_bytes_raw()
        self._suite = _suite()
        self._own: dict[str, bytes] = {}  # the secret for each client
        self._info = b""

    def boxes(self, others: Iterable[Entry], roster: bytes) -> list[bytes]:
        """Return a sealed secret for each of the others. roster: the hash of all keys and nonces of the session.

        Raises InvalidUpdate for a key that cannot be used.
        """
        self._info = b"\0".join((b"netq secure pair", self.session.encode(), roster))
        found = []
        for other in others:
            self._own[other.client] = secret = os.urandom(_SECRET)
            try:
                found.append(self._suite.encrypt(secret, _public(other.key), info=self._for(self.client, other.client)))
            except ValueError as error:
                raise InvalidUpdate(f"the key of client {other.client} cannot be used: {error}") from None
        return found

    def open(self, boxes: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the key of each pair, without the clients whose box cannot be opened. Once: it erases its own key."""
        from cryptography.exceptions import InvalidTag

        keys = {}
        for other, box in boxes.items():
            try:
                theirs = self._suite.decrypt(box, self._private, info=self._for(other, self.client))
            except (InvalidTag, ValueError):
                continue
            first, second = (self._own[other], theirs) if self.client < other else (theirs, self._own[other])
            keys[other] = derive(first + second, self._for(*sorted((self.client, other))))
        self._private, self._own = None, {}
        return keys

    def _for(self, sender: str, receiver: str) -> bytes:
        return b"\0".join((self._info, sender.encode(), receiver.encode()))


class Ratchet:
    """The keys of one client's pairs. Each round has other ones, and none leads back."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = {other: bytearray(key) for other, key in keys.items()}
        self.number = 0  # of the round that the keys are for

    def at(self, number: int) -> dict[str, bytes]:
        """Return the pairs' keys of a round, and erase them here. Raises InvalidUpdate for a round that has been."""
        if number <= self.number:
            raise InvalidUpdate(
                f"the masked round {number} has been asked for: the last one was {self.number}. A client sends one "
                "vector a round; expected a higher number"
            )
        if (number - self.number) * len(self._keys) > _AHEAD:
            raise InvalidUpdate(f"the masked round {number} is too far ahead of {self.number}, the last one")
        found = {}
        for other, key in self._keys.items():
            for _ in range(number - self.number - 1):
                key[:] = derive(bytes(key), b"next")
            found[other] = derive(bytes(key), b"round")
            key[:] = derive(bytes(key), b"next")
        self.number = number
        return found


def commitment(session: str, client: str, nonce: bytes) -> bytes:
    """Return what binds a client to a nonce before it reveals it. Another client cannot use it as its own."""
    return hashlib.sha256(b"\0".join((b"netq secure nonce", session.encode(), client.encode(), nonce))).digest()


def derive(key: bytes, *info: bytes) -> bytes:
    """Return another key of 32 bytes (HKDF with SHA-256, RFC 5869; no salt)."""
    extracted = hmac.digest(bytes(32), key, "sha256")
    return hmac.digest(extracted, b"\0".join((b"netq secure", *info)) + b"\1", "sha256")


def tag(key: bytes, *about: bytes) -> bytes:
    """Return what proves to the other client of a pair that this one has the key, and says this."""
    return hmac.digest(key, b"\0".join(about), "sha256")[:TAG]


def _suite() -> Any:
    from cryptography.hazmat.primitives import hpke

    return hpke.Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)


def _public(key: bytes) -> Any:
    from cryptography.hazmat.primitives import hpke
    from cryptography.hazmat.primitives.asymmetric import mlkem, x25519

    if len(key) != KEY:
        raise InvalidUpdate(f"a key has {len(key)} bytes; expected {KEY}: ML-KEM-768 and X25519")
    try:
        halves = (
            mlkem.MLKEM768PublicKey.from_public_bytes(key[:-32]),
            x25519.X25519PublicKey.from_public_bytes(key[-32:]),
        )
    except ValueError as error:
        raise InvalidUpdate(f"a key cannot be used: {error}; expected ML-KEM-768 and X25519") from None
    return hpke.MLKEM768X25519PublicKey(*halves)


def check_available() -> None:
    """Raise SecurityError unless `cryptography` has what secure aggregation needs."""
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        Sealing("", "").boxes([Entry("", Sealing("", "").key, bytes(NONCE))], b"")
    except (ImportError, UnsupportedAlgorithm) as error:
        raise SecurityError(
            f"secure aggregation needs ML-KEM-768, which this installation of cryptography does not have ({error}); "
            "install cryptography from the package index"
        ) from None
