"""What a TLS library offers, read from the first message that it sends as a client (RFC 8446, section 4.1.2). Pure.

Libraries have no function that lists their key exchange groups. Called by `netq doctor`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_HEAD = 5 + 4 + 2 + 32  # bytes of the record's and the message's header, version and random number
_SUPPORTED_GROUPS = 10  # the number of the extension (RFC 8446, section 4.2)
_CIPHERS = {
    0x1301: "TLS_AES_128_GCM_SHA256",
    0x1302: "TLS_AES_256_GCM_SHA384",
    0x1303: "TLS_CHACHA20_POLY1305_SHA256",
}
_GROUPS = {  # by their numbers in the registry of IANA, "TLS Supported Groups"
    23: "secp256r1",
    24: "secp384r1",
    25: "secp521r1",
    29: "X25519",
    30: "X448",
    4587: "SecP256r1MLKEM768",
    4588: "X25519MLKEM768",
    4589: "SecP384r1MLKEM1024",
}


class Offer(NamedTuple):
    """What a client offers, the preferred first. Groups that have no name here are left out, such as ffdhe2048."""

    ciphers: list[str]
    groups: list[str]


def parse(hello: bytes) -> Offer:
    """Return the offer in a ClientHello, which is one whole TLS record."""
    _, rest = _split(hello[_HEAD:], 1)  # the session id
    ciphers, rest = _split(rest, 2)
    _, rest = _split(rest, 1)  # compression methods
    extensions, _ = _split(rest, 2)
    groups = next((body for kind, body in _extensions(extensions) if kind == _SUPPORTED_GROUPS), b"\0\0")
    return Offer(_names(ciphers, _CIPHERS), _names(_split(groups, 2)[0], _GROUPS))


def _extensions(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        (kind,) = struct.unpack_from("!H", data)
        body, data = _split(data[2:], 2)
        yield kind, body


def _split(data: bytes, size: int) -> tuple[bytes, bytes]:
    """Return a field whose length is in the first `size` bytes, and what follows it."""
    end = size + int.from_bytes(data[:size])
    return data[size:end], data[end:]


def _names(numbers: bytes, names: dict[int, str]) -> list[str]:
    return [names[number] for (number,) in struct.iter_unpack("!H", numbers) if number in names]
