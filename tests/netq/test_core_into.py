"""`get(into=…)` of a communicator: which errors come before a message is taken, and which with it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import numpy as np
import pytest

from netq import BufferMismatch, SerializationOptions, Unreadable
from netq.testing.fixtures import LIMIT, Communicators
from netq.utils.stream import BufferSerializer, BytesSerializer, PickleSerializer, Stream
from tests.netq.makers import in_process


@pytest.fixture
def communicators() -> Iterator[Communicators]:
    with Communicators(in_process) as communicators:
        yield communicators


def test_wrong_into_takes_no_message(communicators: Communicators) -> None:
    server, client = communicators.pair()
    client.put(np.ones(5)).result(LIMIT)
    for wrong in (5, b"read-only", np.zeros(10)[::2], ["text"]):
        with pytest.raises((TypeError, ValueError), match="get: into, buffer 0 of 1"):
            server.get(timeout=0, into=wrong)
    assert server.get(timeout=0).data.tolist() == [1] * 5


def test_serialiser_without_load_into_takes_no_message(communicators: Communicators) -> None:
    server = communicators.server(serialization=SerializationOptions(load=BytesSerializer().load))
    client = communicators.client(server.netloc, serialization=SerializationOptions(dump=BytesSerializer().dump))
    client.put(b"abc").result(LIMIT)
    with pytest.raises(TypeError, match=r"load_into.*BytesSerializer\.load"):
        server.get(timeout=0, into=bytearray(3))
    assert server.get(timeout=0).data == b"abc"


@pytest.mark.parametrize("size", [5, 500_000])  # a message that arrives as bytes, and one that arrives as a Stream
def test_mismatch_carries_peer_and_message(communicators: Communicators, size: int) -> None:
    server, client = communicators.pair()
    client.put(("text", np.arange(size)), lane=3)
    client.put("next", lane=3)
    into = np.full(size - 1, -1)
    with pytest.raises(BufferMismatch, match=f"buffer 0 of 1 has {8 * size - 8} bytes, .* has {8 * size}") as raised:
        server.get(timeout=LIMIT, into=into)
    message = raised.value.message
    assert (message.peer, raised.value.peer, message.lane) == (client.id, client.id, 3)
    assert np.array_equal(message.data[1], np.arange(size))
    assert not np.shares_memory(message.data[1], into)
    assert (into == -1).all()
    assert server.get(timeout=LIMIT).data == "next"


def test_mismatch_of_an_own_serialiser_that_has_read(communicators: Communicators) -> None:
    class Picky(BufferSerializer):
        def load(self, stream: Stream) -> memoryview:  # type: ignore[override]
            return memoryview(stream.read())

        def load_into(self, stream: Stream, buffers: object) -> memoryview:
            raise BufferMismatch(f"read {stream.read(2)!r}, and that is enough")

    server = communicators.server(serialization=SerializationOptions(load=Picky().load))
    client = communicators.client(server.netloc, serialization=SerializationOptions(dump=Picky().dump))
    for data in (b"small", bytes(500_000)):
        client.put(data)
        with pytest.raises(BufferMismatch, match="that is enough") as raised:
            server.get(timeout=LIMIT, into=bytearray(1))
        assert raised.value.message.data == data


def test_unreadable_message_that_does_not_fit_is_unreadable(communicators: Communicators) -> None:
    allowed = PickleSerializer(allow=lambda name: False)
    server = communicators.server(serialization=SerializationOptions(load=allowed.load))
    client = communicators.client(server.netloc)
    client.put(uuid.UUID(int=7))
    with pytest.raises(Unreadable, match=r"uuid\.UUID") as raised:
        server.get(timeout=LIMIT, into=bytearray(1))
    assert raised.value.peer == client.id


def test_memory_of_a_large_message_is_used_for_the_next(communicators: Communicators) -> None:
    server, client = communicators.pair()
    into = np.zeros(10**6, np.uint8)
    client.put(np.ones(10**6, np.uint8))
    data = server.get(timeout=LIMIT, into=into).data
    assert np.shares_memory(data, into)
    assert server._endpoint._memories[server._endpoint.home].idle > 10**6
