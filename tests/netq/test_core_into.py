"""`get(into=…)` of a communicator: which errors come before a message is taken, and which with it; and that a message
which begins meanwhile is received where it belongs.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from netq import BufferMismatch, Closed, Message, Protocol, SerializationOptions, Unreadable
from netq.core import Communicator
from netq.runtime.delivery import Delivery
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.proxy import Proxy
from netq.utils.stream import BufferSerializer, BytesSerializer, PickleSerializer, Stream
from tests.netq.makers import in_process, plain
from tests.netq.test_conformance import MAKERS, New

_SIZE = 8 * 2**20  # bytes
_BEGUN = 3 * 2**20  # bytes of them that a proxy lets pass


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
    client.put(np.ones(10**6, np.uint8)).result(LIMIT)
    data = server.get(timeout=LIMIT, into=into).data
    assert np.shares_memory(data, into)
    assert server._endpoint._memories[server._endpoint.home].idle > 10**6


def _when_lent(monkeypatch: pytest.MonkeyPatch, queue: Communicator, act: Callable[[], object]) -> None:
    """Call `act` once, in the next `get(into=…)`: when that has lent its memory, and before it waits."""
    lend = queue._endpoint.lend

    def lend_and_act(*args: Any) -> Any:
        monkeypatch.setattr(queue._endpoint, "lend", lend)
        destination = lend(*args)
        act()
        return destination

    monkeypatch.setattr(queue._endpoint, "lend", lend_and_act)


def _uses_no_memory(queue: Communicator) -> bool:
    """Whether no large message had memory of netq's own."""
    return queue._endpoint._memories[queue._endpoint.home].idle == 0


def _sent() -> Any:
    return np.arange(1, 1 + _SIZE // 4, dtype=np.int32)


@pytest.fixture(
    scope="session",
    params=[
        "loopback",
        "tcp",
        "tcp+tls",
        "shm",
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("mqtt", "grpc", "tcp+seal")),
    ],
)
def new(request: pytest.FixtureRequest) -> New:
    return MAKERS[request.param](request)


def test_message_that_begins_is_received_into_the_arrays(
    new: New, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Communicators(new(tmp_path)) as communicators:
        server, client = communicators.pair()
        for getter, put in ((server, client.put), (client, server.put)):
            sent = [_sent(), np.full((3, 100_001), 7.0), np.empty(0), _sent() + 1]
            into = [np.zeros(each.nbytes, np.uint8) for each in sent]
            _when_lent(monkeypatch, getter, lambda put=put, sent=sent: put(("text", sent)))  # type: ignore[misc]
            text, got = getter.get(timeout=LIMIT, into=into).data
            assert text == "text"
            for one, other, memory in zip(sent, got, into, strict=True):
                assert np.array_equal(one, other)
                assert not one.nbytes or np.shares_memory(other, memory)
            assert _uses_no_memory(getter)
            put("small")
            assert getter.get(timeout=LIMIT).data == "small"


def test_timeout_leaves_a_begun_message_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with Communicators(plain(Protocol.TCP)) as communicators:
        server = communicators.server()
        with Proxy(server.netloc) as proxy:
            client = communicators.client(proxy.netloc)
            introduce(server, client)
            sent, into, futures = _sent(), np.zeros(_SIZE // 4, np.int32), list[Delivery]()

            def begin() -> None:
                proxy.hold(after=_BEGUN)
                begun = proxy.passed + _BEGUN // 2
                futures.append(client.put(sent))
                proxy.wait(begun, LIMIT)

            _when_lent(monkeypatch, server, begin)
            with pytest.raises(TimeoutError):
                server.get(timeout=1.0, into=into)
            begun = np.count_nonzero(into)
            assert 0 < begun < len(into), "no byte was received into the array before the message was whole"
            into[:] = 0
            proxy.release()
            assert np.array_equal(server.get(timeout=LIMIT).data, sent)
            assert not into.any()
            futures[0].result(LIMIT)


@pytest.mark.parametrize("reset", [False, True])
def test_message_whose_link_is_lost_goes_on_in_the_array(monkeypatch: pytest.MonkeyPatch, reset: bool) -> None:
    with Communicators(plain(Protocol.TCP)) as communicators:
        server = communicators.server()
        with Proxy(server.netloc) as proxy:
            client = communicators.client(proxy.netloc)
            introduce(server, client)
            for getter, put in ((server, client.put), (client, server.put)):
                sent, into, futures = _sent(), np.zeros(_SIZE // 4, np.int32), list[Delivery]()

                def begin(put: Callable[..., Delivery] = put, sent: Any = sent, futures: Any = futures) -> None:
                    (proxy.reset_after if reset else proxy.cut_after)(_BEGUN)
                    futures.append(put(sent))

                _when_lent(monkeypatch, getter, begin)
                got = getter.get(timeout=LIMIT, into=into).data
                assert np.shares_memory(got, into)
                assert np.array_equal(into, sent)
                assert _uses_no_memory(getter)
                futures[0].result(LIMIT)


def test_other_message_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with Communicators(plain(Protocol.TCP)) as communicators:
        server = communicators.server()
        with Proxy(server.netloc) as proxy:
            client, other = communicators.client(proxy.netloc), communicators.client(server.netloc)
            introduce(server, client, other)
            sent, into, futures = _sent(), np.zeros(_SIZE // 4, np.int32), list[Delivery]()

            def begin() -> None:
                proxy.hold(after=_BEGUN)
                begun = proxy.passed + _BEGUN // 2
                futures.append(client.put(sent))
                proxy.wait(begun, LIMIT)
                other.put(sent + 1)

            _when_lent(monkeypatch, server, begin)
            assert server.get(timeout=LIMIT, into=into).peer == other.id
            assert np.array_equal(into, sent + 1)
            proxy.release()
            assert np.array_equal(server.get(timeout=LIMIT).data, sent)
            assert np.array_equal(into, sent + 1)
            futures[0].result(LIMIT)


def test_end_of_the_session_lets_the_array_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with Communicators(plain(Protocol.TCP)) as communicators:
        server = communicators.server()
        with Proxy(server.netloc) as proxy:
            client = communicators.client(proxy.netloc)
            introduce(server, client)
            into = bytearray(_SIZE)

            def begin() -> None:
                proxy.hold(after=_BEGUN)
                begun = proxy.passed + _BEGUN // 2
                client.put(bytearray(_SIZE))
                proxy.wait(begun, LIMIT)
                server.expel(client.id, "enough")

            _when_lent(monkeypatch, server, begin)
            with pytest.raises(Closed):
                server.get(client.id, timeout=LIMIT, into=into)
            into.append(0)  # there is no view of it any more
            communicators.abort(client)


def test_whole_message_behind_another_is_moved_out(
    communicators: Communicators, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = communicators.pair()
    sent, into = _sent(), np.zeros(_SIZE // 4, np.int32)

    def put() -> None:
        client.put("first")
        client.put(sent).result(LIMIT)

    _when_lent(monkeypatch, server, put)
    with pytest.raises(BufferMismatch) as raised:
        server.get(timeout=LIMIT, into=into)
    assert raised.value.message.data == "first"
    assert np.array_equal(into, sent)
    into[:] = 0
    assert np.array_equal(server.get(timeout=LIMIT).data, sent)


def test_message_that_begins_after_get_has_memory_of_its_own(communicators: Communicators) -> None:
    server, client = communicators.pair()
    sent, into = _sent(), np.zeros(_SIZE // 4, np.int32)
    with pytest.raises(TimeoutError):
        server.get(timeout=0, into=into)
    client.put(sent).result(LIMIT)
    assert np.array_equal(server.get(timeout=LIMIT).data, sent)
    assert not into.any()


def test_message_that_another_thread_takes_is_a_copy(
    communicators: Communicators, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = communicators.pair()
    sent, into = _sent(), np.zeros(_SIZE // 4, np.int32)
    got: list[Message] = []

    def take() -> None:
        client.put(sent)
        thread = threading.Thread(target=lambda: got.append(server.get(timeout=LIMIT)))
        thread.start()
        thread.join()

    _when_lent(monkeypatch, server, take)
    with pytest.raises(TimeoutError):
        server.get(timeout=0, into=into)
    assert np.array_equal(into, sent)
    into[:] = 0
    assert np.array_equal(got[0].data, sent)


def test_interrupted_load_leaves_the_message_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts = [KeyboardInterrupt]

    def load(pid: object) -> object:
        if interrupts:
            raise interrupts.pop()
        return pid

    mine = PickleSerializer(dump=lambda obj: obj if isinstance(obj, complex) else None, load=load)
    with Communicators(in_process) as communicators:
        server, client = communicators.pair(serialization=SerializationOptions(dump=mine.dump, load=mine.load))
        sent, into = _sent(), np.zeros(_SIZE // 4, np.int32)
        _when_lent(monkeypatch, server, lambda: client.put([sent, 1j]))
        with pytest.raises(KeyboardInterrupt):
            server.get(timeout=LIMIT, into=into)
        assert np.array_equal(into, sent)
        into[:] = 0
        assert np.array_equal(server.get(timeout=LIMIT).data[0], sent)
