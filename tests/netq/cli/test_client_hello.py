"""The first message of a TLS client: a recorded one, and those of both libraries."""

from __future__ import annotations

import ssl

import pytest
from OpenSSL import SSL

from netq.cli.client_hello import parse

# A ClientHello put together by hand, with an unknown cipher, an unknown extension and an unknown group.
BODY = (
    bytes.fromhex("0303") + bytes(32)  # version, random number
    + bytes.fromhex("20") + bytes(32)  # session id
    + bytes.fromhex("0006 1303 1301 5600")  # ciphers
    + bytes.fromhex("0100")  # compression methods
    + bytes.fromhex("0015")  # extensions
    + bytes.fromhex("ff01 0001 00")  # one that is not read
    + bytes.fromhex("000a 000c 000a 11ec 0100 001d 0017 0a0a")  # supported groups, 256 is ffdhe2048
)  # fmt: skip
HELLO = bytes.fromhex("160301") + (len(BODY) + 4).to_bytes(2) + b"\1" + len(BODY).to_bytes(3) + BODY


def test_recorded_hello() -> None:
    offer = parse(HELLO)
    assert offer.ciphers == ["TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"]
    assert offer.groups == ["X25519MLKEM768", "X25519", "secp256r1"]


def test_hello_without_groups() -> None:
    end = HELLO.index(bytes.fromhex("000a 000c"))
    hello = HELLO[: end - 7] + bytes.fromhex("0005 ff01 0001 00")
    assert parse(hello).groups == []
    assert len(parse(hello).ciphers) == 2


def test_standard_library() -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_ecdh_curve("secp384r1")
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    assert parse(outgoing.read()).groups == ["secp384r1"]


def test_pyopenssl() -> None:
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_tls13_ciphersuites(b"TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384")
    connection = SSL.Connection(context)
    connection.set_connect_state()
    with pytest.raises(SSL.WantReadError):
        connection.do_handshake()
    offer = parse(connection.bio_read(2**16))
    assert offer.ciphers == ["TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_256_GCM_SHA384"]
    assert offer.groups[0] == "X25519MLKEM768"
