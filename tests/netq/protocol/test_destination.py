"""A message is received where a user has lent memory, however its bytes come; and nothing is, once that is recalled."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from netq.options import ConnectionOptions
from netq.protocol.destination import Destination, LentStream
from netq.testing.lossy_pair import CLIENT_ID, SERVER_ID, LossyPair
from netq.utils.stream import BufferSerializer, PickleSerializer

SIZES = (1000, 0, 1, 640, 64)
SENT = [bytes(range(1, 1 + number)) * size + b"\1" * (size % 3) for number, size in enumerate(SIZES, 1)]
MESSAGE = b"".join(PickleSerializer().dump(["some", *map(pickle.PickleBuffer, SENT)]).buffers)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let messages of any size be received into lent memory."""
    monkeypatch.setattr("netq.protocol.destination.LARGE", 1)
    monkeypatch.setattr("netq.utils.stream._DENSE", 0)
    monkeypatch.setattr("netq.protocol.session.SMALL", 0)


def lend(pair: LossyPair, buffers: Sequence[bytearray], serializer: Any = None, peers: Any = ()) -> Destination:
    plan = partial((serializer or PickleSerializer()).plan_into, buffers=[memoryview(each) for each in buffers])
    pair.server.memory.destination = destination = Destination(plan, peers)
    return destination


def recall(pair: LossyPair, destination: Destination) -> None:
    """Do as Endpoint.recall."""
    pair.server.memory.destination = None
    session, connection = pair.server.session, pair.server.connection
    for receiver in session.receivers.values() if session else ():
        if receiver.direct is destination:
            if connection is None:
                receiver.move_out()
            else:
                assert not connection.move_out(receiver)
    if destination.stream is not None:
        destination.stream.copy_out()


def joined(*sizes: int) -> LossyPair:
    """Return a pair with a session."""
    pair = LossyPair(ConnectionOptions(transport_size=sizes[0] if sizes else 2**20), take=True)
    pair.connect()
    pair.run()
    return pair


def empty() -> list[bytearray]:
    return [bytearray(len(each)) for each in SENT]


@pytest.mark.parametrize("step", [1, 100, 65536])
@pytest.mark.parametrize("chunk", [7, 500, 2**20])
def test_message_lies_in_lent_memory(step: int, chunk: int) -> None:
    pair, into = joined(chunk), empty()
    pair._step = step
    destination = lend(pair, into)
    pair.put(pair.client, MESSAGE)
    pair.put(pair.client, b"next")
    pair.run()
    assert into == SENT
    assert destination.stream is not None
    assert (pair.server.memory.idle, pair.server.memory.destination) == (0, None)
    assert pair.server.received == {0: [MESSAGE, b"next"]}


@pytest.mark.parametrize("back", [False, True])
def test_lost_link_in_the_middle(back: bool) -> None:
    """The user waits for the message, or goes away while there is no link."""
    whole = 0
    for cut in range(1, len(MESSAGE) + 60, 13):
        pair, into = joined(700), empty()
        destination = lend(pair, into)
        pair.put(pair.client, MESSAGE)
        pair.send(pair.client)
        pair.deliver(pair.client, cut)
        pair.cut()
        if back:
            recall(pair, destination)
            before = [bytes(each) for each in into]
        pair.run()
        assert pair.server.received == {0: [MESSAGE]}, f"cut after {cut} bytes"
        if back:
            assert [bytes(each) for each in into] == before, f"cut after {cut} bytes: written after the recall"
        else:
            whole += into == SENT
    assert back or whole > 50


@pytest.mark.parametrize("merge", [False, True])
def test_recall_after_each_byte(merge: bool) -> None:
    written, counts = 0, [*range(250), *range(250, len(MESSAGE) + 30, 41)]
    for count in counts:
        pair, into = LossyPair(ConnectionOptions(transport_size=1500, get_merge=merge)), empty()
        pair.connect()
        pair.run()
        destination = lend(pair, into)
        pair.put(pair.client, MESSAGE)
        pair.put(pair.client, b"next")
        pair.send(pair.client)
        pair.deliver(pair.client, count)
        recall(pair, destination)
        before = [bytes(each) for each in into]
        written += any(map(any, into))
        del destination
        for each in into:
            each[:] = b"\xff" * len(each)
            each.append(0)  # there is no view of it any more
        pair.run()
        assert [bytes(each) for each in into] == [b"\xff" * len(each) + b"\0" for each in before], f"{count} bytes"
        assert pair.server.received == {0: [MESSAGE, b"next"]}, f"{count} bytes"
    assert written > len(counts) / 4


@pytest.mark.parametrize(
    "sizes",
    [(1000,), (1000, 0, 3, 2562, 320, 1), (1001, 0, 3, 2561, 320), (), (10**6,)],
    ids=["fewer", "more", "other", "none", "larger"],
)
def test_memory_that_does_not_fit_is_unchanged(sizes: tuple[int, ...]) -> None:
    pair, into = joined(), [bytearray(size) for size in sizes]
    destination = lend(pair, into)
    pair.put(pair.client, MESSAGE)
    pair.run()
    assert pair.server.received == {0: [MESSAGE]}
    assert not any(map(any, into))
    assert destination.stream is None


def test_memory_that_overlaps_is_unchanged() -> None:
    pair, memory = joined(), bytearray(2000)
    lend(pair, [memoryview(memory)[:1000], memoryview(memory)[999:1999]])  # type: ignore[list-item]
    message = PickleSerializer().dump([pickle.PickleBuffer(bytes([n]) * 1000) for n in (1, 2)])
    pair.put(pair.client, *map(bytes, message.buffers))
    pair.run()
    assert pair.server.received == {0: [bytes(message)]}
    assert not any(memory)


def test_message_that_is_cancelled_leaves_the_lane_as_it_was() -> None:
    pair, into = joined(500), empty()
    destination = lend(pair, into)
    message = pair.put(pair.client, MESSAGE)
    pair._limit = 500
    pair.send(pair.client)
    pair.deliver(pair.client, 10**6)
    assert any(into[0])
    assert pair.client.session is not None
    message.withdrawn = True
    pair.client.session.withdraw(message)
    pair.put(pair.client, MESSAGE)
    pair.run()
    recall(pair, destination)
    assert pair.server.received == {0: [MESSAGE]}
    assert not all(map(any, into[3:])), "the second message was received into the memory of the first"


def test_plain_bytes_go_to_the_start_of_the_buffer() -> None:
    pair, into = joined(300), [bytearray(2000)]
    lend(pair, into, BufferSerializer())
    pair.put(pair.client, b"x" * 1500)
    pair.run()
    assert into == [b"x" * 1500 + bytes(500)]


def test_only_a_message_of_the_peers_is_received_there() -> None:
    for peer in (SERVER_ID, CLIENT_ID):
        pair, into = joined(), empty()
        lend(pair, into, peers=(peer,))
        pair.put(pair.client, MESSAGE)
        pair.run()
        assert (into == SENT) is (peer == CLIENT_ID)
        assert pair.server.received == {0: [MESSAGE]}


def test_without_memory_the_message_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(size: int) -> memoryview:
        raise MemoryError(f"no memory for {size} bytes")

    pair, into = joined(500), empty()
    destination = lend(pair, into)
    pair.put(pair.client, MESSAGE)
    pair.send(pair.client)
    pair.deliver(pair.client, 1200)
    assert pair.server.session is not None
    assert pair.server.connection is not None
    pair.server.memory.destination = None
    (receiver,) = [each for each in pair.server.session.receivers.values() if each.direct is destination]
    with monkeypatch.context() as patch:
        patch.setattr(pair.server.memory, "take", fail)
        pair._apply(pair.server, pair.server.connection.move_out(receiver))
    assert [str(lost.error) for lost in pair.server.lost] == [f"no memory for {len(MESSAGE)} bytes"]
    before = [bytes(each) for each in into]
    pair.run()
    assert pair.server.received == {0: [MESSAGE]}
    assert [bytes(each) for each in into] == before


def test_reader_gets_a_copy_and_the_user_that_lends_does_not() -> None:
    memory = [bytearray(b"some"), bytearray(b"thing")]
    one, other = (LentStream([memoryview(each) for each in memory]) for _ in range(2))
    one.accept()
    memory[0][:1] = b"h"
    assert (bytes(one), bytes(other), len(other)) == (b"homething",) * 2 + (9,)
    other.accept()  # too late: it was read
    memory[0][:1] = b"t"
    assert one.read(2) == b"to"
    assert bytes(other) == b"homething"
    one.copy_out()
    memory[0] += b"no view is left"
    assert one.read() == b"mething"
