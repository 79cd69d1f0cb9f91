"""What a client sends with its vector, so that the committee can open the sum: shares of its secrets. Pure.

A client's secrets are the key of its own mask, and those of the masks that it shares with its neighbours, in the order
of the roster. Each keeper gets a packet with one share of each, sealed with a key of the pair and the round. The client
commits to each share, and to each secret, by a hash: so wrong shares are found, and who gave them.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fl.errors import InvalidUpdate
from fl.secure import shamir
from fl.secure.pairs import TAG

HASH = 32  # bytes
_NONCE = bytes(12)  # each key seals one packet


class Dealt(NamedTuple):
    """The packets of one client, its hashes of the shares, and those of the secrets; each by keeper, then by secret."""

    packets: bytes
    shares: bytes
    secrets: bytes

    def parted(self, keepers: int, secrets: Sequence[int]) -> list[Dealt]:
        """Return what each of some clients has dealt, of which this is one after the other. Raises InvalidUpdate.

        secrets: how many each of them has.
        """
        sizes = [(keepers * packet_size(count), keepers * count * HASH, count * HASH) for count in secrets]
        expected, found = tuple(map(sum, zip(*sizes, strict=True))), tuple(map(len, self))
        if found != expected:
            raise InvalidUpdate(f"its packets and hashes have {found} bytes; expected {expected}")
        parts = [io.BytesIO(each) for each in self]
        return [Dealt(*(part.read(size) for part, size in zip(parts, its, strict=True))) for its in sizes]

    def packet(self, keeper: int, secrets: int) -> bytes:
        """Return the packet of one keeper."""
        size = packet_size(secrets)
        return self.packets[size * keeper :][:size]

    def is_share(self, share: bytes, keeper: int, secret: int, secrets: int) -> bool:
        """Return whether the client has committed to a share."""
        return hash_of(share) == self.shares[HASH * (keeper * secrets + secret) :][:HASH]

    def is_secret(self, found: bytes, secret: int) -> bool:
        """Return whether the client has committed to a secret."""
        return hash_of(found) == self.secrets[HASH * secret :][:HASH]


def packet_size(secrets: int) -> int:
    """Return the bytes of a packet."""
    return shamir.SHARE * secrets + TAG


def deal(secrets: Sequence[bytes], keys: Mapping[str, bytes], threshold: int, about: bytes) -> Dealt:
    """Return what a client sends. keys: of the packets, by keeper, in order. about: what is sealed with them."""
    by_secret = [shamir.split(secret, len(keys), threshold) for secret in secrets]
    sealed, hashes = list[bytes](), list[bytes]()
    for at, key in enumerate(keys.values()):
        shares = [shares[at] for shares in by_secret]
        sealed.append(_cipher(key).encrypt(_NONCE, b"".join(shares), about))
        hashes += map(hash_of, shares)
    return Dealt(b"".join(sealed), b"".join(hashes), b"".join(map(hash_of, secrets)))


def opened(packet: bytes, key: bytes, about: bytes) -> list[bytes] | None:
    """Return the shares in a packet, None if it is not sealed with this key and for this."""
    from cryptography.exceptions import InvalidTag

    try:
        shares = _cipher(key).decrypt(_NONCE, packet, about)
    except InvalidTag:
        return None
    return [shares[start : start + shamir.SHARE] for start in range(0, len(shares), shamir.SHARE)]


def hash_of(value: bytes) -> bytes:
    """Return a commitment to a share or a secret. Both are random."""
    return hashlib.sha256(value).digest()


def _cipher(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key)
