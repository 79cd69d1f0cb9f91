"""The PEM files of SecurityOptions: errors that name the option and the file. Reads files; no network.

`cryptography` is imported where it is needed: stdlib TLS without certificates of clients does not need it.
"""

from __future__ import annotations

import datetime
import stat
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from netq.errors import InvalidSecurity, SecurityError
from netq.identity import Certificate, certificate_of, identity_in
from netq.version import DISTRIBUTION

if TYPE_CHECKING:
    from cryptography import x509

ENCRYPTED = "encrypted; netq asks for no password, give it a plain key"


class Identity(NamedTuple):
    """A private key of `cryptography`, and the certificate chain for it, the own certificate first."""

    key: Any
    chain: list[x509.Certificate]


def read(option: str, path: Path) -> bytes:
    """Return the bytes of a file. Raises SecurityError, also for what is no file: reading a pipe could take forever."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise SecurityError(f"{option}: {path}: a pipe or a device; expected a file")
        return path.read_bytes()
    except OSError as error:
        raise SecurityError(f"{option}: {path}: not readable: {error.strerror}") from error
    except ValueError as error:  # NUL in the path
        raise SecurityError(f"{option}: {str(path)!r}: no path of a file: {error}") from error


def state(path: Path) -> tuple[int, ...] | None:
    """Return what changes with a file; None if it is missing."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # NUL in the path
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_key(option: str, path: Path) -> bytes:
    """Return the bytes of the file of a private key. Raises SecurityError, also if all users may read it."""
    data = read(option, path)
    if b"PRIVATE KEY-----" not in data:
        raise SecurityError(f"{option}: {path}: no private key in PEM")
    if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        raise SecurityError(f"{option}: {path}: all users of this machine may read it; run: chmod 600 {path}")
    return data


def load_certificates(option: str, path: Path) -> list[x509.Certificate]:
    """Return the certificates of a PEM file, one or more. Raises SecurityError."""
    data = read(option, path)
    try:
        return list(_x509().load_pem_x509_certificates(data))
    except ValueError as error:
        raise SecurityError(f"{option}: {path}: no certificate in PEM") from error


def load_key(option: str, path: Path) -> Any:
    """Return a private key of `cryptography`. Raises SecurityError, also if all users may read the file."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = read_key(option, path)
    try:
        return load_pem_private_key(data, None)
    except TypeError as error:  # it has a password
        raise SecurityError(f"{option}: {path}: {ENCRYPTED}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SecurityError(f"{option}: {path}: cannot be used: {error}") from error


def load_identity(options: str, key: Path, certificate: Path) -> Identity:
    """Return a private key, and its certificate chain; `options` is the class that named them. Raises SecurityError."""
    chain = load_certificates(f"{options}.certificate", certificate)
    private = load_key(f"{options}.key", key)
    if private.public_key() != chain[0].public_key():
        raise SecurityError(f"{options}.key: {key}: not the key of the certificate {certificate}")
    check_dates(f"{options}.certificate", certificate, chain[0])
    return Identity(private, chain)


def check_dates(option: str, path: Path, certificate: x509.Certificate) -> None:
    """Raise SecurityError for a certificate that is not valid now."""
    now = datetime.datetime.now(datetime.UTC)
    if now > certificate.not_valid_after_utc:
        was = f"has expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    elif now < certificate.not_valid_before_utc:
        was = f"is not yet valid, but from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on"
    else:
        return
    raise SecurityError(f"{option}: {path}: {was}; make a new one, or set the clock of this machine")


def own_id(options: str, path: Path) -> uuid.UUID:
    """Return the id in a client's own certificate; `options` is the class that named it. Raises SecurityError."""
    certificate = load_certificates(f"{options}.certificate", path)[0]
    id = identity_in(uris(certificate))
    if id is None:
        raise SecurityError(
            f"{options}.certificate: {path}: names no client, or several; expected one subject alternative name "
            "urn:uuid:…, the client's id, as `netq certs issue` makes it"
        )
    return id


def parse_certificate(pem: bytes) -> Certificate:
    """Return what netq needs of a certificate that a TLS library has verified. Raises SecurityError."""
    x509 = _x509()
    try:
        return describe(x509.load_pem_x509_certificate(pem))
    except Exception as error:  # of many kinds: the parser is stricter than TLS libraries
        raise SecurityError(f"the certificate of a client is refused: it cannot be read: {error!r}") from error


def describe(certificate: x509.Certificate) -> Certificate:
    """Return what netq needs of a certificate."""
    from cryptography.hazmat.primitives.serialization import Encoding

    der, not_after = certificate.public_bytes(Encoding.DER), certificate.not_valid_after_utc.timestamp()
    return certificate_of(der, certificate.serial_number, not_after, uris(certificate), common_name(certificate))


def common_name(certificate: x509.Certificate) -> str | None:
    """Return the common name of the subject; None if it has none, or one that cannot be parsed."""
    oid = _x509().oid.NameOID.COMMON_NAME
    try:
        return next((str(each.value) for each in certificate.subject.get_attributes_for_oid(oid)), None)
    except Exception:  # of many kinds
        return None


def uris(certificate: x509.Certificate) -> list[str]:
    """Return the URIs among the subject alternative names. A certificate that cannot be parsed has none."""
    module = _x509()
    try:
        names = certificate.extensions.get_extension_for_class(module.SubjectAlternativeName).value
    except Exception:  # there is none; or one of many kinds for an extension that `cryptography` does not know
        return []
    return list(names.get_values_for_type(module.UniformResourceIdentifier))


def _x509() -> Any:
    try:
        from cryptography import x509
    except ImportError as error:
        raise InvalidSecurity(
            f"certificates of clients, and sealing, need cryptography: pip install '{DISTRIBUTION}[security]'"
        ) from error
    return x509
