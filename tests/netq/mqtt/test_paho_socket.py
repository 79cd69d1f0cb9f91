"""The socket that paho uses: buffering, and the errors of the real socket."""

from __future__ import annotations

import select
import socket

import pytest

from netq import SecurityOptions
from netq.io.sockets import wrap
from netq.mqtt.paho_socket import PahoSocket
from netq.security import certificates
from netq.security.tls import client_side


def test_hang_up_during_the_tls_handshake_raises_oserror(
    files: certificates.Files,
) -> None:
    near, far = socket.socketpair()
    with near:
        sock = PahoSocket(wrap(near, client_side(SecurityOptions(certificate=files.authority), "127.0.0.1")))
        far.close()
        with pytest.raises(OSError):
            sock.push()  # the beginning of the handshake


def test_error_shows_only_received_bytes() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.send(b"\xe0\x02\x8e\x00")
        with pytest.raises(ConnectionRefusedError, match=r"it said b'\\xe0\\x02\\x8e\\x00'$"):
            PahoSocket(wrap(near, None)).fill()


def test_partial_writes_are_continued_by_push() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        sock, data = PahoSocket(wrap(near, None)), bytes(range(256)) * 8192
        assert sock.send(data) == len(data)
        sock.close()  # as paho does behind its last words
        got = bytearray()
        while not sock.idle:
            sock.push()
            got += far.recv(len(data))
        while len(got) < len(data):
            got += far.recv(len(data))
        assert got == data


def test_fill_receives_after_all_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        near.setblocking(False)
        sock = PahoSocket(wrap(near, None))
        with pytest.raises(BlockingIOError):
            sock.fill()
        with pytest.raises(BlockingIOError):
            sock.recv(1)
        for data in (b"\x20\x03\0", b"\0\0"):
            far.send(data)
            select.select([near], [], [], 10)
            sock.fill()
            assert sock.more
            sock.fill()
            assert sock.recv(1) + sock.recv(100) == data
        far.close()
        with pytest.raises(ConnectionResetError, match="it hung up"):
            sock.fill()
