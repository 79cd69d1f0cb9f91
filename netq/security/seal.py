"""Sealing for a communicator: reads the files of SealOptions, and returns what makes sealed connections.

Called by the communicator. Imports the packages of the extra `security`, and what needs them, only if sealing is used.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from netq.errors import InvalidSecurity
from netq.options import ConnectionOptions, SealOptions
from netq.protocol.connection import Connection
from netq.protocol.session import Session
from netq.security.files import load_identity, own_id
from netq.security.processor import has_aes
from netq.security.renewal import Renewed
from netq.version import DISTRIBUTION

NewConnection = Callable[[uuid.UUID, ConnectionOptions, float, Session | None], Connection]


def sealed_connections(options: SealOptions, *, is_client: bool) -> NewConnection:
    """Return a factory of sealed connections. The files are read now, and when they change. Raises SecurityError."""
    try:
        from cryptography.hazmat.primitives import hpke  # noqa: F401  # cryptography 49 or newer

        from netq.security import handshake, keys, sealed, shared
    except ImportError as error:
        raise InvalidSecurity(
            f"CommunicatorOptions.seal: {error}; sealing needs the extra `security`: pip install "
            f"'{DISTRIBUTION}[security]'"
        ) from error
    from cryptography.hazmat.primitives.serialization import Encoding

    # A processor without AES instructions computes ChaCha20 several times faster.
    ciphers = handshake.Cipher.AES_256_GCM, handshake.Cipher.CHACHA20_POLY1305
    blocks = shared.SharedBlocks()

    def load() -> sealed.Sealing:
        identity = load_identity("SealOptions", options.key, options.certificate)
        credentials = handshake.Credentials(
            tuple(certificate.public_bytes(Encoding.DER) for certificate in identity.chain),
            keys.signer(f"SealOptions.key: {options.key}", identity.key),
            keys.Authority("SealOptions.authority", options.authority, of_servers=is_client),
            ciphers if has_aes() else ciphers[::-1],
        )
        return sealed.Sealing(credentials, blocks, is_client)

    sealing = Renewed(load, (options.key, options.certificate, options.authority))
    return lambda *arguments: sealed.SealedConnection(sealing.current(), *arguments)


def sealed_id(options: SealOptions) -> uuid.UUID:
    """Return the id in a client's certificate. Raises SecurityError."""
    return own_id("SealOptions", options.certificate)
