"""The proof that a key of a session is a client's: the signature of its certificate's key.

The same certificates as for TLS or sealing. Used by clients, and by a server that has their authority, too: it names a
client whose proof is none before the others refuse it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fl.secure.pairs import Entry
from netq.errors import SecurityError
from netq.identity import Certificate
from netq.options import CommunicatorOptions, SealOptions, SecurityOptions

Sign = Callable[[Entry, str], Entry]
Prove = Callable[[Entry, str], None]


def certified(options: CommunicatorOptions) -> tuple[Sign, Prove | None]:
    """Return what signs the entry of a client in a session, and what raises SecurityError unless one is its client's.

    None in place of that: the options have no certificates. Files that change are read again, as for links: keys,
    certificates, authorities, and the list `revoked`, which a client's options may name for this, too.
    """
    ours: SecurityOptions | SealOptions | None = options.seal or options.security
    if ours is None or ours.key is None or ours.certificate is None or ours.authority is None:
        return (lambda entry, session: entry), None
    from netq.security.keys import Authority
    from netq.security.renewal import Renewed
    from netq.security.revocation import RevocationList

    name, key, certificate = type(ours).__name__, ours.key, ours.certificate
    own = Renewed(partial(_own, name, key, certificate), (key, certificate))
    trusted = Renewed(partial(Authority, f"{name}.authority", ours.authority, of_servers=False), (ours.authority,))
    revoked = None if ours.revoked is None else RevocationList(f"{name}.revoked", ours.revoked)

    def sign(entry: Entry, session: str) -> Entry:
        chain, signed = own.current()
        return entry._replace(chain=chain, signature=signed(entry.signed(session)))

    def prove(entry: Entry, session: str) -> None:
        try:
            shown = trusted.current().verify(entry.chain)
            _check_named(shown.certificate, entry.client)
            if revoked is not None:
                revoked.refresh()
                if shown.certificate.serial in revoked:
                    raise SecurityError(f"its certificate, serial number {shown.certificate.serial:x}, is revoked")
            shown.verify(entry.signature, entry.signed(session))
        except (SecurityError, ValueError) as error:
            raise SecurityError(f"the key of client {entry.client} is not proven to be its own: {error}") from None

    return sign, prove


def _own(name: str, key: Path, certificate: Path) -> tuple[list[bytes], Callable[[bytes], bytes]]:
    """Return the chain of a client's own certificate, in DER, and what signs with its key. Raises SecurityError."""
    from cryptography.hazmat.primitives.serialization import Encoding

    from netq.security.files import load_identity
    from netq.security.keys import signer

    identity = load_identity(name, key, certificate)
    return [each.public_bytes(Encoding.DER) for each in identity.chain], signer(f"{name}.key", identity.key)


def _check_named(certificate: Certificate, client: str) -> None:
    if certificate.identity is None:
        raise SecurityError(
            "its certificate names no client, or several; expected one subject alternative name urn:uuid:…, the "
            "client's id, as `netq certs issue` makes it"
        )
    if str(certificate.identity) != client:
        raise SecurityError(f"it shows the certificate of {certificate.identity}")
