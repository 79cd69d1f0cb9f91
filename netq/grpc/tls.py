"""TLS for grpc: reads the PEM files that grpc gets. Called by the transports when they are made.

netq/security/tls.py checks the options and the files, with its own errors; grpc does the rest, and verifies the
server's name itself. grpc accepts TLS 1.2 as well as 1.3, and its Python API cannot change that. Two netq peers use
1.3.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from netq.options import SecurityOptions
from netq.security.tls import client_side, server_side


def identity(security: SecurityOptions) -> tuple[bytes, bytes]:
    """Return a server's key and certificate chain. Raises SecurityError if they cannot be used."""
    server_side(security)
    assert security.key is not None
    assert security.certificate is not None
    return security.key.read_bytes(), security.certificate.read_bytes()


def authorities(security: SecurityOptions, host: str) -> bytes:
    """Return the certificates that a client trusts. Raises SecurityError if they, or the host name, cannot be used."""
    client_side(security, host)
    return security.certificate.read_bytes() if security.certificate else _of_the_system()


def _of_the_system() -> bytes:
    """Return the system's certificates: grpc's default is a list of its own."""
    paths = ssl.get_default_verify_paths()
    files = [Path(paths.cafile)] if paths.cafile else []
    if paths.capath:
        files += sorted(Path(paths.capath).glob("*.[0-9]"))  # named by hash, as OpenSSL looks them up
    return b"\n".join([file.read_bytes() for file in files if file.is_file()])
