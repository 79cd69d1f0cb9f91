"""The handshake of sealing: two peers agree on keys, and prove who they are. Pure: units in, units out.

    client                                     server
    HELLO  random, ciphers, public key   ──►
                                         ◄──   HELLO  random, cipher, public key, encapsulated secret
                                         ◄──   PROOF  sealed: certificate chain, signature
    KEY    encapsulated secret           ──►
    PROOF  sealed: chain, signature      ──►
    records                             ◄─►    records

Both public keys are made for one link and forgotten with it, so a certificate's key that is stolen later opens nothing.
The secrets are sealed by HPKE (RFC 9180) with the KEM MLKEM768_X25519. Each proof is a signature over a hash of all
bytes before it, and is encrypted under a key that only the two peers can compute: a signature cannot be moved to
another handshake, and the broker sees no certificate. docs/reference/seal.md has all bytes.

Used by netq/security/sealed.py; one object for each link.
"""

from __future__ import annotations

import enum
import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from netq.errors import SecurityError
from netq.identity import Certificate
from netq.security.keys import Authority, Shown

VERSION = 1
MAGIC = b"NETQSEAL"
PREFACE = MAGIC + bytes([VERSION])
GROUP = "MLKEM768_X25519"

RANDOM = 32  # bytes
SECRET = 32  # bytes
_MLKEM_KEY, _X25519_KEY = 1184, 32  # bytes
PUBLIC_KEY = _MLKEM_KEY + _X25519_KEY
ENCAPSULATED = 1120 + SECRET + 16  # bytes: of the KEM, the secret, the tag
TAG = 16  # bytes
CIPHERS = 8  # ciphers that a client may offer
PROOF = 48 * 1024  # bytes: a chain of three certificates with ML-DSA-87 has some 30 KiB
_CHAIN = 8  # certificates
_NONCE = bytes(12)  # of a key that encrypts once

_SUITE = hpke.Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)
_UNIT = struct.Struct("<I")  # type in the low byte, length in the others
UNIT = _UNIT.size


class Unit(enum.IntEnum):
    """The types of units: what a sealed link carries instead of frames."""

    HELLO = 1
    PROOF = 2
    KEY = 3
    ALERT = 4
    DATA = 5
    SHARED = 6
    BLOCK = 7


class Cipher(enum.IntEnum):
    """The ciphers of records."""

    AES_256_GCM = 1
    CHACHA20_POLY1305 = 2


AEADS: dict[Cipher, type[AESGCM] | type[ChaCha20Poly1305]] = {
    Cipher.AES_256_GCM: AESGCM,
    Cipher.CHACHA20_POLY1305: ChaCha20Poly1305,
}
Aead = AESGCM | ChaCha20Poly1305


def unit_header(kind: Unit, length: int) -> bytes:
    """Return the 4 bytes before the body of a unit."""
    return _UNIT.pack(kind | length << 8)


def read_unit_header(data: memoryview, at: int) -> tuple[int, int]:
    """Return type and length of the unit at an offset."""
    (number,) = _UNIT.unpack_from(data, at)
    return number & 0xFF, number >> 8


class Credentials(NamedTuple):
    """What one side uses for all its links."""

    chain: tuple[bytes, ...]  # DER, the own certificate first
    sign: Callable[[bytes], bytes]
    authority: Authority
    ciphers: tuple[Cipher, ...]  # the preferred one first


class Keys(NamedTuple):
    """The result of a handshake."""

    cipher: Cipher
    send: bytes
    receive: bytes
    peer: Certificate


class Handshake:
    """One side of one handshake. Call `receive` with each unit of the peer, and send what `take_output` returns."""

    def __init__(self, credentials: Credentials, *, is_client: bool) -> None:
        self._credentials = credentials
        self._is_client = is_client
        self._output: list[bytes] = []
        self._transcript = hashlib.sha256()
        self._secrets = b""
        self._server_key = b""
        self._cipher = credentials.ciphers[0]
        self._private_key: hpke.MLKEM768X25519PrivateKey | None = None
        self._shown: Shown | None = None
        self.keys: Keys | None = None  # once the handshake is over
        # The unit that must come next, and the most bytes that its body may have.
        self.expected = Unit.HELLO
        self.limit = RANDOM + 1 + PUBLIC_KEY + ENCAPSULATED if is_client else RANDOM + 1 + CIPHERS + PUBLIC_KEY
        self._next: _Step = Handshake._on_server_hello if is_client else Handshake._on_client_hello
        if is_client:
            offer = bytes([len(credentials.ciphers), *credentials.ciphers])
            self._preface()
            self._send(Unit.HELLO, os.urandom(RANDOM) + offer + self._new_public_key())

    def take_output(self) -> list[bytes]:
        """Return what is to be sent, once."""
        output, self._output = self._output, []
        return output

    def receive(self, header: bytes, body: memoryview) -> None:
        """Process a unit of the type and size that were expected. Raises SecurityError."""
        try:
            self._next(self, header, body)
        except (ValueError, IndexError, struct.error) as error:
            raise SecurityError(f"the sealing handshake cannot be read: {error}") from error
        except InvalidTag:
            raise SecurityError("the sealing handshake does not authenticate: its bytes were changed") from None

    # The steps of a server.

    def _on_client_hello(self, header: bytes, body: memoryview) -> None:
        count = body[RANDOM]
        if not 1 <= count <= CIPHERS or len(body) != RANDOM + 1 + count + PUBLIC_KEY:
            raise SecurityError(f"a sealing HELLO of {len(body)} bytes, with {count} ciphers")
        self._cipher = self._choose(bytes(body[RANDOM + 1 : RANDOM + 1 + count]))
        self._transcript.update(PREFACE + header + body)
        self._preface()
        hello = os.urandom(RANDOM) + bytes([self._cipher]) + self._new_public_key()
        self._transcript.update(unit_header(Unit.HELLO, len(hello) + ENCAPSULATED) + hello)
        encapsulated = self._encapsulate(b"server key", bytes(body[RANDOM + 1 + count :]))
        self._transcript.update(encapsulated)
        self._output.append(unit_header(Unit.HELLO, len(hello) + ENCAPSULATED) + hello + encapsulated)
        self._prove(b"server proof")
        self._expect(Unit.KEY, ENCAPSULATED, Handshake._on_key)

    def _on_key(self, header: bytes, body: memoryview) -> None:
        self._transcript.update(header)
        self._decapsulate(b"client key", body)
        self._expect(Unit.PROOF, PROOF, Handshake._on_client_proof)

    def _on_client_proof(self, header: bytes, body: memoryview) -> None:
        self._check_proof(b"client proof", header, body)
        self._finish()

    def _choose(self, offered: bytes) -> Cipher:
        # ChaCha20 if one of the two sides prefers it: its processor computes AES slowly.
        ours = self._credentials.ciphers
        common = [cipher for cipher in offered if cipher in ours]
        if not common:
            raise SecurityError(f"the peer seals by the ciphers {list(offered)}, this side by {[*map(int, ours)]}")
        slow = ours[0] is Cipher.CHACHA20_POLY1305 and ours[0] in common
        return ours[0] if slow else Cipher(common[0])

    # The steps of a client.

    def _on_server_hello(self, header: bytes, body: memoryview) -> None:
        if len(body) != self.limit:
            raise SecurityError(f"a sealing HELLO of {len(body)} bytes; expected {self.limit}")
        if body[RANDOM] not in self._credentials.ciphers:
            raise SecurityError(f"the server seals by the cipher {body[RANDOM]}, which was not offered")
        self._cipher = Cipher(body[RANDOM])
        self._server_key = bytes(body[RANDOM + 1 : RANDOM + 1 + PUBLIC_KEY])
        self._transcript.update(PREFACE + header + body[: RANDOM + 1 + PUBLIC_KEY])
        self._decapsulate(b"server key", body[RANDOM + 1 + PUBLIC_KEY :])
        self._expect(Unit.PROOF, PROOF, Handshake._on_server_proof)

    def _on_server_proof(self, header: bytes, body: memoryview) -> None:
        self._check_proof(b"server proof", header, body)
        self._transcript.update(unit_header(Unit.KEY, ENCAPSULATED))
        encapsulated = self._encapsulate(b"client key", self._server_key)
        self._transcript.update(encapsulated)
        self._output.append(unit_header(Unit.KEY, ENCAPSULATED) + encapsulated)
        self._prove(b"client proof")
        self._finish()

    # For both sides.

    def _preface(self) -> None:
        self._output.append(PREFACE)
        self._transcript.update(PREFACE)

    def _send(self, kind: Unit, body: bytes) -> None:
        unit = unit_header(kind, len(body)) + body
        self._output.append(unit)
        self._transcript.update(unit)

    def _expect(self, kind: Unit, limit: int, step: _Step) -> None:
        self.expected, self.limit, self._next = kind, limit, step

    def _new_public_key(self) -> bytes:
        """Make the key pair of this link. A server does so when a client has spoken: silent links cost it nothing."""
        mlkem, x25519 = MLKEM768PrivateKey.generate(), X25519PrivateKey.generate()
        self._private_key = hpke.MLKEM768X25519PrivateKey(mlkem, x25519)
        return mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw()

    def _encapsulate(self, label: bytes, key: bytes) -> bytes:
        secret = os.urandom(SECRET)
        self._secrets += secret
        public = hpke.MLKEM768X25519PublicKey(
            MLKEM768PublicKey.from_public_bytes(key[:_MLKEM_KEY]),
            X25519PublicKey.from_public_bytes(key[_MLKEM_KEY:]),
        )
        return _SUITE.encrypt(secret, public, self._info(label))

    def _decapsulate(self, label: bytes, encapsulated: memoryview) -> None:
        assert self._private_key is not None  # our HELLO comes before any secret of the peer
        self._secrets += _SUITE.decrypt(encapsulated, self._private_key, self._info(label))
        self._transcript.update(encapsulated)

    def _prove(self, label: bytes) -> None:
        """Send the certificate chain, and a signature over it and all bytes before."""
        chain = write_chain(self._credentials.chain)
        signature = self._credentials.sign(self._signed(label, chain))
        proof, key = chain + signature, self._derive(label)
        header = unit_header(Unit.PROOF, len(proof) + TAG)
        self._send(Unit.PROOF, AEADS[self._cipher](key).encrypt(_NONCE, proof, header))

    def _check_proof(self, label: bytes, header: bytes, body: memoryview) -> None:
        proof = AEADS[self._cipher](self._derive(label)).decrypt(_NONCE, body, header)
        chain, size = read_chain(proof)
        self._shown = self._credentials.authority.verify(chain)
        self._shown.verify(proof[size:], self._signed(label, proof[:size]))
        self._transcript.update(header + body)

    def _finish(self) -> None:
        assert self._shown is not None
        keys = self._derive(b"client to server"), self._derive(b"server to client")
        send, receive = keys if self._is_client else keys[::-1]
        self.keys = Keys(self._cipher, send, receive, self._shown.certificate)

    def _info(self, label: bytes) -> bytes:
        """What a key or a signature is for, and all bytes exchanged so far."""
        return b"netq seal 1: " + label + b"\0" + self._transcript.digest()

    def _signed(self, label: bytes, chain: bytes) -> bytes:
        return self._info(label) + hashlib.sha256(chain).digest()

    def _derive(self, label: bytes) -> bytes:
        return derive(self._secrets, self._info(label))


_Step = Callable[[Handshake, bytes, memoryview], None]


def derive(secret: bytes, info: bytes) -> bytes:
    """Return a key of 32 bytes (HKDF, RFC 5869)."""
    return HKDF(SHA256(), 32, None, info).derive(secret)


def write_chain(chain: tuple[bytes, ...]) -> bytes:
    """Encode certificates: their number, then each with its length in 3 bytes."""
    return bytes([len(chain)]) + b"".join(len(der).to_bytes(3, "little") + der for der in chain)


def read_chain(data: bytes) -> tuple[list[bytes], int]:
    """Return the certificates at the begin of `data`, and where they end. Raises SecurityError."""
    if not 1 <= data[0] <= _CHAIN:
        raise SecurityError(f"a chain of {data[0]} certificates; expected 1 to {_CHAIN}")
    pieces = list(_pieces(data, data[0]))
    return pieces, 1 + sum(3 + len(piece) for piece in pieces)


def _pieces(data: bytes, count: int) -> Iterator[bytes]:
    at = 1
    for _ in range(count):
        stop = at + 3 + int.from_bytes(data[at : at + 3], "little")
        if stop > len(data):
            raise SecurityError("a chain of certificates that is cut off")
        yield data[at + 3 : stop]
        at = stop
