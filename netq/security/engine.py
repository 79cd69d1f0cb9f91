"""What netq/security/tls.py needs of a TLS library: one connection, on memory instead of a socket.

Two modules implement it: standard.py (Python's ssl) and openssl.py (pyOpenSSL). They translate all errors of their
library into the ones here.
"""

from __future__ import annotations

from typing import Protocol

from netq.buffers import Buffer
from netq.identity import Protection

RECORD = 16 * 1024  # bytes of plaintext in the largest TLS record (RFC 8446, 5.1)
OVERHEAD = 22  # bytes that a record adds to its plaintext: header, content type, tag


class WantInput(Exception):
    """More ciphertext is needed."""


class Ended(Exception):
    """The peer has sent close_notify."""


class Cut(Exception):
    """The network's bytes have ended without close_notify."""


class Broken(Exception):
    """The handshake or a record is wrong.

    reason:   OpenSSL's name of it, as in "TLSV1_ALERT_UNKNOWN_CA".
    verified: what is wrong with the peer's certificate, or "".
    code:     the number of that in OpenSSL's x509_vfy.h.
    """

    def __init__(self, reason: str, verified: str = "", code: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.verified = verified
        self.code = code


class Engine(Protocol):
    """One connection. Each method may raise the errors above, but for those that say otherwise."""

    def feed(self, data: Buffer) -> None:
        """Copy ciphertext from the network. Raises nothing."""

    def feed_eof(self) -> None:
        """Note the end of the network's bytes. Raises nothing."""

    def handshake(self) -> None:
        """Continue the handshake. It is complete when this returns."""

    def read(self, buffer: memoryview) -> int:
        """Decrypt one record, or the rest of one, into `buffer`; return how many bytes."""

    def write(self, data: Buffer) -> int:
        """Encrypt all of `data`."""

    def output(self) -> bytes:
        """Return, and forget, the ciphertext for the network. Raises nothing."""

    def close(self) -> None:
        """Queue close_notify. Raises nothing."""

    def protection(self) -> Protection:
        """Return what was negotiated, and the peer's certificate. Only after the handshake; raises nothing."""
