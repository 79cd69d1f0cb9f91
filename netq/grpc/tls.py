"""TLS for grpc: reads the PEM files that grpc gets, and what grpc tells of a connection.

netq/security/tls.py checks the options and the files, with its own errors; grpc does the rest, and verifies the
server's name itself. Its Python API can neither choose the version nor the group of the key exchange. Only the server
sees what was negotiated. So the server checks both for each call, before it reads the first byte, and tells the client
in the headers of its response. A client that requires post-quantum key exchange waits for these headers before it
sends the first byte; they come from the server that TLS has authenticated.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from netq.errors import SecurityError
from netq.identity import Protection, Security, is_post_quantum, negotiated
from netq.options import SecurityOptions
from netq.security.files import load_certificates, parse_certificate
from netq.security.renewal import Renewed
from netq.security.tls import client_side, server_side

HEADER = "netq-tls"  # version and group, separated by a space
_CURVES = ("secp256r1", "secp384r1")


class Files(NamedTuple):
    """The contents of the PEM files."""

    key: bytes | None
    certificate: bytes | None
    trusted: bytes | None


def of_server(security: SecurityOptions) -> Files:
    """Return the files of a server; `trusted` are the authorities of its clients. Raises SecurityError."""
    server_side(security)
    assert security.key is not None
    assert security.certificate is not None
    if security.authority is not None:
        _check_kind(security.certificate)
    trusted = security.authority.read_bytes() if security.authority else None
    return Files(security.key.read_bytes(), security.certificate.read_bytes(), trusted)


def of_client(security: SecurityOptions, host: str) -> Files:
    """Return the files of a client. Raises SecurityError if they, or the host name, cannot be used."""
    client_side(security, host)
    if security.authority is None:
        return Files(None, None, security.certificate.read_bytes() if security.certificate else _of_the_system())
    trusted = security.authority.read_bytes()
    if security.key is None or security.certificate is None:
        return Files(None, None, trusted)
    _check_kind(security.certificate)
    return Files(security.key.read_bytes(), security.certificate.read_bytes(), trusted)


def renewed(security: SecurityOptions, make: Callable[[], Files]) -> Renewed[Files]:
    """Return the files, read again when they change. Raises SecurityError."""
    return Renewed(make, (security.key, security.certificate, security.authority))


def protection(context: Mapping[str, Sequence[bytes]]) -> Protection:
    """Return what a server's `auth_context()` tells of a call."""
    certificate = None
    if pem := context.get("x509_pem_cert"):
        certificate = parse_certificate(pem[0])
    version, group = (_text(context, name) for name in ("ssl_tls_version", "ssl_negotiated_key_exchange_group"))
    return negotiated(version, None, group or None, certificate)


def headers(security: Security) -> tuple[tuple[str, str], ...]:
    """Return the headers by which a server tells its client what was negotiated."""
    return ((HEADER, f"{security.version} {security.group or ''}".strip()),)


def read_headers(metadata: Any) -> Protection | None:
    """Return what the headers of a response tell; None if they tell nothing: a proxy has made the connection."""
    value = dict(metadata or ()).get(HEADER)
    if not isinstance(value, str) or not value:
        return None
    version, _, group = value.partition(" ")
    return negotiated(version, None, group or None, None)


def refusal(found: Protection | None, peer: str, *, require: bool) -> SecurityError | None:
    """Return why a connection is refused; None if it is not."""
    group = None if found is None else found.security.group
    if found is not None and found.security.version != "TLSv1.3":
        return SecurityError(f"{peer} does not speak TLS 1.3, and netq nothing older; update its TLS library")
    if require and not is_post_quantum(group):
        exchange = f"exchanges keys with {group}" if group else "does not tell how keys were exchanged"
        return SecurityError(
            f"{peer} {exchange}, which is not post-quantum, and SecurityOptions.post_quantum is 'require'; update its "
            "grpcio, connect without a proxy in between, or allow 'prefer' here"
        )
    return None


def _text(context: Mapping[str, Sequence[bytes]], name: str) -> str:
    values = context.get(name) or (b"",)
    return values[0].decode("ascii", "replace")


def _check_kind(path: Path) -> None:
    """Raise SecurityError for a certificate that grpc does not take in a handshake with client certificates."""
    key = load_certificates("SecurityOptions.certificate", path)[0].public_key()
    kind = type(key).__name__.removesuffix("PublicKey")
    curve = getattr(getattr(key, "curve", None), "name", "")
    if kind != "RSA" and curve not in _CURVES:
        raise SecurityError(
            f"SecurityOptions.certificate: {path}: a certificate of {curve or kind}; gRPC takes P-256, P-384 and RSA"
        )


def _of_the_system() -> bytes:
    """Return the system's certificates: grpc's default is a list of its own."""
    paths = ssl.get_default_verify_paths()
    files = [Path(paths.cafile)] if paths.cafile else []
    if paths.capath:
        files += sorted(Path(paths.capath).glob("*.[0-9]"))  # named by hash, as OpenSSL looks them up
    return b"\n".join([file.read_bytes() for file in files if file.is_file()])
