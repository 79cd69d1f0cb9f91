"""TLS for grpc: which PEM it is given. netq/security/tls.py checks the options and the files, with its own errors, and
grpc does the rest; it verifies the server's name by itself. Called by the transports, as they are made.

grpc takes TLS 1.2 as well as 1.3, and Python has no way to tell it otherwise; between two netqs it is 1.3.
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
    """Return what a client trusts. Raises SecurityError if that, or the name of the host, cannot be used."""
    client_side(security, host)
    return security.certificate.read_bytes() if security.certificate else _of_the_system()


def _of_the_system() -> bytes:
    """What the system trusts: grpc by itself would trust a list that it brings along."""
    paths = ssl.get_default_verify_paths()
    files = [Path(paths.cafile)] if paths.cafile else []
    if paths.capath:
        files += sorted(Path(paths.capath).glob("*.[0-9]"))  # by hash, as OpenSSL looks for them
    return b"\n".join([file.read_bytes() for file in files if file.is_file()])
