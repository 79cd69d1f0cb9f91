"""Certificates for demonstrations, tests and small federations: a private authority, and one server certificate.

Called by users and tests, never by a communicator. The only module that imports the package `cryptography`. A
federation with its own authority does not need this module.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from netq.errors import SecurityError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise ImportError("netq.security.certificates needs cryptography: pip install cryptography") from error

BACKDATED = datetime.timedelta(days=1)  # the clock of a board is often slow
MAX_DAYS = 10_000  # days

_DNS_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")


class Files(NamedTuple):
    """The PEM files that `make` wrote: `authority` for every client, `key` and `certificate` for the server alone."""

    authority: Path
    key: Path
    certificate: Path


def make(
    directory: Path,
    hosts: Sequence[str] = ("localhost", "127.0.0.1", "::1"),
    days: int = 365,
    overwrite: bool = False,
) -> Files:
    """Write authority.pem, server-key.pem and server.pem into `directory`, for a server at these names and addresses.

    The authority's private key is never written: it signs this one certificate and is discarded. For another server, or
    after `days`, call this again and give the new authority.pem to every client.

    The keys are P-256. Only the owner can read the server's key file, from its first byte on. Existing files are kept,
    and SecurityError is raised, unless `overwrite`. Invalid hosts or days raise SecurityError, too.
    """
    names = _names(hosts)
    if not 1 <= days <= MAX_DAYS:
        raise SecurityError(f"a certificate of {days} days; expected 1 to {MAX_DAYS}")
    directory = Path(directory)
    files = Files(directory / "authority.pem", directory / "server-key.pem", directory / "server.pem")
    authority, certificate, key = _issue(names, days)
    _prepare_directory(files, overwrite)
    _write(files.key, _private_pem(key), 0o600)
    _write(files.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    _write(files.authority, authority.public_bytes(serialization.Encoding.PEM), 0o644)
    return files


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    if isinstance(hosts, str) or not hosts:
        raise SecurityError(f"hosts: {hosts!r}; expected a list of names and addresses, as in ['aggregator.local']")
    return [_name(host) for host in hosts]


def _name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    with contextlib.suppress(UnicodeError):
        name = host.encode("idna").decode("ascii")
        if _DNS_NAME.fullmatch(name):
            return x509.DNSName(name)
    raise SecurityError(f"{host!r} is neither a DNS name nor an IP address; no port, no https://")


def _issue(
    names: list[x509.GeneralName], days: int
) -> tuple[x509.Certificate, x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return a new authority, a server certificate that it signed, and the server's key."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    # Each authority has its own name, so that a client that trusts several of them finds the right one.
    authority_name = _common_name(f"netq authority {os.urandom(8).hex()}")
    authority = _builder(authority_name, authority_name, authority_key.public_key(), authority_key, days)
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    authority = authority.add_extension(_key_usage(authority=True), critical=True)
    server = _builder(_common_name("netq server"), authority_name, key.public_key(), authority_key, days)
    server = server.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    server = server.add_extension(_key_usage(authority=False), critical=True)
    server = server.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    server = server.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return authority.sign(authority_key, hashes.SHA256()), server.sign(authority_key, hashes.SHA256()), key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
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


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _prepare_directory(files: Files, overwrite: bool) -> None:
    for path in files:
        if overwrite:
            path.unlink(missing_ok=True)
        elif os.path.lexists(path):
            raise SecurityError(
                f"{path} exists and is left as it is; choose another directory, or overwrite (overwrite=True)"
            )
    files.key.parent.mkdir(parents=True, exist_ok=True)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Create `path` with `mode` from the start. O_EXCL: it is no file or link that another user has put there."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
