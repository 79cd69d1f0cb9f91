"""Both sides must use TLS, and the client must trust the server's certificate; the log names what is wrong."""

from __future__ import annotations

import logging
import socket
import uuid
from pathlib import Path

import pytest

from netq import CommunicatorOptions, NetworkLocation, Purpose, SecurityError, SecurityOptions, new
from netq.protocol.wire import Frame, FrameKind, Greeting
from netq.security import certificates
from netq.security.tls import client_side
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder


def server_options(files: certificates.Files) -> SecurityOptions:
    return SecurityOptions(files.key, files.certificate)


def client_options(files: certificates.Files) -> SecurityOptions:
    return SecurityOptions(certificate=files.authority)


@pytest.mark.parametrize("secure", ["server", "client"])
def test_tls_on_one_side_only_is_logged_and_delivers_nothing(
    communicators: Communicators, files: certificates.Files, log: LogRecorder, secure: str
) -> None:
    server = communicators.server(security=server_options(files) if secure == "server" else None)
    client = communicators.client(
        server.netloc, security=client_options(files) if secure == "client" else None, linger=0.0
    )
    future = client.put("never")
    line = log.wait(f"127.0.0.1:{server.netloc.port}: ")
    log.wait("the connection was closed", 3)  # it has tried again
    assert len(log.having("the connection was closed", logging.WARNING)) == 1, "the server warns once"
    assert not future.done()
    assert server.statistics() == {}
    assert ("TLS" in line) or ("hung up" in line)
    assert len(log.having("trying again")) <= 2
    assert client.close(LIMIT) == 1
    communicators.release(client)
    good = communicators.client(server.netloc, security=client_options(files) if secure == "server" else None)
    introduce(server, good)


def test_untrusted_server_gets_nothing(
    communicators: Communicators, files: certificates.Files, log: LogRecorder, tmp_path: Path
) -> None:
    server = communicators.server(security=server_options(files))
    wrong = certificates.init(tmp_path)
    client = communicators.client(server.netloc, security=client_options(wrong), linger=0.0)
    client.put("never")
    line = log.wait("the certificate of the server 127.0.0.1 is refused")
    assert "SecurityOptions.certificate" in line
    log.wait("refused this side of the TLS connection", 3)
    assert len(log.having("the certificate of the server")) == 1, "once, though the client tried again"
    assert server.statistics() == {}
    assert client.close(LIMIT) == 1
    communicators.release(client)
    introduce(server, communicators.client(server.netloc, security=client_options(files)))


def test_server_with_another_name_gets_nothing(communicators: Communicators, log: LogRecorder, tmp_path: Path) -> None:
    elsewhere = certificates.init(tmp_path, hosts=["elsewhere.example"])
    server = communicators.server(security=server_options(elsewhere))
    client = communicators.client(server.netloc, security=client_options(elsewhere), linger=0.0)
    client.put("never")
    assert "IP address mismatch" in log.wait("the certificate of the server 127.0.0.1 is refused")
    assert server.statistics() == {}
    assert client.close(LIMIT) == 1
    communicators.release(client)


def test_unusable_keys_raise_and_leave_nothing_open(tmp_path: Path) -> None:
    """tests/conftest.py checks for open descriptors."""
    bad = tmp_path / "bad.pem"
    bad.write_text("no key")
    options = CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0), security=SecurityOptions(bad, bad), workers=2)
    with pytest.raises(SecurityError, match=r"bad\.pem"):
        new(purpose=Purpose.SERVER, options=options)
    options = CommunicatorOptions(security=SecurityOptions(certificate=bad))
    with pytest.raises(SecurityError, match=r"bad\.pem"):
        new(options=options)


def test_close_notify_after_data_ends_only_its_client(
    communicators: Communicators, files: certificates.Files, log: LogRecorder
) -> None:
    server = communicators.server(security=server_options(files))
    good = communicators.client(server.netloc, security=client_options(files))
    introduce(server, good)
    tls = client_side(client_options(files), "127.0.0.1")()
    greeting = Greeting(uuid.uuid4(), bytes(16), 2**40, 2**18, 10_000).frame().whole()
    with socket.create_connection(server.netloc, LIMIT) as sock:
        while not tls.handshaken:
            sock.sendall(tls.to_send())
            tls.received(sock.recv(65536))
        tls.write([memoryview(greeting)])
        sock.sendall(tls.to_send())
        tls.received(sock.recv(65536))  # the server's INI
        tls.write([memoryview(Frame(FrameKind.PING).header())])  # asks for an answer
        tls.close()
        sock.sendall(tls.to_send())  # both in one segment
        log.wait("lost (the peer hung up)")
    good.put("still here").result(LIMIT)
    assert server.get(timeout=LIMIT) == (good.id, "still here")


def test_close_notify_is_noticed_while_the_socket_stays_open(
    communicators: Communicators, files: certificates.Files, log: LogRecorder
) -> None:
    server = communicators.server(security=server_options(files), heartbeat=3600.0)
    tls = client_side(client_options(files), "127.0.0.1")()
    greeting = Greeting(uuid.uuid4(), bytes(16), 2**40, 2**18, 3_600_000).frame().whole()
    with socket.create_connection(server.netloc, LIMIT) as sock:
        while not tls.handshaken:
            sock.sendall(tls.to_send())
            tls.received(sock.recv(65536))
        tls.write([memoryview(greeting)])
        sock.sendall(tls.to_send())
        tls.received(sock.recv(65536))  # the server's INI
        tls.write([memoryview(Frame(FrameKind.ACK, value=2**18).header())])
        tls.close()
        sock.sendall(tls.to_send())
        log.wait("lost (the peer hung up)")
    communicators.abort(server)
