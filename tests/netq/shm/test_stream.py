"""The stream of a link: its bytes, its events, and what a peer can do to it."""

from __future__ import annotations

import math
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from netq.errors import ProtocolError
from netq.io.loop import Loop
from netq.io.receive_size import INITIAL_READ
from netq.io.selector import READ, WRITE
from netq.protocol.wire import Greeting
from netq.runtime.stream_link import Link
from netq.shm.control import LINK, MIN_RING, REFUSED, RING_SIZE, ControlSocket, accept_rings, offer_rings
from netq.shm.ring import HEADER, RingError, Writer
from netq.shm.stream import PIECE, RingStream
from netq.testing.fixtures import LIMIT, Communicators, introduce
from tests.netq.conftest import Start
from tests.netq.runtime.test_turns import PINGS, Server

MIB = 2**20


class Ends:
    """The two ends of a stream, of which a loop that the test turns watches the far one."""

    def __init__(self, size: int = RING_SIZE) -> None:
        near, far = [ControlSocket(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
        rings = offer_rings(near, LINK, size)
        packet = far.receive()
        assert packet is not None
        assert packet.fd is not None
        self.near, self.far = RingStream(near, rings), RingStream(far, accept_rings(packet))
        os.close(packet.fd)
        self.errors: list[BaseException] = []
        self.loop = Loop("turned by hand", self.errors.append)
        self.loop.baton.thread = threading.get_ident()
        self.events: list[int] = []
        self.watch(READ)

    def watch(self, events: int) -> None:
        self.far.watch(self.loop, events, self.events.append)

    def hear(self, room: int = 2 * RING_SIZE) -> bytes:
        buffer = bytearray(room)
        return bytes(buffer[: self.far.recv_into(memoryview(buffer))])

    def packets(self, stream: RingStream) -> int:
        """How many packets wait in the stream's control socket; they are taken."""
        for count in range(1000):
            try:
                stream.sock.recv(100)
            except BlockingIOError:
                return count
        raise AssertionError

    def close(self) -> None:
        self.near.close()
        self.far.close()
        self.loop.end()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()
    assert not ends.errors


@pytest.mark.parametrize("size", [MIN_RING, RING_SIZE])
def test_bytes_come_in_order_through_rings_of_all_sizes(size: int) -> None:
    ends, chance = Ends(size), random.Random(size)
    data = memoryview(chance.randbytes(20 * size))
    sent, got = 0, b""
    while len(got) < len(data):
        lengths = [chance.choice([0, 1, 100, 3000, size // 2, 2 * size]) for _ in range(chance.randrange(4))]
        buffers, stop = [], sent
        for length in lengths:
            buffers.append(data[stop : stop + length])
            stop += length
        if ends.near.push():
            sent += ends.near.send(buffers)
        try:
            got += ends.hear(chance.choice([1, 1000, 3 * size]))
        except BlockingIOError:
            assert len(got) == sent
    assert got == data
    ends.close()


def test_empty_stream_blocks_and_ends_after_its_last_bytes(ends: Ends) -> None:
    with pytest.raises(BlockingIOError):
        ends.hear()
    ends.near.send([memoryview(b"last")])
    ends.near.finish()
    ends.loop.turn()
    assert ends.events == [READ]
    assert ends.hear() == b"last"
    assert ends.far.more  # its end
    assert ends.hear() == b""


def test_large_buffer_is_published_in_pieces(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    heads, write = [], Writer.write

    def write_and_look(self: Writer, buffers: list[memoryview]) -> int:
        count = write(self, buffers)
        heads.append(ends.far._reader.available())
        return count

    monkeypatch.setattr(Writer, "write", write_and_look)
    ends.near.send([memoryview(bytes(2 * MIB))])
    assert len(heads) == 4
    assert heads == sorted(set(heads))
    assert heads[0] <= PIECE


def test_each_side_waits_for_the_next_piece_of_a_large_body(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netq.shm.stream._PATIENCE", LIMIT)
    data = random.Random(1).randbytes(16 * PIECE)
    ends.near.send([memoryview(data)[:PIECE]])  # so that there is something to receive
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(ends.hear, len(data))
        assert ends.near.send([memoryview(data)[PIECE:]]) == len(data) - PIECE
        assert received.result() == data


def test_neither_side_waits_behind_tiny_pieces(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netq.shm.stream._PATIENCE", math.inf)
    ends.near.send([memoryview(b"tiny")])
    assert ends.hear(2 * PIECE) == b"tiny"
    small = Ends(MIN_RING)  # no piece of a small ring is large
    assert 0 < small.near.send([memoryview(bytes(MIB))]) < MIN_RING
    small.close()


def test_peer_that_writes_as_fast_as_this_side_reads_ends_no_call_late(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0

    def write_next() -> bool:
        nonlocal reads
        reads += 1
        return not ends.near._writer.write([b"x"])

    monkeypatch.setattr(ends.far._reader, "claim_wakeup", write_next)
    ends.near.send([memoryview(b"x")])
    assert len(ends.hear()) == reads < 100
    assert ends.hear(), "what has come meanwhile was not read by the next call"


def test_full_stream_is_woken_once_when_half_is_free(ends: Ends) -> None:
    count = ends.near.send([memoryview(bytes(MIB))])
    assert RING_SIZE - HEADER - PIECE < count < RING_SIZE
    assert ends.near.blocked
    assert not ends.near.push()
    ends.hear(count // 4)
    assert ends.packets(ends.near) == 0
    ends.hear(count // 2)
    assert ends.packets(ends.near) == 1
    ends.hear(count)
    assert ends.packets(ends.near) == 0
    assert ends.near.push()
    assert not ends.near.blocked


def test_only_a_sleeping_stream_is_woken(ends: Ends) -> None:
    ends.near.send([memoryview(b"one")])
    assert ends.packets(ends.far) == 0
    assert not ends.far.sleep(), "it has bytes"
    ends.hear()
    assert ends.far.sleep()
    ends.near.send([memoryview(b"two")])
    ends.near.send([memoryview(b"three")])
    assert ends.packets(ends.far) == 1


def test_loop_puts_the_stream_to_sleep_and_reads_on_after_a_refusal(ends: Ends) -> None:
    ends.loop.call(len, ())
    ends.loop.turn()
    assert not ends.far.awake
    ends.near.send([memoryview(b"one")])
    ends.loop.turn()
    assert ends.events == [READ]
    ends.loop.turn()
    assert ends.events == [READ, READ], "the peer has not read, and a call was queued for that"
    assert ends.far.awake


def test_wake_of_a_blocked_stream_is_for_both(ends: Ends) -> None:
    ends.watch(READ | WRITE)
    while not ends.far.blocked:
        ends.far.send([memoryview(bytes(MIB))])
    ends.near.recv_into(memoryview(bytearray(MIB)))
    ends.loop.turn()
    assert ends.events == [READ | WRITE]
    assert ends.far.push()


def test_thread_that_polls_gets_bytes_and_room(ends: Ends) -> None:
    ends.watch(READ | WRITE)
    ends.far.send([memoryview(bytes(MIB))])
    ends.far.receive()
    ends.near.recv_into(memoryview(bytearray(MIB)))
    ends.far.receive()
    assert ends.events == [READ, READ | WRITE]


def test_polling_thread_sees_bytes_and_room(ends: Ends) -> None:
    assert not ends.far.look()
    ends.near.send([memoryview(b"one")])
    assert ends.far.look()
    ends.hear()
    ends.watch(READ | WRITE)
    ends.far.send([memoryview(bytes(MIB))])
    assert not ends.far.look()
    ends.near.recv_into(memoryview(bytearray(RING_SIZE // 2)))
    assert ends.far.look()
    assert not ends.far.sleep()
    assert ends.far.push()
    assert ends.far.look(), "as a socket that is watched for it"
    ends.watch(READ)
    assert not ends.far.look()
    assert ends.far.sleep()


def test_room_that_comes_while_the_link_sends_is_an_event(ends: Ends) -> None:
    ends.far.send([memoryview(bytes(MIB))])
    ends.watch(READ | WRITE)

    def send(events: int) -> None:
        if not ends.events:
            ends.near.recv_into(memoryview(bytearray(MIB)))  # now there is room, and the link finds it
            assert ends.far.push()
        ends.events.append(events)

    ends.near.send([memoryview(b"one")])
    ends.far.forget()
    ends.far.watch(ends.loop, READ | WRITE, send)
    ends.far.receive()
    ends.hear()
    ends.loop.call(len, ())
    ends.loop.turn()
    ends.loop.turn()
    assert ends.events[:2] == [READ, READ | WRITE]


def test_impossible_number_is_an_error_of_the_next_call(ends: Ends) -> None:
    ends.near.send([memoryview(b"one")])
    ends.far._rings.memory[7] = 0x7F
    with pytest.raises(RingError, match="the writer says"):
        ends.hear()
    assert not ends.far.sleep()
    with pytest.raises(RingError, match="the writer says"):
        ends.hear()
    ends.near._rings.memory[128 + 7] = 0x7F
    with pytest.raises(RingError, match="the reader says"):
        ends.near.send([memoryview(bytes(10))])


def test_only_a_server_refuses(ends: Ends) -> None:
    for stream, kind in ((ends.near, ConnectionRefusedError), (ends.far, ProtocolError)):
        other = ends.far if stream is ends.near else ends.near
        other._control.send(REFUSED, b"no")
        stream._take_packet()
        with pytest.raises(kind):
            stream.recv_into(memoryview(bytearray(1)))
        assert not stream.discard()


def test_discarded_bytes_make_room(ends: Ends) -> None:
    ends.near.send([memoryview(bytes(MIB))])
    assert ends.far.discard()
    assert ends.near.push()
    with pytest.raises(BlockingIOError):
        ends.far.discard()
    ends.near.finish()
    ends.loop.turn()
    assert not ends.far.discard()


def test_closed_stream_has_no_events(ends: Ends) -> None:
    ends.near.send([memoryview(b"one")])
    ends.far.go_on()
    ends.far.close()
    ends.loop.call(len, ())
    ends.loop.turn()
    assert not ends.events
    assert not ends.far.look()
    ends.far.receive()
    assert ends.far.sleep()
    ends.far.watch(ends.loop, READ, ends.events.append)
    assert ends.loop._poller.is_idle


def test_one_turn_reads_little_of_many_small_frames(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """If each byte costs 100 ns, the bound is some tens of kilobytes, of which a ring has ten times as many."""
    monkeypatch.setattr(time, "thread_time", lambda: 1e-7 * ends.far._reader._tail)
    ends.far.forget()
    server = Server()
    link = Link(server, ends.loop, ends.far, server.connect(), "a flood")
    ends.near.send([memoryview(Greeting(uuid.uuid4(), bytes(16), 2**40, 2**20, 10_000).frame().whole())])
    while not link.connection.open:
        ends.loop.turn()
    taken, rest = [], memoryview(b"")
    for _ in range(30):
        rest = rest or memoryview(PINGS)
        if ends.near.push():
            rest = rest[ends.near.send([rest]) :]
        before = ends.far._reader._tail
        ends.loop.turn()
        taken.append(ends.far._reader._tail - before)
    link._end()
    assert taken[0] < 3 * INITIAL_READ  # before the size of a read has adapted
    assert 0 < max(taken[1:]) < 64 * 1024, taken
    assert not server.why


# Between communicators.


def test_message_of_many_arrays_of_all_sizes(communicators: Communicators) -> None:
    server, client = communicators.pair()
    chance = np.random.default_rng(2)
    sent = {f"layer {n}": chance.random(size, dtype=np.float32) for n, size in enumerate([1, 10, 5000, 40_000] * 100)}
    for _ in range(3):
        client.put(sent)
        got = server.get(timeout=LIMIT).data
        assert all(np.array_equal(got[name], array) for name, array in sent.items())


def test_both_directions_at_once(communicators: Communicators) -> None:
    server, client = communicators.pair()
    sent = np.random.default_rng(3).random(3 * MIB, dtype=np.float32)
    futures = [side.put(sent * n) for n in range(1, 4) for side in (server, client)]
    for n in range(1, 4):
        for side in (server, client):
            assert np.array_equal(side.get(timeout=LIMIT).data, sent * n)
    for future in futures:
        future.result(LIMIT)


def test_small_message_passes_a_large_one_on_another_lane(communicators: Communicators) -> None:
    server, client = communicators.pair(window=2**30)
    client.put(np.ones(8 * MIB))
    client.put("small", lane=1)
    assert isinstance(server.get(timeout=LIMIT).data, str)
    assert server.get(timeout=LIMIT).data.sum() == 8 * MIB


def test_cancelled_array_is_the_users_again(communicators: Communicators) -> None:
    server, client = communicators.pair()
    for n in range(20):
        data = np.full(2 * MIB, n)
        future = client.put(data)
        client.put(n)
        if not future.cancel():
            future.result(LIMIT)
            assert server.get(timeout=LIMIT).data[-1] == n
        data[:] = -1
        assert server.get(timeout=LIMIT).data == n


def test_memory_has_no_name_in_a_file_system(communicators: Communicators) -> None:
    before = sorted(Path("/dev/shm").iterdir())
    server, client = communicators.pair()
    client.put(np.ones(MIB)).result(LIMIT)
    assert sorted(Path("/dev/shm").iterdir()) == before
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:netq" in line]
    assert mapped
    assert all("(deleted)" in line for line in mapped)
    assert server.get(timeout=LIMIT).data.sum() == MIB


def test_rings_are_released_with_their_link(communicators: Communicators) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("/memfd:netq")

    before = mapped()
    server, client = communicators.pair()
    client.put(np.ones(MIB))
    kept = server.get(timeout=LIMIT).data
    assert mapped() == before + 2
    communicators.abort(client)
    communicators.abort(server)
    assert mapped() == before
    assert kept.sum() == MIB


def test_client_without_memory_for_rings_logs_it(communicators: Communicators, start: Start) -> None:
    server = communicators.server()
    code = """
import resource, sys, netq, netq.shm.client
from netq.testing.log import LogRecorder
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with LogRecorder() as log:
    client = netq.new(netq.Protocol.SHM, options=netq.CommunicatorOptions(netloc=(sys.argv[1], int(sys.argv[2]))))
    log.wait("no memory for the rings: File too large")
    client.close(0)
"""
    _, errors = start(code, *server.netloc).communicate(timeout=LIMIT)
    assert errors == ""
    introduce(server, communicators.client(server.netloc))
