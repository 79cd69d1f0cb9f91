"""A private authority and the certificates that it signs (X.509, RFC 5280): makes, signs, encodes and parses them.

Every server's and client's certificate has a name urn:uuid:…, which for a client is its id. Touches no files; called by
certificates.py, which has the folder.
"""

from __future__ import annotations

import contextlib
import datetime
import enum
import ipaddress
import math
import os
import re
import uuid
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from netq.errors import SecurityError
from netq.identity import identity_in
from netq.security.files import uris
from netq.version import DISTRIBUTION

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, mldsa
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise ImportError(
        f"netq.security.certificates needs cryptography 49 or later: pip install '{DISTRIBUTION}[security]'"
    ) from error

PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | mldsa.MLDSA65PrivateKey
PublicKey: TypeAlias = ec.EllipticCurvePublicKey | mldsa.MLDSA65PublicKey

BACKDATED = datetime.timedelta(days=1)  # the clock of a board is often slow
MAX_DAYS = 3650  # validity of an authority, which no certificate outlives
E = TypeVar("E", bound=x509.ExtensionType)
_DNS_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")


class Algorithm(enum.StrEnum):
    """The kind of all keys of an authority. Each member is a string: you may pass `"p256"` for `Algorithm.P256`.

    P256:      ECDSA on the curve P-256. Every TLS library takes it.
    ML_DSA_65: a post-quantum signature (FIPS 204). Only TLS by pyOpenSSL takes it: neither gRPC, nor a Python with
               OpenSSL older than 3.5, nor mosquitto and nginx of Debian 12. A handshake has 32 KB instead of 3.
    """

    P256 = "p256"
    ML_DSA_65 = "ml-dsa-65"


class CertificateKind(enum.StrEnum):
    """What a certificate is for."""

    AUTHORITY = "authority"
    SERVER = "server"
    CLIENT = "client"


class Signed(NamedTuple):
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: PrivateKey

    def certificate_pem(self) -> bytes:
        """Return the certificate in PEM."""
        return pem_of(self.certificate)

    def key_pem(self) -> bytes:
        """Return the key in PEM, not encrypted."""
        return _key_pem(self.key)


class Requested(NamedTuple):
    """A request for a certificate, and the private key that it is for."""

    request: x509.CertificateSigningRequest
    key: PrivateKey

    def request_pem(self) -> bytes:
        """Return the request in PEM."""
        return self.request.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        """Return the key in PEM, not encrypted."""
        return _key_pem(self.key)


def new_authority(algorithm: Algorithm) -> Signed:
    """Return an authority with a name of its own, so that a client that trusts several of them finds the right one."""
    key = _generate(algorithm)
    name = _common_name(f"netq authority {os.urandom(8).hex()}")
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=MAX_DAYS)
    builder = _builder(name, name, key.public_key(), key, until)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(authority=True), critical=True)
    return Signed(_sign(builder, key), key)


def sign(authority: Signed, name: str, id: uuid.UUID, hosts: Sequence[str], days: int) -> Signed:
    """Return a new key and a certificate for it, as `certify` makes it."""
    key = _generate(_algorithm_for(authority))
    return Signed(certify(authority, key.public_key(), name, id, hosts, days), key)


def certify(
    authority: Signed, key: PublicKey, name: str, id: uuid.UUID, hosts: Sequence[str], days: int
) -> x509.Certificate:
    """Return a certificate for a key: a server's at these hosts, or a client's if there are none.

    Raises SecurityError for an invalid host, for days that the authority does not last, and for a key of another
    algorithm than the authority's.
    """
    if (its := _algorithm_of(key)) is not _algorithm_for(authority):
        expected = f"expected one of {_algorithm_for(authority)}, as the authority wants"
        raise SecurityError(f"its key is of {its or 'another algorithm'}; {expected}")
    names = [*map(_host_name, hosts), x509.UniformResourceIdentifier(id.urn)]
    until = _end(authority.certificate, days)
    usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = _builder(_common_name(name), authority.certificate.subject, key, authority.key, until)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(authority=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _sign(builder, authority.key)


def new_request(name: str, algorithm: Algorithm) -> Requested:
    """Return a new key, and a request to certify it (PKCS #10, RFC 2986)."""
    key = _generate(algorithm)
    builder = x509.CertificateSigningRequestBuilder().subject_name(_common_name(name))
    return Requested(builder.sign(key, _hash(key)), key)


def parse_request(pem: bytes) -> PublicKey:
    """Return the key that a request is for. Raises SecurityError unless who has made it has the private key."""
    try:
        request = x509.load_pem_x509_csr(pem)
        key, is_valid = request.public_key(), request.is_signature_valid
    except (ValueError, UnsupportedAlgorithm):
        raise SecurityError("no certificate request in PEM; `netq certs request` makes one") from None
    if not is_valid:
        raise SecurityError("its signature is not of its own key; let the other side make it again")
    if not isinstance(key, PublicKey):
        raise SecurityError(f"a key of {type(key).__name__}; expected one that `netq certs request` has made")
    return key


def pem_of(certificate: x509.Certificate) -> bytes:
    """Return a certificate in PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def parse(pem: bytes) -> x509.Certificate:
    """Return the first certificate of a PEM file. Raises SecurityError."""
    try:
        return x509.load_pem_x509_certificates(pem)[0]
    except ValueError:
        raise SecurityError("no certificate in PEM") from None


def parse_key(pem: bytes) -> PrivateKey:
    """Return the key of a PEM file. Raises SecurityError."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except TypeError:
        raise SecurityError("encrypted; expected a key without a password") from None
    except (ValueError, UnsupportedAlgorithm):
        raise SecurityError("no private key in PEM") from None
    if not isinstance(key, PrivateKey):
        raise SecurityError(f"a key of {type(key).__name__}; expected one that `netq certs` has made")
    return key


def algorithm_of(certificate: x509.Certificate) -> Algorithm | None:
    """Return the algorithm of a certificate's key; None for one of which netq makes no certificates."""
    return _algorithm_of(certificate.public_key())


def _algorithm_for(authority: Signed) -> Algorithm:
    """Return the algorithm of the keys that an authority certifies."""
    return Algorithm.P256 if isinstance(authority.key, ec.EllipticCurvePrivateKey) else Algorithm.ML_DSA_65


def _algorithm_of(key: object) -> Algorithm | None:
    if isinstance(key, mldsa.MLDSA65PublicKey):
        return Algorithm.ML_DSA_65
    is_p256 = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    return Algorithm.P256 if is_p256 else None


def kind_of(certificate: x509.Certificate) -> CertificateKind:
    """Return what a certificate is for."""
    constraints = _extension(certificate, x509.BasicConstraints)
    if constraints is not None and constraints.ca:
        return CertificateKind.AUTHORITY
    usage = _extension(certificate, x509.ExtendedKeyUsage)
    return (
        CertificateKind.SERVER
        if usage is not None and ExtendedKeyUsageOID.SERVER_AUTH in usage
        else CertificateKind.CLIENT
    )


def id_of(certificate: x509.Certificate) -> uuid.UUID | None:
    """Return the id of a certificate; None if it names none."""
    return identity_in(uris(certificate))


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the names and addresses of a server's certificate."""
    names = _extension(certificate, x509.SubjectAlternativeName)
    if names is None:
        return ()
    addresses = names.get_values_for_type(x509.IPAddress)
    return (*names.get_values_for_type(x509.DNSName), *map(str, addresses))


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority has signed this certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _extension(certificate: x509.Certificate, kind: type[E]) -> E | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, ValueError):  # ValueError: it cannot be parsed
        return None


def _generate(algorithm: Algorithm) -> PrivateKey:
    if algorithm is Algorithm.P256:
        return ec.generate_private_key(ec.SECP256R1())
    try:
        return mldsa.MLDSA65PrivateKey.generate()
    except UnsupportedAlgorithm as error:
        raise SecurityError(
            f"{algorithm}: the OpenSSL of this cryptography does not have it; install cryptography from the package "
            f"index, or choose {Algorithm.P256}"
        ) from error


def _sign(builder: x509.CertificateBuilder, key: PrivateKey) -> x509.Certificate:
    return builder.sign(key, _hash(key))


def _hash(key: PrivateKey) -> hashes.SHA256 | None:
    """Return the hash that is signed; ML-DSA has its own."""
    return hashes.SHA256() if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _key_pem(key: PrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _host_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    with contextlib.suppress(UnicodeError):
        name = host.encode("idna").decode("ascii")
        if _DNS_NAME.fullmatch(name):
            return x509.DNSName(name)
    raise SecurityError(f"{host!r} is neither a DNS name nor an IP address; no port, no https://")


def _end(authority: x509.Certificate, days: int) -> datetime.datetime:
    """Return when a certificate of so many days ends: not after its authority."""
    now, last = datetime.datetime.now(datetime.UTC), authority.not_valid_after_utc
    if last < now:
        raise SecurityError(f"the authority has expired on {last:%Y-%m-%d}; make a new one in another folder")
    most = math.ceil((last - now) / datetime.timedelta(days=1))
    if not 1 <= days <= most:
        raise SecurityError(f"a certificate of {days} days; expected 1 to {most}, the days left of its authority")
    return min(last, now + datetime.timedelta(days=days))


def _builder(
    subject: x509.Name, issuer: x509.Name, public: PublicKey, issuer_key: PrivateKey, until: datetime.datetime
) -> x509.CertificateBuilder:
    issuer_public = issuer_key.public_key()
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime.now(datetime.UTC) - BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_public), critical=False)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
