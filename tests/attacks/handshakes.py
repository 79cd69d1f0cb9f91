"""Peers that must be refused in their handshake: by which error, and how much of what they sent was parsed.

    python -m tests.attacks.handshakes

Prints a row for each attempt. A TCP server and a client, in this process; one of them is not as the other expects, or a
socket sends bytes by hand. The bytes in the table: those that the protocol was given to parse (of an INI, the claim of
who the peer is), and those of messages, which must be 0. It counts what both sides were given.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import netq
from netq import CommunicatorOptions, ConnectionOptions, NetworkLocation, Protocol, Purpose, SecurityOptions
from netq.core import Communicator
from netq.protocol.connection import Connection
from netq.protocol.events import Event
from netq.protocol.session import Session
from netq.protocol.wire import Frame, FrameKind, Greeting
from netq.tcp.client import ClientTransport
from netq.testing.fixtures import LIMIT
from netq.testing.log import LogRecorder
from tests.netq.authority import CLIENT, HOSTS, SERVER, Authority

QUICK: dict[str, Any] = {"retry_min": 0.01, "retry_max": 0.05, "handshake_timeout": 1.0, "linger": 0.0}
A, B = uuid.uuid4(), uuid.uuid4()
TOKEN = bytes(range(16))
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(192)


@dataclass
class Parsed:
    """Bytes that were given to connections, and bytes of messages."""

    frames: int = 0
    messages: int = 0


@dataclass
class Stage:
    """What an attempt needs: certificates, and communicators that are closed after it."""

    folder: Path
    log: LogRecorder
    stack: contextlib.ExitStack
    parsed: Parsed = field(default_factory=Parsed)

    def __post_init__(self) -> None:
        self.authority = Authority(self.folder)

    def server(self, security: SecurityOptions | None = None, **connection: Any) -> Communicator:
        """Return a server."""
        return self._open(
            netq.new(Protocol.TCP, Purpose.SERVER, _options(NetworkLocation(port=0), security, connection))
        )

    def foreign_server(self, security: SecurityOptions, version: ssl.TLSVersion) -> NetworkLocation:
        """Listen with the TLS of Python, which checks nothing of its own certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.maximum_version = version
        assert security.certificate is not None
        context.load_cert_chain(security.certificate, security.key)
        listener = self.stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    with (
                        sock,
                        contextlib.suppress(ssl.SSLError, ConnectionError),
                        context.wrap_socket(sock, server_side=True) as wrapped,
                    ):
                        self.parsed.frames += len(wrapped.recv(65536))

        thread = threading.Thread(target=serve)
        thread.start()
        self.stack.callback(thread.join)
        self.stack.callback(listener.shutdown, socket.SHUT_RDWR)
        return NetworkLocation(*listener.getsockname())

    def client(
        self, netloc: NetworkLocation, security: SecurityOptions | None = None, id: uuid.UUID | None = None
    ) -> Communicator:
        """Return a client that has put a message. It claims `id`, if given, whatever its certificate says."""
        options = _options(netloc, security, {}, id or uuid.uuid4())
        if id is not None:
            client = Communicator(options, Purpose.CLIENT, ClientTransport)
        else:
            client = netq.new(Protocol.TCP, Purpose.CLIENT, options)
        client.put(b"a secret")
        return self._open(client)

    def send(self, server: Communicator, data: bytes) -> socket.socket:
        """Connect, and send bytes by hand."""
        sock = self.stack.enter_context(socket.create_connection(server.netloc, LIMIT))
        sock.sendall(data)
        return sock

    def send_tls(
        self,
        server: Communicator,
        data: bytes,
        security: SecurityOptions,
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    ) -> ssl.SSLSocket | None:
        """Connect with the TLS of Python, and send bytes by hand. None if the handshake fails."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode, context.maximum_version = False, ssl.CERT_NONE, version
        assert security.certificate is not None
        context.load_cert_chain(security.certificate, security.key)
        sock = self.stack.enter_context(socket.create_connection(server.netloc, LIMIT))
        with contextlib.suppress(ssl.SSLError, OSError):
            wrapped = self.stack.enter_context(context.wrap_socket(sock))
            wrapped.sendall(data)
            return wrapped
        return None

    def _open(self, communicator: Communicator) -> Communicator:
        self.stack.callback(communicator.close, 0)
        return communicator


@dataclass(frozen=True)
class Attempt:
    """A peer that must be refused. `error` is a part of the line in the log of the side that refuses it."""

    name: str
    run: Callable[[Stage], object]
    error: str
    parsed: Literal["nothing", "a header", "an INI"] = "nothing"  # of what the peer has sent


def ini(id: uuid.UUID = B, token: bytes = TOKEN, *, epoch: int = 0) -> bytes:
    """Return an INI."""
    return Greeting(id, token, 2**40, 2**18, 10_000, resume=epoch > 0, epoch=epoch).frame().whole()


def plain(data: bytes) -> Callable[[Stage], object]:
    """Return an attempt by these bytes at a server without TLS."""
    return lambda stage: stage.send(stage.server(), data)


def at_tls(data: bytes) -> Callable[[Stage], object]:
    """Return an attempt by these bytes at a server with TLS."""
    return lambda stage: stage.send(stage.server(stage.authority.server()), data)


def as_client(security: Callable[[Authority], SecurityOptions], **server: Any) -> Callable[[Stage], object]:
    """Return an attempt by a client with these options, at a server with mutual TLS."""
    return lambda stage: stage.client(stage.server(stage.authority.server(**server)).netloc, security(stage.authority))


def as_server(security: Callable[[Authority], SecurityOptions], **client: Any) -> Callable[[Stage], object]:
    """Return an attempt by a server with these options to get a client's message."""
    return lambda stage: stage.client(
        stage.server(security(stage.authority)).netloc, stage.authority.client(A, **client)
    )


def foreign_client(usage: Any, urns: tuple[str, ...] = (A.urn,), **issued: Any) -> Callable[[Stage], object]:
    """Return an attempt by a client with a certificate that the authority has issued so."""

    def run(stage: Stage) -> None:
        security = SecurityOptions(*stage.authority.issue([usage], urns=urns, **issued))
        stage.send_tls(stage.server(stage.authority.server()), ini(A), security)

    return run


def foreign_server(
    usage: Any, hosts: tuple[str, ...] = HOSTS, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, **issued: Any
) -> Callable[[Stage], object]:
    """Return an attempt by a server with a certificate that the authority has issued so."""

    def run(stage: Stage) -> None:
        security = SecurityOptions(*stage.authority.issue([usage], hosts, **issued))
        stage.client(stage.foreign_server(security, version), stage.authority.client(A))

    return run


def another_authority(authority: Authority) -> SecurityOptions:
    """Return the options of a client of an authority that the server does not know."""
    key, certificate = Authority(authority.path.parent).issue([CLIENT], urns=(A.urn,))
    return SecurityOptions(key, certificate, authority.path)


def self_signed(authority: Authority) -> SecurityOptions:
    """Return the options of a server whose authority the client does not know."""
    key, certificate = Authority(authority.path.parent).issue([SERVER], HOSTS)
    return SecurityOptions(key, certificate)


def revoked(stage: Stage) -> None:
    """Be a client whose certificate is on the server's list."""
    security = stage.authority.client(A)
    assert security.certificate is not None
    path = stage.folder / "revoked.txt"
    path.write_text(f"{stage.authority.serials[security.certificate]:x}\n")
    stage.client(stage.server(stage.authority.server(revoked=path)).netloc, security)


def old_tls_client(stage: Stage) -> None:
    """Speak TLS 1.2 to a server."""
    stage.send_tls(
        stage.server(stage.authority.server()), ini() + MESSAGE, stage.authority.client(A), ssl.TLSVersion.TLSv1_2
    )


def stolen_token(owner: uuid.UUID) -> Callable[[Stage], object]:
    """Return an attempt to resume A's session with A's token, and a new certificate that names `owner`."""

    def run(stage: Stage) -> None:
        server = stage.server(stage.authority.server())
        first = stage.send_tls(server, ini(A), stage.authority.client(A))
        assert first is not None
        assert first.recv(1), "the server's INI"
        first.close()
        stage.log.wait(f"{A}: lost")
        stage.parsed.frames = 0
        stage.send_tls(server, ini(A, epoch=1), stage.authority.client(owner))

    return run


def two_live_clients(secure: bool) -> Callable[[Stage], object]:
    """Return an attempt by a client with the id of one that is connected."""

    def run(stage: Stage) -> None:
        server = stage.server(stage.authority.server() if secure else None)
        first = stage.client(server.netloc, stage.authority.client(A) if secure else None, A)
        server.get(first.id, timeout=LIMIT)
        while first.statistics()[server.id].queued:  # its ACK is on the way
            pass
        stage.parsed.frames = stage.parsed.messages = 0
        stage.client(server.netloc, stage.authority.client(A) if secure else None, A)

    return run


def taken_over(stage: Stage) -> None:
    """Claim the id of a client that is away for a moment."""
    server = stage.server()
    stage.send(server, ini(A)).close()
    stage.log.wait(f"{A}: lost")
    stage.parsed.frames = 0
    stage.send(server, ini(A, b"another process!"))


MESSAGE = Frame(FrameKind.MSG, length=8, number=1, value=8, body=b"a secret").whole()
BOMB = struct.pack("<BBHIQQ", FrameKind.INI, 0, 0, 2**32 - 1, 0, 0)
MSG = Frame(FrameKind.MSG, length=2**31, number=1, value=2**62).whole()
ATTEMPTS = [
    # Bytes of other protocols, and frames that come too early.
    Attempt("HTTP", plain(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "is no frame of netq", "a header"),
    Attempt("SSH", plain(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n"), "is no frame of netq", "a header"),
    Attempt("TLS, at a server without", plain(TLS_HELLO), "the peer speaks TLS, this side does not", "a header"),
    Attempt("random bytes", plain(bytes(range(7, 107))), "is no frame of netq", "a header"),
    Attempt("an INI of 4 GiB", plain(BOMB), "INI of 4294967295 bytes; expected 8 to 576", "a header"),
    Attempt("a message of 2^62 bytes before INI", plain(MSG), "MSG in state OPENING", "a header"),
    Attempt("a message right behind INI", plain(ini() + MESSAGE), "MSG in state GREETED", "an INI"),
    Attempt("another version", plain(ini()[:28] + b"\x09" + ini()[29:]), "speaks version 9 of the protocol", "an INI"),
    Attempt("half an INI", plain(ini()[:50]), "no greeting within 1 s", "an INI"),
    # What is no TLS, or not enough of it.
    Attempt("plain netq, at a server with TLS", at_tls(ini() + MESSAGE), "is not TLS"),
    Attempt("HTTP, at a server with TLS", at_tls(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "is not TLS"),
    Attempt("half a TLS hello", at_tls(TLS_HELLO[:50]), "no greeting within 1 s"),
    Attempt("a client with TLS 1.2", old_tls_client, "does not speak TLS 1.3"),
    Attempt(
        "a client without post-quantum, required",
        as_client(lambda authority: authority.client(A, post_quantum="off"), post_quantum="require"),
        "a client exchanges keys with X25519, which is not post-quantum",
    ),
    Attempt(
        "a server without post-quantum, required",
        as_server(lambda authority: authority.server(post_quantum="off"), post_quantum="require"),
        "the server 127.0.0.1 exchanges keys with",
    ),
    Attempt("a server with TLS 1.2", foreign_server(SERVER, version=ssl.TLSVersion.TLSv1_2), "does not speak TLS 1.3"),
    # Certificates of clients.
    Attempt("no certificate", as_client(Authority.trusting), "a client shows no certificate"),
    Attempt("a client of another authority", as_client(another_authority), "the certificate of a client is refused"),
    Attempt("an expired client", foreign_client(CLIENT, days=-1), "certificate has expired"),
    Attempt("a client not yet valid", foreign_client(CLIENT, age=-1), "certificate is not yet valid"),
    Attempt("a server's certificate as a client's", foreign_client(SERVER), "the certificate of a client is refu"),
    Attempt("a client without a name", foreign_client(CLIENT, urns=()), "urn:uuid", "an INI"),
    Attempt("a revoked client", revoked, "is revoked", "an INI"),
    Attempt(
        "A's certificate with B's id",
        lambda stage: stage.client(stage.server(stage.authority.server()).netloc, stage.authority.client(A), B),
        f"it claims the id {B}, but its certificate is that of {A}",
        "an INI",
    ),
    Attempt("A's token, B's certificate", stolen_token(B), f"its certificate is that of {B}", "an INI"),
    Attempt("two live clients of one id", two_live_clients(secure=False), "is in use by another client", "an INI"),
    Attempt("the same, with certificates", two_live_clients(secure=True), "is in use by another client", "an INI"),
    Attempt("the id of a client that is away", taken_over, "takeover_grace", "an INI"),
    # Certificates of servers.
    Attempt(
        "a server of another authority", as_server(self_signed), "the certificate of the server 127.0.0.1 is refused"
    ),
    Attempt("a server of another host", foreign_server(SERVER, ("aggregator.local",)), "is refused"),
    Attempt("an expired server", foreign_server(SERVER, days=-1), "certificate has expired"),
    Attempt("a server not yet valid", foreign_server(SERVER, age=-1), "certificate is not yet valid"),
    Attempt("a client's certificate as a server's", foreign_server(CLIENT), "the certificate of the server"),
]


def perform(attempt: Attempt, folder: Path) -> tuple[str, Parsed]:
    """Make the attempt; return the error and what was parsed. Raises AssertionError if it is not refused."""
    with LogRecorder() as log, contextlib.ExitStack() as stack:
        stage = Stage(folder, log, stack)
        stack.enter_context(counting(stage.parsed))
        attempt.run(stage)
        return log.wait(attempt.error), stage.parsed


@contextlib.contextmanager
def counting(parsed: Parsed) -> Iterator[None]:
    """Count what all connections are given, and what sessions get of it."""
    received, place, take_small = Connection.received, Session.place, Session.take_small

    def count_received(self: Connection, n: int, now: float) -> list[Event]:
        parsed.frames += n
        return received(self, n, now)

    def count_placed(self: Session, frame: Frame, *args: Any) -> memoryview:
        parsed.messages += frame.length
        return place(self, frame, *args)

    def count_small(self: Session, data: memoryview, low: int, high: int) -> int:
        stop = take_small(self, data, low, high)
        parsed.messages += stop - low
        return stop

    with (
        mock.patch.object(Connection, "received", count_received),
        mock.patch.object(Session, "place", count_placed),
        mock.patch.object(Session, "take_small", count_small),
    ):
        yield


def _options(
    netloc: NetworkLocation, security: SecurityOptions | None, connection: dict[str, Any], id: uuid.UUID | None = None
) -> CommunicatorOptions:
    options = ConnectionOptions(**{**QUICK, **connection})
    return CommunicatorOptions(id or uuid.uuid4(), netloc, options, security=security)


def main() -> None:
    """Print the table."""
    print("| attempt | refused by | bytes of frames | bytes of messages |\n|---|---|---|---|")
    for attempt in ATTEMPTS:
        with tempfile.TemporaryDirectory() as folder:
            line, parsed = perform(attempt, Path(folder))
        error = line.partition(": ")[2].partition("; ")[0]
        print(f"| {attempt.name} | {error} | {parsed.frames} | {parsed.messages} |", flush=True)


if __name__ == "__main__":
    main()
