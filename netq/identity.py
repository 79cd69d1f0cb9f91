"""Who a peer is, and how a link to it is protected. Pure.

TLS and sealing make a `Protection` when their handshake is over. The endpoint compares it with what the peer claims.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import NamedTuple

from netq.text import printable

_NAME = 64  # characters of a common name (X.520, ub-common-name)
_URN = re.compile(r"urn:uuid:([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE)  # RFC 9562, section 4


class Security(NamedTuple):
    """How a link is protected: `statistics()[peer].security`."""

    version: str  # "TLSv1.3"
    cipher: str | None  # "TLS_AES_256_GCM_SHA384"; None where the TLS library does not tell it
    group: str | None  # of the key exchange, as in "X25519MLKEM768"; None as well
    identity: uuid.UUID | None  # of the peer's certificate; None if the peer has shown none
    name: str | None = None  # the common name of that certificate, for people; the id is what counts
    not_after: float | None = None  # the end of its validity, in seconds since 1970


class Certificate(NamedTuple):
    """A certificate that the peer has shown, and that leads to an authority that this side trusts."""

    identity: uuid.UUID | None  # the name urn:uuid:… among its subject alternative names
    serial: int
    fingerprint: bytes  # SHA-256 of its DER
    not_after: float  # the end of its validity, in seconds since 1970
    name: str | None = None  # the common name of its subject, printable


class Protection(NamedTuple):
    """What is known of a link and its peer after the handshake."""

    security: Security
    certificate: Certificate | None


def certificate_of(
    der: bytes, serial: int, not_after: float, uris: Iterable[str], name: str | None = None
) -> Certificate:
    """Return what netq needs of a certificate.

    uris: the URIs among its subject alternative names.
    name: the common name of its subject.
    """
    import hashlib  # it loads OpenSSL, which a client without TLS does not need

    digest = hashlib.sha256(der).digest()
    return Certificate(identity_in(uris), serial, digest, not_after, printable(name)[:_NAME] if name else None)


def negotiated(version: str, cipher: str | None, group: str | None, certificate: Certificate | None) -> Protection:
    """Return the protection of a link. `certificate`: the peer's; None if it has shown none."""
    if certificate is None:
        return Protection(Security(version, cipher, group, None), None)
    shown = certificate.identity, certificate.name, certificate.not_after
    return Protection(Security(version, cipher, group, *shown), certificate)


def identity_in(uris: Iterable[str]) -> uuid.UUID | None:
    """Return the id that a certificate names as urn:uuid:…; None if it names none, or more than one."""
    found = {match[1].lower() for uri in uris if (match := _URN.fullmatch(uri))}
    return uuid.UUID(found.pop()) if len(found) == 1 else None


def is_post_quantum(group: str | None) -> bool:
    """Return whether this key exchange resists quantum computers: the hybrid groups with ML-KEM (FIPS 203)."""
    return group is not None and "mlkem" in group.lower()
