"""The proof that a key of a session is a client's: the signature of its certificate's key.

The same certificates as for TLS or sealing. Used by clients, and by a server that has their authority, too: it names a
client whose proof is none before the others refuse it.
"""

from __future__ import annotations

from collections.abc import Callable

from fl.secure.pairs import Entry
from netq.errors import SecurityError
from netq.options import CommunicatorOptions, SealOptions, SecurityOptions

Sign = Callable[[Entry, str], Entry]
Prove = Callable[[Entry, str], None]


def certified(options: CommunicatorOptions) -> tuple[Sign, Prove | None]:
    """Return what signs the entry of a client in a session, and what raises SecurityError unless one is its client's.

    None in place of that: the options have no certificates.
    """
    ours: SecurityOptions | SealOptions | None = options.seal or options.security
    if ours is None or ours.key is None or ours.certificate is None or ours.authority is None:
        return (lambda entry, session: entry), None
    from cryptography.hazmat.primitives.serialization import Encoding

    from netq.security.files import load_identity
    from netq.security.keys import Authority, signer

    name = type(ours).__name__
    identity = load_identity(name, ours.key, ours.certificate)
    chain = [each.public_bytes(Encoding.DER) for each in identity.chain]
    signed = signer(f"{name}.key", identity.key)
    authority = Authority(f"{name}.authority", ours.authority, of_servers=False)

    def sign(entry: Entry, session: str) -> Entry:
        return entry._replace(chain=chain, signature=signed(entry.signed(session)))

    def prove(entry: Entry, session: str) -> None:
        try:
            shown = authority.verify(entry.chain)
            if str(shown.certificate.identity) != entry.client:
                raise SecurityError(f"it shows the certificate of {shown.certificate.identity}")
            shown.verify(entry.signature, entry.signed(session))
        except (SecurityError, ValueError) as error:
            raise SecurityError(f"the key of client {entry.client} is not proven to be its own: {error}") from None

    return sign, prove
