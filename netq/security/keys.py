"""Keys and certificates of sealing: signs, verifies signatures, and verifies the chain of a peer.

P-256, P-384, Ed25519 and ML-DSA. OpenSSL verifies chains, by pyOpenSSL: signatures, dates, path lengths and the flag of
authorities. This module adds what OpenSSL's call does not check here: the purpose of the peer's own certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, mldsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID
from OpenSSL import crypto

from netq.errors import SecurityError
from netq.identity import Certificate
from netq.security.files import describe, load_certificates

# Keys whose `sign` and `verify` take no choice of a hash.
_PRIVATE = (ed25519.Ed25519PrivateKey, mldsa.MLDSA44PrivateKey, mldsa.MLDSA65PrivateKey, mldsa.MLDSA87PrivateKey)
_PUBLIC = (ed25519.Ed25519PublicKey, mldsa.MLDSA44PublicKey, mldsa.MLDSA65PublicKey, mldsa.MLDSA87PublicKey)
_CURVES = ("secp256r1", "secp384r1")
_EXPECTED = "expected P-256, P-384, Ed25519 or ML-DSA, as `netq certs issue` makes them"


class Shown(NamedTuple):
    """A peer's own certificate, after its chain was verified."""

    certificate: Certificate
    verify: Callable[[bytes, bytes], None]  # of a signature, over data; raises SecurityError


def signer(option: str, key: Any) -> Callable[[bytes], bytes]:
    """Return the function that signs with a private key. Raises SecurityError for a key of another kind."""
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in _CURVES:
        return lambda data: key.sign(data, ec.ECDSA(SHA256()))
    if isinstance(key, _PRIVATE):
        return lambda data: bytes(key.sign(data))
    raise SecurityError(f"{option}: a key of the type {type(key).__name__}; {_EXPECTED}")


class Authority:
    """The certificates that this side trusts, and the purpose that a peer's certificate must have."""

    def __init__(self, option: str, path: Path, *, of_servers: bool) -> None:
        self._purpose = ExtendedKeyUsageOID.SERVER_AUTH if of_servers else ExtendedKeyUsageOID.CLIENT_AUTH
        self._role = "server" if of_servers else "client"
        self._store = crypto.X509Store()
        for certificate in load_certificates(option, path):
            self._store.add_cert(crypto.X509.from_cryptography(certificate))
        self._store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)  # trust what is in the file, be it a root or not

    def verify(self, chain: Sequence[bytes]) -> Shown:
        """Return the first certificate of a chain in DER, which must lead to this authority. Raises SecurityError."""
        # The two libraries parse here what a stranger sends, and raise errors of many kinds, not only ValueError: for a
        # version, an extension or a name that they do not know. None of them may end more than the link.
        try:
            own, *others = [x509.load_der_x509_certificate(der) for der in chain]
            self._verify_chain(own, others)
            self._check_purpose(own)
            return Shown(describe(own), verifier(own.public_key()))
        except SecurityError:
            raise
        except Exception as error:
            raise SecurityError(f"the certificate of the {self._role} cannot be read: {error!r}") from error

    def _verify_chain(self, own: x509.Certificate, others: list[x509.Certificate]) -> None:
        first, *rest = [crypto.X509.from_cryptography(certificate) for certificate in (own, *others)]
        try:
            crypto.X509StoreContext(self._store, first, rest).verify_certificate()
        except crypto.X509StoreContextError as error:
            raise SecurityError(f"the certificate of the {self._role} is refused: {error}") from error

    def _check_purpose(self, own: x509.Certificate) -> None:
        purposes: Sequence[x509.ObjectIdentifier] = ()
        usable = True
        for extension in own.extensions:
            if isinstance(extension.value, x509.ExtendedKeyUsage):
                purposes = list(extension.value)
            elif isinstance(extension.value, x509.KeyUsage):
                usable = extension.value.digital_signature
        if self._purpose not in purposes or not usable:
            raise SecurityError(
                f"the peer's certificate is not one of a {self._role}; expected the extended key usage "
                f"{self._role}Auth and digital signatures"
            )


def verifier(key: Any) -> Callable[[bytes, bytes], None]:
    """Return the function that verifies a signature over data with a public key, and raises SecurityError."""

    def verify(signature: bytes, data: bytes) -> None:
        try:
            if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES:
                key.verify(signature, data, ec.ECDSA(SHA256()))
            elif isinstance(key, _PUBLIC):
                key.verify(signature, data)
            else:
                raise SecurityError(f"the peer's certificate has a key of the type {type(key).__name__}; {_EXPECTED}")
        except InvalidSignature:
            raise SecurityError("the peer does not hold the key of its certificate, or messages were changed") from None

    return verify
