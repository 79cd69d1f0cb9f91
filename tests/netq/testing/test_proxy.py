"""Each fault of the proxy, with plain sockets. Times are lower bounds, because a machine may be busy."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from netq import NetworkLocation
from netq.testing.proxy import Proxy

LIMIT = 30.0  # seconds
SILENCE = 0.05  # seconds in which bytes would arrive
MIB = 1024**2
SEGMENTS = slice(152, 156)  # of struct tcp_info (linux/tcp.h): tcpi_data_segs_in


class Setup:
    """A proxy and its upstream listener. Each link is two sockets: the client's and the accepted one."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
        self.proxy = stack.enter_context(Proxy(NetworkLocation(*self._listener.getsockname())))
        self._listener.settimeout(LIMIT)

    def connect(self) -> socket.socket:
        return self._stack.enter_context(socket.create_connection(self.proxy.netloc, LIMIT))

    def link(self) -> tuple[socket.socket, socket.socket]:
        near = self.connect()
        far = self._stack.enter_context(self._listener.accept()[0])
        far.settimeout(LIMIT)
        return near, far


@pytest.fixture
def setup() -> Iterator[Setup]:
    with ExitStack() as stack:
        yield Setup(stack)


def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := sock.recv(count - len(data))):
        data += piece
    return data


def silent(sock: socket.socket) -> bool:
    return not select.select([sock], [], [], SILENCE)[0]


def test_bytes_pass_both_ways_and_are_counted(setup: Setup) -> None:
    near, far = setup.link()
    near.sendall(b"question")
    assert read(far, 8) == b"question"
    far.sendall(b"answer")
    assert read(near, 6) == b"answer"
    setup.proxy.wait(14, 0)
    assert setup.proxy.passed == 14
    with pytest.raises(TimeoutError, match="14 bytes have passed, expected 15"):
        setup.proxy.wait(15, SILENCE)


def test_end_of_one_direction_leaves_the_other_open(setup: Setup) -> None:
    near, far = setup.link()
    near.shutdown(socket.SHUT_WR)
    assert far.recv(1) == b""
    far.sendall(b"still here")
    assert read(near, 10) == b"still here"
    far.close()
    assert near.recv(1) == b""


def test_latency_delays_each_direction(setup: Setup) -> None:
    near, far = setup.link()
    setup.proxy.latency = 0.1
    for source, target in ((near, far), (far, near)):
        start = time.monotonic()
        source.sendall(b"x")
        assert read(target, 1) == b"x"
        assert time.monotonic() - start >= 0.1


def test_changed_latency_keeps_the_order_of_bytes(setup: Setup) -> None:
    near, far = setup.link()
    setup.proxy.latency = 0.2
    near.sendall(b"first")
    assert silent(far)
    setup.proxy.latency = 0.0
    near.sendall(b", second")
    assert read(far, 13) == b"first, second"


def test_jitter_has_a_seed_and_keeps_the_order_of_bytes(setup: Setup) -> None:
    near, far = setup.link()
    setup.proxy.latency, setup.proxy.jitter = 0.02, 0.02
    data = bytes(range(256))
    for number in data:
        near.sendall(bytes([number]))
        select.select([far], [], [], 0.001)
    assert read(far, len(data)) == data
    with Proxy(setup.proxy.upstream, seed=1) as one, Proxy(setup.proxy.upstream, seed=1) as same:
        one.latency, one.jitter = same.latency, same.jitter = 0.2, 0.1
        delays = [one.delay() for _ in range(1000)]
        assert delays == [same.delay() for _ in range(1000)]
        assert 0.1 <= min(delays) < 0.11
        assert 0.29 < max(delays) <= 0.3


@pytest.mark.parametrize(("slice", "segments"), [(1, 10), (3, 4), (100, 1)])
def test_slice_limits_the_bytes_that_pass_at_once(setup: Setup, slice: int, segments: int) -> None:
    near, far = setup.link()
    setup.proxy.slice = slice
    near.sendall(b"0123456789")
    assert read(far, 10) == b"0123456789"
    info = far.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    assert struct.unpack("I", info[SEGMENTS]) == (segments,)


@pytest.mark.slow
def test_bandwidth_limits_each_direction(setup: Setup) -> None:
    near, far = setup.link()
    setup.proxy.bandwidth = 200_000
    for source, target in ((near, far), (far, near)):
        start = time.monotonic()
        source.sendall(bytes(40_000))
        assert read(target, 40_000) == bytes(40_000)
        assert time.monotonic() - start >= 0.14, "all but the last twentieth of a second"


def test_slow_receiver_stops_the_sender_without_loss(setup: Setup) -> None:
    near, far = setup.link()
    near.setblocking(False)
    piece = bytes(range(256)) * 256
    sent = 0
    while select.select([], [near], [], 0.2)[1]:
        sent += near.send(piece[sent % len(piece) :])
        assert sent < 64 * MIB, "the proxy goes on reading, though nothing is read from it"
    received = read(far, sent)
    assert received == (piece * (sent // len(piece) + 1))[:sent]


def test_slow_close_is_late_and_after_the_data(setup: Setup) -> None:
    near, far = setup.link()
    setup.proxy.slow_close = 0.1
    near.sendall(b"last words")
    start = time.monotonic()
    near.close()
    assert read(far, 11) == b"last words"
    assert time.monotonic() - start >= 0.1


def test_held_bytes_and_the_end_pass_after_release(setup: Setup) -> None:
    near, far = setup.link()
    setup.proxy.hold(after=3)
    near.sendall(b"abcdef")
    near.close()
    assert read(far, 3) == b"abc"
    assert silent(far)
    assert setup.proxy.passed == 3
    setup.proxy.release()
    assert read(far, 4) == b"def"


def test_new_links_are_accepted_while_held(setup: Setup) -> None:
    setup.proxy.hold()
    near, far = setup.link()
    near.sendall(b"x")
    assert silent(far)
    setup.proxy.release()
    assert read(far, 1) == b"x"


def test_cut_closes_both_ends_of_every_link(setup: Setup) -> None:
    links = [setup.link(), setup.link()]
    setup.proxy.cut()
    assert [end.recv(1) for link in links for end in link] == [b""] * 4
    near, far = setup.link()
    near.sendall(b"anew")
    assert read(far, 4) == b"anew"


def test_cut_drops_held_bytes(setup: Setup) -> None:
    near, far = setup.link()
    setup.proxy.hold()
    near.sendall(b"lost")
    assert silent(far)
    setup.proxy.cut()
    setup.proxy.release()
    assert far.recv(1) == b""
    assert setup.proxy.passed == 0


@pytest.mark.parametrize("count", [1, 8, 100_000])
def test_cut_after_cuts_once_at_the_exact_byte(setup: Setup, count: int) -> None:
    near, far = setup.link()
    setup.proxy.cut_after(count)
    near.sendall(bytes(150_000))
    assert len(read(far, 150_000)) == count
    assert setup.proxy.passed == count
    near, far = setup.link()
    near.sendall(bytes(150_000))
    assert len(read(far, 150_000)) == 150_000


def test_reset_resets_both_ends_of_every_link(setup: Setup) -> None:
    ends = [*setup.link(), *setup.link()]
    setup.proxy.reset()
    for end in ends:
        with pytest.raises(ConnectionResetError):
            end.recv(1)


def test_reset_after_passes_the_exact_count_of_bytes(setup: Setup) -> None:
    near, far = setup.link()
    setup.proxy.reset_after(5)
    near.sendall(b"12345678")
    for end in (near, far):
        with pytest.raises(ConnectionResetError):
            read(end, 6)
    assert setup.proxy.passed == 5


def test_refusing_closes_new_connections(setup: Setup) -> None:
    setup.proxy.refusing = True
    assert setup.connect().recv(1) == b""
    setup.proxy.refusing = False
    near, far = setup.link()
    near.sendall(b"x")
    assert read(far, 1) == b"x"


def test_upstream_may_be_down_and_move(setup: Setup) -> None:
    upstream = setup.proxy.upstream
    with socket.create_server(("127.0.0.1", 0)) as gone:
        setup.proxy.upstream = NetworkLocation(*gone.getsockname())
    assert setup.connect().recv(1) == b""
    setup.proxy.upstream = upstream
    near, far = setup.link()
    near.sendall(b"x")
    assert read(far, 1) == b"x"


def test_hundreds_of_links_live_in_one_thread(setup: Setup) -> None:
    threads = threading.active_count()
    links = [setup.link() for _ in range(200)]
    for near, _ in links:
        near.sendall(b"x")
    assert [read(far, 1) for _, far in links] == [b"x"] * 200
    assert threading.active_count() == threads
    setup.proxy.cut()
    assert [near.recv(1) for near, _ in links] == [b""] * 200


def test_close_ends_all_links_and_may_be_repeated(setup: Setup) -> None:
    near, far = setup.link()
    setup.proxy.hold()
    near.sendall(b"held")
    setup.proxy.close()
    setup.proxy.close()
    assert far.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        setup.connect()
