from __future__ import annotations

import datetime
import importlib
import itertools
import os
import random
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from netq.errors import SecurityError
from netq.options import SecurityOptions
from netq.security import certificates
from netq.security import tls as tls_module
from netq.security.engine import OVERHEAD, RECORD
from netq.security.tls import (
    MAX_EMPTY,
    MAX_HANDSHAKE,
    MAX_HANDSHAKE_ANONYMOUS,
    MAX_PENDING,
    Tls,
    client_side,
    server_side,
)

HOST = "aggregator.local"
MIB = 1024**2


class Pair(NamedTuple):
    client: Tls
    server: Tls


class ForeignPeer:
    """A peer that uses ssl directly, without netq. `error` is the error of its handshake."""

    def __init__(self, context: ssl.SSLContext, host: str | None = None, session: ssl.SSLSession | None = None) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self.incoming, self.outgoing, host is None, host, session)
        self.error: ssl.SSLError | None = None

    def received(self, data: bytes) -> None:
        self.incoming.write(data)

    def to_send(self) -> bytes:
        try:
            self.ssl.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self.error = self.error or error
        return self.outgoing.read()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Files:
    return certificates.init(tmp_path_factory.mktemp("certificates"), hosts=[HOST, "127.0.0.1", "::1"])


@pytest.fixture(autouse=True, params=["standard", "openssl"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test with both TLS libraries."""
    name: str = request.param
    module = importlib.import_module(f"netq.security.{name}")
    monkeypatch.setattr("netq.security.tls._backend", lambda options: module)
    return name


@pytest.fixture
def new_pair(files: certificates.Files) -> Callable[[], Pair]:
    server = server_side(SecurityOptions(files.key, files.certificate))
    client = client_side(SecurityOptions(certificate=files.authority), HOST)
    return lambda: Pair(client(), server())


@pytest.fixture
def pair(new_pair: Callable[[], Pair]) -> Pair:
    return complete_handshake(new_pair())


def carry(client: Tls | ForeignPeer, server: Tls | ForeignPeer, step: int = 2**30) -> None:
    """Exchange bytes, `step` at a time, until neither side has more to send."""
    silent = 0
    for source, target in itertools.cycle([(client, server), (server, client)]):
        data = source.to_send()
        for at in range(0, len(data), step):
            target.received(data[at : at + step])
        silent = 0 if data else silent + 1
        if silent == 2:
            return


def complete_handshake(pair: Pair) -> Pair:
    carry(*pair)
    assert pair.client.handshaken
    assert pair.server.handshaken
    return pair


def read(tls: Tls, size: int = 64 * 1024) -> bytes:
    buffer = memoryview(bytearray(size))
    return bytes(buffer[: tls.read_into(buffer)])


def encrypt(tls: Tls, data: bytes) -> bytes:
    """Return the ciphertext of `data`."""
    assert tls.write([memoryview(data)]) == len(data)
    return tls.to_send()


def pump(source: Tls, target: Tls, data: bytes, step: int, room: int) -> bytes:
    """Send all of `data`, `step` bytes of ciphertext at a time, reading into buffers of `room` bytes."""
    rest, got = memoryview(data), bytearray()
    buffer = memoryview(bytearray(room))
    while len(got) < len(data):
        rest = rest[source.write([rest[:1], rest[1:77], rest[77:]]) :]
        wire = source.to_send()
        assert wire, "no progress"
        for at in range(0, len(wire), step):
            target.received(wire[at : at + step])
            while count := target.read_into(buffer):
                got += buffer[:count]
    return bytes(got)


# --- success


def test_handshake_needs_only_an_exchange_of_bytes(new_pair: Callable[[], Pair]) -> None:
    client, server = new_pair()
    assert not client.handshaken
    assert server.to_send() == b""  # the client sends first
    complete_handshake(Pair(client, server))


@pytest.mark.parametrize("step", [1, 7, 1499])
def test_handshake_and_message_in_steps(new_pair: Callable[[], Pair], step: int) -> None:
    client, server = new_pair()
    carry(client, server, step)
    data = random.Random(step).randbytes(20_000)
    assert pump(client, server, data, step, 4096) == data
    assert pump(server, client, data, step, 4096) == data


@pytest.mark.parametrize(("step", "room"), [(1460, 100_003), (16_411, 16_383), (65_537, 5 * MIB), (10 * MIB, 1 * MIB)])
def test_five_mebibytes_both_ways(pair: Pair, step: int, room: int) -> None:
    data = random.Random(step).randbytes(5 * MIB)
    assert pump(pair.client, pair.server, data, step, room) == data
    assert pump(pair.server, pair.client, data[::-1], step, room) == data[::-1]


def test_both_ways_at_once(pair: Pair) -> None:
    there, back = encrypt(pair.client, b"there" * 1000), encrypt(pair.server, b"back" * 1000)
    pair.server.received(there)
    pair.client.received(back)
    assert read(pair.server) == b"there" * 1000
    assert read(pair.client) == b"back" * 1000


def test_read_into_fills_the_buffer_from_many_records(pair: Pair) -> None:
    pair.server.received(encrypt(pair.client, bytes(100_000)))
    buffer = memoryview(bytearray(90_000))
    assert pair.server.read_into(buffer) == 90_000
    assert pair.server.read_into(buffer) == 10_000
    assert pair.server.read_into(buffer) == 0
    assert pair.server.read_into(buffer[:0]) == 0


def test_small_buffers_share_a_record(pair: Pair) -> None:
    assert pair.client.write([memoryview(b"a" * 24), memoryview(b""), memoryview(b"b" * 100)]) == 124
    wire = pair.client.to_send()
    assert len(wire) == 124 + OVERHEAD
    pair.server.received(wire)
    assert read(pair.server) == b"a" * 24 + b"b" * 100


def test_empty_write_sends_nothing(pair: Pair) -> None:
    assert pair.client.write([]) == 0
    assert pair.client.write([memoryview(b"")]) == 0
    assert pair.client.to_send() == b""
    assert pair.client.write([memoryview(b"")] * MAX_PENDING + [memoryview(bytes(RECORD + 1))]) == RECORD + 1


@pytest.mark.parametrize("count", [1, 10, 5 * MIB // 1000])
def test_write_is_bounded(pair: Pair, count: int) -> None:
    data = random.Random(count).randbytes(5 * MIB)
    size = -(-len(data) // count)
    taken = pair.client.write([memoryview(data)[at : at + size] for at in range(0, len(data), size)])
    assert MAX_PENDING * 0.9 < taken <= MAX_PENDING
    assert pair.client.write([memoryview(data)[taken:]]) == 0  # before that is sent
    wire = pair.client.to_send()
    assert len(wire) >= MAX_PENDING - OVERHEAD
    assert len(wire) <= MAX_PENDING + (MAX_PENDING // RECORD + 1) * OVERHEAD
    pair.server.received(wire)
    assert read(pair.server, MIB) == data[:taken]
    assert pair.client.write([memoryview(data)[taken:]]) > MAX_PENDING * 0.9


def test_write_takes_no_more_than_asked(pair: Pair) -> None:
    data = random.Random(1).randbytes(MIB)
    assert pair.client.write([memoryview(data)], 3 * RECORD) == 3 * RECORD
    pair.server.received(pair.client.to_send())
    assert read(pair.server, MIB) == data[: 3 * RECORD]


def test_write_takes_nothing_before_the_end_of_the_handshake(new_pair: Callable[[], Pair]) -> None:
    client, server = new_pair()
    assert client.write([memoryview(b"secret")]) == 0
    server.received(client.to_send())
    assert server.write([memoryview(b"secret")]) == 0
    client.received(server.to_send())
    assert client.write([memoryview(b"x")]) == 1


def test_data_in_the_last_packet_of_the_handshake(new_pair: Callable[[], Pair]) -> None:
    client, server = new_pair()
    server.received(client.to_send())
    client.received(server.to_send())
    assert client.write([memoryview(bytes(200_000))]) == 200_000
    server.received(client.to_send())  # more than MAX_HANDSHAKE, which is no longer the limit
    assert server.handshaken
    assert read(server, MIB) == bytes(200_000)


def test_truncated_handshake_waits_for_more(new_pair: Callable[[], Pair]) -> None:
    client, server = new_pair()
    for source, target in ((client, server), (server, client), (client, server)):
        flight = source.to_send()
        assert flight
        for at in range(len(flight)):
            assert not target.handshaken
            assert read(target) == b""
            assert target.to_send() == b""
            target.received(flight[at : at + 1])
    assert client.handshaken
    assert server.handshaken


def test_truncated_record_waits_for_more(pair: Pair) -> None:
    wire = encrypt(pair.client, b"x" * 100)
    for byte in wire[:-1]:
        pair.server.received(bytes([byte]))
        assert read(pair.server) == b""
    pair.server.received(wire[-1:])
    assert read(pair.server) == b"x" * 100


def test_each_tls_is_an_independent_connection(new_pair: Callable[[], Pair]) -> None:
    first, second = complete_handshake(new_pair()), complete_handshake(new_pair())
    first.server.received(encrypt(first.client, b"first"))
    second.server.received(encrypt(second.client, b"second"))
    assert (read(first.server), read(second.server)) == (b"first", b"second")


def test_server_resumes_no_tls_session(files: certificates.Files) -> None:
    """pyOpenSSL cannot turn its two tickets off, so a ticket may come; it must lead to nothing."""
    server, context, session = server_side(SecurityOptions(files.key, files.certificate)), plain_client(files), None
    for _ in range(2):
        ours, client = server(), ForeignPeer(context, HOST, session)
        carry(client, ours)
        client.received(encrypt(ours, b"x"))  # behind the tickets
        assert client.ssl.read() == b"x"
        assert client.ssl.session_reused is False
        session = client.ssl.session


def test_files_are_read_once(tmp_path: Path) -> None:
    files = certificates.init(tmp_path)
    server = server_side(SecurityOptions(files.key, files.certificate))
    client = client_side(SecurityOptions(certificate=files.authority), "localhost")
    for path in files:
        path.unlink()
    complete_handshake(Pair(client(), server()))


@pytest.mark.parametrize("host", [HOST, HOST.upper(), "127.0.0.1", "::1", "0:0:0:0:0:0:0:1", "::1%lo"])
def test_names_and_addresses_of_the_certificate(files: certificates.Files, host: str) -> None:
    client = client_side(SecurityOptions(certificate=files.authority), host)
    server = server_side(SecurityOptions(files.key, files.certificate))
    complete_handshake(Pair(client(), server()))


def test_certificate_trusted_without_its_authority(files: certificates.Files) -> None:
    """The certificates in the file are trusted, be they roots or not."""
    client = client_side(SecurityOptions(certificate=files.certificate), HOST)
    server = server_side(SecurityOptions(files.key, files.certificate))
    complete_handshake(Pair(client(), server()))


def test_several_authorities_in_one_file(files: certificates.Files, tmp_path: Path) -> None:
    other = certificates.init(tmp_path, hosts=[HOST])
    both = write(tmp_path / "both.pem", other.authority.read_bytes() + files.authority.read_bytes())
    client = client_side(SecurityOptions(certificate=both), HOST)
    for each in (files, other):
        complete_handshake(Pair(client(), server_side(SecurityOptions(each.key, each.certificate))()))


def test_client_without_certificate_trusts_the_system(
    files: certificates.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(files.authority))  # names the system's file for OpenSSL
    server = server_side(SecurityOptions(files.key, files.certificate))
    complete_handshake(Pair(client_side(SecurityOptions(), HOST)(), server()))


# --- which TLS library, and what it negotiates


@pytest.mark.parametrize("aes", [True, False])
def test_chacha20_is_preferred_without_aes_instructions(
    files: certificates.Files, backend: str, monkeypatch: pytest.MonkeyPatch, aes: bool
) -> None:
    monkeypatch.setattr("netq.security.openssl.has_aes", lambda: aes)
    client = client_side(SecurityOptions(certificate=files.authority), HOST)
    monkeypatch.setattr("netq.security.openssl.has_aes", lambda: True)  # the server's own order does not count
    pair = complete_handshake(Pair(client(), server_side(SecurityOptions(files.key, files.certificate))()))
    name = "TLS_AES_256_GCM_SHA384" if aes or backend == "standard" else "TLS_CHACHA20_POLY1305_SHA256"
    for tls in pair:
        assert tls.protection is not None
        assert tls.protection.security.cipher == name


def test_backends_understand_each_other(files: certificates.Files) -> None:
    modules = [importlib.import_module(f"netq.security.{name}") for name in ("standard", "openssl")]
    for at_server, at_client in (modules, modules[::-1]):
        server = Tls(at_server.server(files.key, files.certificate, None)(), "a client")
        client = Tls(at_client.client(HOST, files.authority, "certificate", None, None)(), "the server")
        complete_handshake(Pair(client, server))
        server.received(encrypt(client, b"hello"))
        assert read(server) == b"hello"


def test_the_library_is_chosen_by_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the fixture has chosen
    installed = {"prefer": "openssl", "require": "openssl", "off": "standard"}
    for choice, name in installed.items():
        assert tls_module._backend(SecurityOptions(post_quantum=choice)).__name__ == f"netq.security.{name}"  # type: ignore[arg-type]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert tls_module._backend(SecurityOptions()).__name__ == "netq.security.standard"
    with pytest.raises(SecurityError, match=r"'require' needs pyOpenSSL: pip install 'netq-fl\[security\]'"):
        tls_module._backend(SecurityOptions(post_quantum="require"))


def test_an_old_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("OpenSSL.__version__", "25.1.0")
    with pytest.raises(SecurityError, match=r"pyOpenSSL is 25\.1\.0; expected 26 or later; pip install --upgrade"):
        tls_module._backend(SecurityOptions())
    assert tls_module._backend(SecurityOptions(post_quantum="off")).__name__ == "netq.security.standard"


# --- the end of a connection


def test_close_is_an_orderly_end(pair: Pair) -> None:
    pair.server.received(encrypt(pair.client, b"last words"))
    pair.client.close()
    pair.server.received(pair.client.to_send())
    pair.server.received_eof()
    assert read(pair.server) == b"last words"
    for _ in range(2):
        with pytest.raises(EOFError, match="a client ended the connection"):
            read(pair.server)
    with pytest.raises(EOFError):
        pair.server.write([memoryview(b"too late")])
    pair.server.close()
    pair.client.received(pair.server.to_send())
    with pytest.raises(EOFError, match=f"the server {HOST} ended the connection"):
        read(pair.client)


def test_close_sends_one_close_notify(pair: Pair) -> None:
    pair.client.close()
    assert pair.client.to_send()
    pair.client.close()
    assert pair.client.to_send() == b""


def test_close_before_the_handshake_is_no_error(new_pair: Callable[[], Pair]) -> None:
    for tls in new_pair():
        tls.to_send()
        tls.close()
        assert tls.to_send() == b""


@pytest.mark.parametrize("left", [0, 1, 4, 5, 50, 121])
def test_end_without_close_notify_is_a_cut(pair: Pair, left: int) -> None:
    pair.server.received(encrypt(pair.client, b"whole"))
    pair.server.received(encrypt(pair.client, b"x" * 100)[:left])
    pair.server.received_eof()
    assert read(pair.server) == b"whole"
    for _ in range(2):
        with pytest.raises(ConnectionResetError, match="a client was cut off"):
            read(pair.server)


def test_forged_close_notify_is_an_error(pair: Pair) -> None:
    pair.server.received(CLOSE_NOTIFY)
    with pytest.raises(SecurityError):
        read(pair.server)


@pytest.mark.parametrize("last", [b"", b"\x16", b"\x15\x03\x03\x00\x02\x01\x00"], ids=["none", "some", "close_notify"])
def test_end_during_the_handshake(new_pair: Callable[[], Pair], last: bytes) -> None:
    client, _ = new_pair()
    client.to_send()
    client.received(last)
    client.received_eof()
    assert not client.handshaken
    with pytest.raises(ConnectionResetError, match=f"the server {HOST} hung up during the TLS handshake"):
        read(client)


# --- bytes that an attacker changed

CLOSE_NOTIFY = b"\x15\x03\x03\x00\x02\x01\x00"  # in plaintext


def flips() -> Iterator[tuple[int, int]]:
    """Return each bit of a record's header, and one bit of each other byte."""
    yield from itertools.product(range(5), [1 << bit for bit in range(8)])
    for at in range(5, 60 + OVERHEAD):
        yield at, 1 << at % 8


def test_each_flipped_byte_is_detected(new_pair: Callable[[], Pair]) -> None:
    for at, mask in flips():
        client, server = complete_handshake(new_pair())
        wire = bytearray(encrypt(client, b"good"))
        wire += encrypt(client, b"x" * 60)
        wire[4 + OVERHEAD + at] ^= mask
        server.received(wire + encrypt(client, bytes(2 * RECORD)))  # enough bytes for a length field that is too large
        assert read(server) == b"good"
        for _ in range(2):
            with pytest.raises(SecurityError, match=r"a client is broken: .*something changed bytes on the way"):
                read(server)
        with pytest.raises(SecurityError):
            server.write([memoryview(b"x")])


def test_peer_gets_an_alert_after_a_changed_record(pair: Pair) -> None:
    wire = bytearray(encrypt(pair.client, b"x" * 60))
    wire[30] ^= 1
    pair.server.received(wire)
    with pytest.raises(SecurityError):
        read(pair.server)
    pair.client.received(pair.server.to_send())
    with pytest.raises(SecurityError, match=f"the server {HOST} refused this side .* bad record mac"):
        read(pair.client)


@pytest.mark.parametrize("order", [(0, 0), (1,), (0, 2)], ids=["twice", "one missing", "one missing later"])
def test_repeated_and_missing_records_are_detected(pair: Pair, order: tuple[int, ...]) -> None:
    records = [encrypt(pair.client, bytes([number]) * 10) for number in range(3)]
    for number in order:
        pair.server.received(records[number])
    if order[0] == 0:
        assert read(pair.server) == bytes(10)
    with pytest.raises(SecurityError, match="is broken"):
        read(pair.server)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"GET / HTTP/1.1\r\nHost: aggregator\r\n\r\n", "is not TLS .http request.; set SecurityOptions on both sides"),
        (b"NETQ" + bytes(60), "is not TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "is not TLS"),
        (b"\x16\x03\x01\xff\xff" + bytes(100), "is not TLS"),
        (b"\x16\x03\x03\x00\x04\x0e\x00\x00\x00", "the TLS handshake with .* failed: unexpected message"),
    ],
)
@pytest.mark.parametrize("side", ["client", "server"])
def test_bytes_of_other_protocols(new_pair: Callable[[], Pair], side: str, data: bytes, error: str) -> None:
    tls: Tls = getattr(new_pair(), side)
    tls.received(data)
    for _ in range(2):
        with pytest.raises(SecurityError, match=error):
            read(tls)
    assert not tls.handshaken
    tls.received(bytes(MIB))  # discarded
    with pytest.raises(SecurityError, match=error):
        read(tls)


@pytest.mark.parametrize("side", ["client", "server"])
def test_random_bytes(new_pair: Callable[[], Pair], side: str) -> None:
    for seed in range(100):
        tls: Tls = getattr(new_pair(), side)
        tls.received(random.Random(seed).randbytes(2 * RECORD))
        assert not tls.handshaken
        with pytest.raises(SecurityError, match=r"is not TLS|the TLS handshake with .* failed"):
            read(tls)


@pytest.mark.parametrize(("mutual", "most"), [(False, MAX_HANDSHAKE_ANONYMOUS), (True, MAX_HANDSHAKE)])
def test_endless_handshake(files: certificates.Files, mutual: bool, most: int) -> None:
    authority = files.authority if mutual else None
    server = server_side(SecurityOptions(files.key, files.certificate, authority))()
    hello = b"\x01\x01\xff\xff" + bytes(most)  # one message that announces 128 KiB
    for at in range(0, most, RECORD):
        assert read(server) == b""
        server.received(struct.pack(">BHH", 0x16, 0x0301, RECORD) + hello[at : at + RECORD])
    with pytest.raises(SecurityError, match=r"a client sent \d+ bytes and no end of a TLS handshake"):
        read(server)


# --- peers without a valid certificate


class Case(NamedTuple):
    key: Path
    certificate: Path
    trusted: Path
    host: str
    error: str


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def by_trustme(
    directory: Path, error: str, begin: int = 2020, end: int = 2090, trusted: trustme.CA | None = None, host: str = HOST
) -> Case:
    authority = trustme.CA()
    leaf = authority.issue_cert(
        HOST,
        "127.0.0.1",
        not_before=datetime.datetime(begin, 1, 1, tzinfo=datetime.UTC),
        not_after=datetime.datetime(end, 1, 1, tzinfo=datetime.UTC),
    )
    return Case(
        write(directory / "key.pem", leaf.private_key_pem.bytes()),
        write(directory / "cert.pem", b"".join(blob.bytes() for blob in leaf.cert_chain_pems)),
        write(directory / "trusted.pem", (trusted or authority).cert_pem.bytes()),
        host,
        error,
    )


def self_signed(
    directory: Path, error: str, extensions: list[x509.ExtensionType], trusted: bool, name: str = "a server"
) -> Case:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    pem = serialization.Encoding.PEM
    certificate = write(directory / "cert.pem", builder.sign(key, hashes.SHA256()).public_bytes(pem))
    other = write(directory / "other.pem", trustme.CA().cert_pem.bytes())
    pkcs8 = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Case(write(directory / "key.pem", pkcs8), certificate, certificate if trusted else other, HOST, error)


NAMES = x509.SubjectAlternativeName([x509.DNSName(HOST)])
FOR_CLIENTS = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
BAD: dict[str, Callable[[Path], Case]] = {
    "host name": lambda d: by_trustme(d, r"not valid for 'other.local'; connect by a name", host="other.local"),
    "sub-domain": lambda d: by_trustme(d, r"not valid for 'a.aggregator.local'", host=f"a.{HOST}"),
    "address": lambda d: by_trustme(d, r"not valid for '127.0.0.2'; connect by an address", host="127.0.0.2"),
    "authority": lambda d: by_trustme(d, r"give the certificate of its authority", trusted=trustme.CA()),
    "expired": lambda d: by_trustme(d, r"has expired; make a new one, or the clock", end=2021),
    "not yet valid": lambda d: by_trustme(d, r"not yet valid.*; make a new one, or the clock", begin=2089),
    "self-signed": lambda d: self_signed(d, r"self.signed certificate; if you trust it", [NAMES], trusted=False),
    "wrong use": lambda d: self_signed(d, r"purpose; make one with .*serverAuth", [NAMES, FOR_CLIENTS], trusted=True),
    "no name": lambda d: self_signed(d, r"not valid for 'aggregator.local'", [], trusted=True, name=HOST),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_certificate(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = BAD[name](tmp_path)
    monkeypatch.setattr("netq.security.files.check_dates", lambda *_: None)  # the client's check is tested here
    server = server_side(SecurityOptions(case.key, case.certificate))()
    client = client_side(SecurityOptions(certificate=case.trusted), case.host)()
    carry(client, server)
    assert not client.handshaken
    assert not server.handshaken
    with pytest.raises(SecurityError, match=f"the certificate of the server {case.host} is refused: .*{case.error}"):
        read(client)
    with pytest.raises(SecurityError, match="is refused"):
        client.write([memoryview(b"secret")])
    with pytest.raises(SecurityError, match="a client refused this side of the TLS connection: "):  # the alert
        read(server)


@pytest.mark.parametrize("extensions", [[NAMES], [NAMES, x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])]])
def test_valid_variants_of_the_bad_certificates(tmp_path: Path, extensions: list[x509.ExtensionType]) -> None:
    (tmp_path / "a").mkdir()
    for case in (by_trustme(tmp_path / "a", ""), self_signed(tmp_path, "", extensions, trusted=True)):
        server = server_side(SecurityOptions(case.key, case.certificate))
        client = client_side(SecurityOptions(certificate=case.trusted), case.host)
        complete_handshake(Pair(client(), server()))


SAN = x509.SubjectAlternativeName.oid
UNREADABLE = {
    "a name of a kind that cryptography does not know": (SAN, b"\x30\x06\xa5\x04\xa1\x02\x0c\x00"),
    "a name that is no text": (SAN, b"\x30\x04\x82\x02\xff\xfe"),
    "an unknown TLS feature": (x509.TLSFeature.oid, b"\x30\x03\x02\x01\x63"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_server_with_a_certificate_that_python_cannot_read(tmp_path: Path, what: str) -> None:
    case = self_signed(tmp_path, "", [x509.UnrecognizedExtension(*UNREADABLE[what])], trusted=True)
    pair = Pair(
        client_side(SecurityOptions(certificate=case.trusted), HOST)(),
        server_side(SecurityOptions(case.key, case.certificate))(),
    )
    carry(*pair)
    with pytest.raises(SecurityError, match=f"the certificate of the server {HOST} is refused"):
        read(pair.client)


@pytest.mark.parametrize("what", UNREADABLE)
def test_clients_with_certificates_that_python_cannot_read(
    tmp_path: Path, files: certificates.Files, what: str, backend: str
) -> None:
    """The server refuses them, or finds no identity in them."""
    case = self_signed(tmp_path, "", [x509.UnrecognizedExtension(*UNREADABLE[what])], trusted=True)
    client = client_side(SecurityOptions(case.key, case.certificate, authority=files.authority), HOST)()
    server = server_side(SecurityOptions(files.key, files.certificate, authority=case.certificate))()
    carry(client, server)
    if backend == "openssl":
        with pytest.raises(SecurityError, match=r"a client is refused: it cannot be read: .*; make"):
            read(server)
    else:
        assert server.protection is not None
        assert server.protection.security.identity is None


def test_client_without_certificate_refuses_a_private_authority(files: certificates.Files) -> None:
    server = server_side(SecurityOptions(files.key, files.certificate))()
    client = client_side(SecurityOptions(), HOST)()
    carry(client, server)
    with pytest.raises(SecurityError, match=r"give the certificate of its authority in SecurityOptions\.authority"):
        read(client)
    assert not client.handshaken


def plain_client(files: certificates.Files) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(files.authority)
    return context


def plain_server(files: certificates.Files) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    return context


def test_client_of_tls_1_2(files: certificates.Files) -> None:
    context = plain_client(files)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    client, server = ForeignPeer(context, HOST), server_side(SecurityOptions(files.key, files.certificate))()
    carry(client, server)
    assert client.error is not None
    assert client.error.reason == "TLSV1_ALERT_PROTOCOL_VERSION"
    with pytest.raises(SecurityError, match=r"a client does not speak TLS 1\.3.*update"):
        read(server)


def test_server_of_tls_1_2(files: certificates.Files) -> None:
    context = plain_server(files)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    client, server = client_side(SecurityOptions(certificate=files.authority), HOST)(), ForeignPeer(context)
    carry(client, server)
    assert server.error is not None
    with pytest.raises(SecurityError, match=rf"the server {HOST} does not speak TLS 1\.3"):
        read(client)


def test_foreign_peers_of_tls_1_3(files: certificates.Files) -> None:
    client, server = (
        ForeignPeer(plain_client(files), HOST),
        server_side(SecurityOptions(files.key, files.certificate))(),
    )
    carry(client, server)
    client.ssl.write(b"hello")
    server.received(client.to_send())
    assert read(server) == b"hello"
    ours, theirs = client_side(SecurityOptions(certificate=files.authority), HOST)(), ForeignPeer(plain_server(files))
    carry(ours, theirs)
    theirs.ssl.write(b"hello")
    ours.received(theirs.to_send())  # its session tickets, before data
    assert read(ours) == b"hello"


def test_server_that_wants_a_client_certificate(files: certificates.Files) -> None:
    context = plain_server(files)
    context.verify_mode = ssl.CERT_REQUIRED
    client, server = client_side(SecurityOptions(certificate=files.authority), HOST)(), ForeignPeer(context)
    carry(client, server)
    with pytest.raises(SecurityError, match=f"the server {HOST} refused this side .*certificate required"):
        read(client)


def key_updates(secret: bytes, *words: bytes) -> Iterator[bytes]:
    """Yield, for each key in turn, a record for each word and one that requests the next key (RFC 8446, 4.6.3)."""

    def expand(label: bytes, size: int) -> bytes:
        info = struct.pack(">HB", size, 6 + len(label)) + b"tls13 " + label + b"\0"
        return HKDFExpand(hashes.SHA384(), size, info).derive(secret)

    while True:
        key, iv = AESGCM(expand(b"key", 32)), int.from_bytes(expand(b"iv", 12), "big")
        records = b""
        for number, inner in enumerate([*[word + b"\x17" for word in words], b"\x18\x00\x00\x01\x01" + b"\x16"]):
            head = b"\x17\x03\x03" + struct.pack(">H", len(inner) + 16)
            records += head + key.encrypt((iv ^ number).to_bytes(12, "big"), inner, head)
        yield records
        secret = expand(b"traffic upd", 48)


UPDATE = 27  # bytes of a record that requests or announces a new key


class Updater(NamedTuple):
    """A server, and the secret of its client, to send what Python's ssl cannot: new keys."""

    server: Tls
    secret: bytes


@pytest.fixture
def updater(files: certificates.Files, tmp_path: Path) -> Updater:
    context = plain_client(files)
    context.keylog_filename = str(tmp_path / "keys")
    client, server = ForeignPeer(context, HOST), server_side(SecurityOptions(files.key, files.certificate))()
    carry(client, server)
    assert client.ssl.cipher() == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
    lines = (tmp_path / "keys").read_text().splitlines()
    (secret,) = [line.split()[2] for line in lines if line.startswith("CLIENT_TRAFFIC_SECRET_0")]
    return Updater(server, bytes.fromhex(secret))


@pytest.mark.slow
def test_key_updates_with_unread_answers_end_the_connection(updater: Updater, monkeypatch: pytest.MonkeyPatch) -> None:
    most = MAX_PENDING // 16
    monkeypatch.setattr("netq.security.tls.MAX_PENDING", most)
    server, records = updater.server, key_updates(updater.secret, b"x")
    for number in range(100):  # allowed: the peer reads each answer before its next request
        server.received(next(records))
        assert read(server) == b"x"
        assert len(server.to_send()) == (UPDATE if number else 0)
    asked = 0
    while not server.ended:
        server.received(next(records))
        assert read(server) == b"x"
        asked += 1
    assert 2 * most // UPDATE < asked <= 4 * most // UPDATE  # measured after every MAX_PENDING received
    with pytest.raises(SecurityError, match="asks for ever new keys and does not take the answers"):
        read(server)


def test_records_without_data_are_limited(updater: Updater) -> None:
    server, records = updater.server, key_updates(updater.secret)
    for _ in range(MAX_EMPTY // UPDATE):
        server.received(next(records))
        assert read(server) == b""
        server.to_send()
    assert not server.ended
    server.received(next(records))
    with pytest.raises(SecurityError, match=r"a client sent \d+ bytes of TLS without any data in them"):
        read(server)


# --- options


def test_server_needs_both_files(files: certificates.Files) -> None:
    with pytest.raises(SecurityError, match=r"SecurityOptions\.key: None; a server needs"):
        server_side(SecurityOptions(None, files.certificate))
    with pytest.raises(SecurityError, match=r"SecurityOptions\.certificate: None; a server needs"):
        server_side(SecurityOptions(files.key, None))


def test_client_with_a_key_is_refused(files: certificates.Files) -> None:
    with pytest.raises(
        SecurityError, match=r"SecurityOptions\.key: .*server-key\.pem; a client with a key .*leave out `key`"
    ):
        client_side(SecurityOptions(files.key, files.authority), HOST)


def refused(key: Path, certificate: Path, option: str, path: Path, error: str) -> None:
    with pytest.raises(SecurityError) as caught:
        server_side(SecurityOptions(key, certificate))
    text = str(caught.value)
    assert text.startswith(f"SecurityOptions.{option}: {path}: ")
    assert error in text


def test_key_of_another_certificate(files: certificates.Files, tmp_path: Path) -> None:
    other = certificates.init(tmp_path)
    refused(other.key, files.certificate, "key", other.key, f"not the key of the certificate {files.certificate}")


def test_key_of_another_kind(files: certificates.Files, tmp_path: Path) -> None:
    pem = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    key = write(tmp_path / "ed25519.pem", pem)
    refused(key, files.certificate, "key", key, f"not the key of the certificate {files.certificate}")


def test_encrypted_key(files: certificates.Files, tmp_path: Path) -> None:
    private = serialization.load_pem_private_key(files.key.read_bytes(), None)
    pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    key = write(tmp_path / "encrypted.pem", pem)
    refused(key, files.certificate, "key", key, "encrypted; netq asks for no password")


def test_files_that_are_not_pem(files: certificates.Files, tmp_path: Path) -> None:
    junk = write(tmp_path / "junk.pem", b"-----BEGIN NOTHING-----\n")
    half = write(tmp_path / "half.pem", files.key.read_bytes()[:80])
    broken = write(tmp_path / "broken.pem", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    refused(junk, files.certificate, "key", junk, "no private key in PEM")
    refused(files.certificate, files.certificate, "key", files.certificate, "no private key in PEM")
    refused(half, files.certificate, "key", half, "cannot be used")
    refused(broken, files.certificate, "key", broken, "cannot be used")
    refused(files.key, junk, "certificate", junk, "no certificate in PEM")
    refused(files.key, files.key, "certificate", files.key, "no certificate in PEM")
    with pytest.raises(SecurityError, match=r"SecurityOptions\.certificate: .*junk\.pem: no certificate in PEM"):
        client_side(SecurityOptions(certificate=junk), HOST)


def test_pipes_and_devices(files: certificates.Files, tmp_path: Path) -> None:
    """Reading them could take forever, or all memory."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refused(pipe, files.certificate, "key", pipe, "a pipe or a device; expected a file")
    refused(files.key, pipe, "certificate", pipe, "a pipe or a device; expected a file")
    refused(Path("/dev/zero"), files.certificate, "key", Path("/dev/zero"), "a pipe or a device; expected a file")
    with pytest.raises(SecurityError, match=r"SecurityOptions\.certificate: .*pipe: a pipe or a device"):
        client_side(SecurityOptions(certificate=pipe), HOST)


def test_missing_files(files: certificates.Files, tmp_path: Path) -> None:
    gone = write(tmp_path / "gone.pem", b"")
    options = [SecurityOptions(gone, files.certificate), SecurityOptions(files.key, gone)]
    client = SecurityOptions(certificate=gone)
    gone.unlink()
    for option, name in zip(options, ("key", "certificate"), strict=True):
        with pytest.raises(SecurityError, match=rf"SecurityOptions\.{name}: .*gone\.pem: not readable: No such file"):
            server_side(option)
    with pytest.raises(SecurityError, match=r"SecurityOptions\.certificate: .*gone\.pem: not readable: No such file"):
        client_side(client, HOST)


def test_a_path_with_nul(files: certificates.Files) -> None:
    bad = Path("a\0b.pem")
    for options in (SecurityOptions(bad, files.certificate), SecurityOptions(files.key, bad)):
        with pytest.raises(SecurityError, match=r"SecurityOptions\.(key|certificate): .*: no path of a file"):
            server_side(options)


@pytest.mark.parametrize("host", ["", ".local", "a..b", "a\0b", "a" * 64])
def test_invalid_host(files: certificates.Files, host: str) -> None:
    with pytest.raises(SecurityError, match="is no name that a certificate could be checked for"):
        client_side(SecurityOptions(certificate=files.authority), host)
