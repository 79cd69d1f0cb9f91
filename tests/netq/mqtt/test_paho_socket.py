"""What paho takes for its socket: the error that ends it is told, and is never called paho's."""

from __future__ import annotations

import select
import socket

import pytest

from netq import SecurityOptions
from netq.io.sockets import wrap
from netq.mqtt.paho_socket import PahoSocket
from netq.security import certificates
from netq.security.tls import client_side


def test_a_peer_that_is_gone_while_tls_has_something_to_say_is_the_error_that_is_told(
    files: certificates.Files,
) -> None:
    near, far = socket.socketpair()
    with near:
        channel = PahoSocket(wrap(near, client_side(SecurityOptions(certificate=files.authority), "127.0.0.1")))
        far.close()
        with pytest.raises(OSError):
            channel.push()  # the beginning of the handshake


def test_of_what_is_not_mqtt_no_byte_is_shown_that_did_not_come() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.send(b"\xe0\x02\x8e\x00")
        with pytest.raises(ConnectionRefusedError, match=r"it said b'\\xe0\\x02\\x8e\\x00'$"):
            PahoSocket(wrap(near, None)).fill()


def test_what_is_written_leaves_as_far_as_the_socket_goes_and_the_rest_later() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        channel, data = PahoSocket(wrap(near, None)), bytes(range(256)) * 8192
        assert channel.send(data) == len(data)
        channel.close()  # as paho does behind its last words
        got = bytearray()
        while not channel.idle:
            channel.push()
            got += far.recv(len(data))
        while len(got) < len(data):
            got += far.recv(len(data))
        assert got == data


def test_what_has_come_is_read_in_pieces_and_received_again_when_it_is_used_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        near.setblocking(False)
        channel = PahoSocket(wrap(near, None))
        with pytest.raises(BlockingIOError):
            channel.fill()
        with pytest.raises(BlockingIOError):
            channel.recv(1)
        for data in (b"\x20\x03\0", b"\0\0"):
            far.send(data)
            select.select([near], [], [], 10)
            channel.fill()
            assert channel.more
            channel.fill()
            assert channel.recv(1) + channel.recv(100) == data
        far.close()
        with pytest.raises(ConnectionResetError, match="it hung up"):
            channel.fill()
