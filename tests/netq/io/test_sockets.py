"""What the TLS layer keeps from the selector: a pipe says that there is more, and does little in one call."""

from __future__ import annotations

import fcntl
import socket
import sys
import termios
from collections.abc import Iterator
from typing import cast

import pytest

from netq.errors import SecurityError
from netq.io.sockets import PIECE, PlainSocket, TlsSocket
from netq.options import SecurityOptions
from netq.security import certificates
from netq.security.engine import OVERHEAD, RECORD
from netq.security.tls import Tls, client_side, server_side

BIG = 512 * 1024


class Ends:
    """A peer that has only its TLS layer and a socket, and a pipe at the other end."""

    def __init__(self, files: certificates.Files) -> None:
        self.tls: Tls = client_side(SecurityOptions(certificate=files.authority), "127.0.0.1")()
        self.sock, sock = socket.socketpair()
        self.sock.setblocking(False)
        sock.setblocking(False)
        self.pipe = TlsSocket(sock, server_side(SecurityOptions(files.key, files.certificate))())
        self._carry()
        self.tls.received(self.sock.recv(65536))
        self._carry()
        assert self.tls.handshaken
        assert self.pipe.push()

    def _carry(self) -> None:
        self.say()
        with pytest.raises(BlockingIOError):
            self.hear(1)
        self.pipe.push()

    def say(self, *words: bytes) -> None:
        """Send each of these as a record of its own, in one go."""
        for word in words:
            self.tls.write([memoryview(word)])
        self.sock.send(self.tls.to_send())

    def hear(self, room: int) -> bytes:
        buffer = bytearray(room)
        return bytes(buffer[: self.pipe.recv_into(memoryview(buffer))])

    def unread(self) -> int:
        """The bytes that wait in the pipe's socket."""
        return int.from_bytes(fcntl.ioctl(self.pipe.sock, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.fixture
def ends(files: certificates.Files) -> Iterator[Ends]:
    ends = Ends(files)
    yield ends
    ends.sock.close()
    ends.pipe.sock.close()


def test_more_is_set_when_plaintext_does_not_fit(ends: Ends) -> None:
    ends.say(b"abc", b"def")
    assert ends.hear(4) == b"abcd"
    assert ends.unread() == 0
    assert ends.pipe.more
    assert ends.hear(4) == b"ef"
    assert not ends.pipe.more
    with pytest.raises(BlockingIOError):
        ends.hear(4)


def test_more_is_set_when_an_end_follows_good_bytes(ends: Ends) -> None:
    ends.tls.write([memoryview(b"bye")])
    ends.tls.close()
    ends.say()
    assert ends.hear(10) == b"bye"
    assert ends.pipe.more
    assert ends.hear(10) == b""


def test_more_is_set_when_a_bad_record_follows_good_bytes(ends: Ends) -> None:
    ends.tls.write([memoryview(b"good")])
    good = ends.tls.to_send()
    ends.tls.write([memoryview(b"spoiled")])
    spoiled = bytearray(ends.tls.to_send())
    spoiled[-1] ^= 1
    ends.sock.send(good + spoiled)
    assert ends.hear(10) == b"good"
    assert ends.pipe.more
    with pytest.raises(SecurityError, match="something changed bytes on the way"):
        ends.hear(10)


def test_tiny_records_are_received_a_few_in_each_call(ends: Ends) -> None:
    records = 5000  # beyond the 64 KiB of ciphertext that are taken at once
    ends.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * BIG)
    before = ends.unread()
    for _ in range(records // 500):
        ends.say(*[b"x"] * 500)
    assert ends.unread() - before == records * (1 + OVERHEAD)
    got = ends.hear(BIG)
    assert 0 < len(got) < records, "all of them in one call"
    assert ends.unread() > 0
    while ends.unread():  # so the selector tells
        got += ends.hear(BIG)
    assert got == b"x" * records
    assert not ends.pipe.more


def test_a_large_buffer_is_filled_in_one_call(ends: Ends) -> None:
    ends.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * BIG)
    data = bytes(range(256)) * (6 * RECORD // 256)
    ends.say(data)
    assert ends.hear(len(data)) == data
    assert ends.unread() == 0


def test_sending_after_the_peers_end_is_a_network_error(ends: Ends) -> None:
    ends.tls.write([memoryview(b"bye")])
    ends.tls.close()
    ends.say()
    ends.hear(10)
    with pytest.raises(ConnectionResetError, match="ended the connection"):
        ends.pipe.send([memoryview(b"into the void")])


def test_a_plain_pipe_has_more_when_the_buffer_is_full() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.setblocking(False)
        pipe = PlainSocket(far)
        near.send(b"abcdef")
        assert pipe.recv_into(memoryview(bytearray(4))) == 4
        assert pipe.more
        assert pipe.recv_into(memoryview(bytearray(4))) == 2
        assert not pipe.more


class Scripted:
    """A socket that has so many bytes at each call, or raises."""

    def __init__(self, *script: int | OSError) -> None:
        self.script = list(script)
        self.asked: list[int] = []

    def recv_into(self, buffer: memoryview) -> int:
        self.asked.append(len(buffer))
        step = self.script.pop(0)
        if isinstance(step, OSError):
            raise step
        return step


@pytest.mark.parametrize(
    ("script", "count", "more"),
    [
        ([PIECE, PIECE, 10], 2 * PIECE + 10, False),
        ([PIECE, BlockingIOError()], PIECE, False),
        ([PIECE, 0], PIECE, True),
        ([PIECE, ConnectionResetError()], PIECE, True),
        ([PIECE, PIECE, PIECE, 5], 3 * PIECE + 5, True),
        ([0], 0, True),
    ],
)
def test_a_plain_socket_receives_while_pieces_are_full(script: list[int | OSError], count: int, more: bool) -> None:
    sock = Scripted(*script)
    pipe = PlainSocket(cast(socket.socket, sock))
    assert pipe.recv_into(memoryview(bytearray(3 * PIECE + 5))) == count
    assert pipe.more == more
    assert not sock.script
    assert max(sock.asked) == PIECE
    if isinstance(script[-1], ConnectionResetError):
        with pytest.raises(ConnectionResetError):
            pipe.recv_into(memoryview(bytearray(1)))


def test_a_plain_socket_raises_the_first_error() -> None:
    pipe = PlainSocket(cast(socket.socket, Scripted(ConnectionResetError())))
    with pytest.raises(ConnectionResetError):
        pipe.recv_into(memoryview(bytearray(PIECE)))
