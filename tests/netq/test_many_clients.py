"""What a server of many clients has besides put and get: multicasts, control messages, expelled and paused clients."""

from __future__ import annotations

import math
import os
import queue
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import netq
from netq import Closed, MessageTooLarge, NetworkLocation, Protocol, QueueFull
from netq.core import Communicator
from netq.options import CommunicatorOptions, EventOptions, Purpose, SerializationOptions
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from netq.utils.stream import Stream

NO_ONE = uuid.UUID(int=1)


def make(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
    return netq.new(Protocol.TCP, purpose, options)


@pytest.fixture
def communicators(proxies: Callable[[NetworkLocation], Proxy]) -> Iterator[Communicators]:
    with Communicators(make) as communicators:
        yield communicators


class Failures:
    """What `multicast` has told of."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[tuple[uuid.UUID, Exception, bool]] = queue.SimpleQueue()
        self._thread = threading.get_ident()

    def note(self, peer: uuid.UUID, error: Exception) -> None:
        self._told.put((peer, error, threading.get_ident() == self._thread))

    def next(self) -> tuple[uuid.UUID, Exception, bool]:
        return self._told.get(timeout=LIMIT)


def test_sessions_begin_and_end_in_one_table(communicators: Communicators) -> None:
    server = communicators.server()
    table = server._endpoint.peers  # a copy for each session would be quadratic in their number
    clients = [communicators.client(server.netloc) for _ in range(3)]
    introduce(server, *clients)
    assert server._endpoint.peers is table
    assert server.absences() == {client.id: 0.0 for client in clients}
    clients[0].close()
    with pytest.raises(Closed):
        server.get(clients[0].id, timeout=LIMIT)
    assert server._endpoint.peers is table
    assert table.keys() == server.absences().keys() == {client.id for client in clients[1:]}
    assert server.absences(clients[0].id, clients[1].id) == {clients[1].id: 0.0}


def test_absence_is_counted_from_the_loss_of_the_link(communicators: Communicators) -> None:
    server = communicators.server()
    client = communicators.client(server.netloc, retry_min=1.0, retry_max=1.0)  # time to see that it is absent
    introduce(server, client)
    server.pause(client.id, "others go first")  # which drops its link
    while not (absent := server.absences(client.id)[client.id]):
        assert client.id in server.absences()
    assert absent < LIMIT
    while server.absences(client.id)[client.id]:
        pass
    assert server.statistics()[client.id].connected


def test_multicast_reaches_these_peers_in_the_order_of_put(communicators: Communicators) -> None:
    server = communicators.server()
    clients = [communicators.client(server.netloc) for _ in range(3)]
    introduce(server, *clients)
    server.put(1)
    server.multicast(2, (client.id for client in clients[:2]))
    server.multicast("nothing", [])
    server.put(3)
    got = [[client.get(timeout=LIMIT).data for _ in range(2)] for client in clients]
    assert got == [[1, 2], [1, 2], [1, 3]]
    assert [client.get(timeout=LIMIT).data for client in clients[:2]] == [3, 3]


def test_client_multicasts_to_its_server(communicators: Communicators) -> None:
    server, client = communicators.pair()
    client.multicast("data", [server.id], lane=None)
    message = server.get(timeout=LIMIT)
    assert (message.data, 8 <= message.lane < 16) == ("data", True)


def test_multicast_tells_of_an_unknown_peer(communicators: Communicators) -> None:
    server, client = communicators.pair()
    failures = Failures()
    server.multicast("data", [NO_ONE, client.id], failed=failures.note)
    peer, error, is_here = failures.next()
    assert (peer, type(error), is_here) == (NO_ONE, Closed, False)
    assert client.get(timeout=LIMIT).data == "data"
    server.multicast("data", [NO_ONE])
    communicators.release(server)
    client.close(LIMIT)
    assert server.close(LIMIT) == 2


def test_multicast_tells_of_what_the_future_of_put_would_fail_with(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy]
) -> None:
    server = communicators.server(queue_size=1)
    proxy = proxies(server.netloc)
    small, absent = communicators.client(server.netloc, message_size=1000), communicators.client(proxy.netloc)
    introduce(server, small, absent)
    failures = Failures()
    server.multicast(bytes(2000), [small.id], failed=failures.note)
    peer, error, is_here = failures.next()
    assert (peer, type(error), is_here) == (small.id, MessageTooLarge, False)
    proxy.hold(0)
    server.put(1, absent.id)
    server.multicast(2, [absent.id], failed=failures.note)
    peer, error, _ = failures.next()
    assert (peer, type(error)) == (absent.id, QueueFull)
    proxy.release()
    assert absent.get(timeout=LIMIT).data == 1
    communicators.abort(server)


def test_errors_of_failed_are_logged(communicators: Communicators, log: LogRecorder) -> None:
    server = communicators.server()
    client = communicators.client(server.netloc, message_size=1000)
    introduce(server, client)
    server.multicast(bytes(2000), [NO_ONE, client.id], failed=lambda peer, error: sys.exit(1))
    log.wait("failed, which netq has called", 2)
    server.put("goes on", client.id).result(LIMIT)
    communicators.abort(server)


@pytest.mark.parametrize(
    ("arguments", "lane", "error"),
    [
        ([["me"]], 0, "multicast: the peer 'me' is a str; expected a uuid.UUID, as in Message.peer"),
        ([[NO_ONE]], 16, "multicast: lane 16; expected a whole number from 0 to 15, or None for any"),
        ([NO_ONE], 0, f"multicast: peers {NO_ONE!r}; expected the ids of several peers, as in [message.peer]"),
    ],
)
def test_multicast_refuses_wrong_arguments(
    communicators: Communicators, arguments: list[Any], lane: int, error: str
) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        communicators.server().multicast("data", *arguments, lane=lane)
    assert str(raised.value) == error


async def _async() -> None:
    """Stands where a function is expected."""


@pytest.mark.parametrize(
    "call",
    [
        lambda server, peer: server.multicast("data", [peer], failed=5),
        lambda server, peer: server.expel("me", "why"),
        lambda server, peer: server.expel(peer, None),
        lambda server, peer: server.expel(peer, "why", math.nan),
        lambda server, peer: server.expel(peer, "why", -1),
        lambda server, peer: server.expel(peer, "why", "5"),
        lambda server, peer: server.pause("me", "why"),
        lambda server, peer: server.pause(peer, 5),
        lambda server, peer: server.resume(None),
        lambda server, peer: server.call_soon(None),
        lambda server, peer: server.call_soon(_async),
        lambda server, peer: server.get_ready("5"),
    ],
)
def test_wrong_argument_is_refused_and_harms_no_session(
    communicators: Communicators, call: Callable[[Communicator, uuid.UUID], object]
) -> None:
    server, client = communicators.pair()
    with pytest.raises(TypeError, match="; expected "):
        call(server, client.id)
    server.put("goes on", client.id).result(LIMIT)


def test_reason_that_is_no_utf_8_reaches_the_client(communicators: Communicators, log: LogRecorder) -> None:
    server, client = communicators.pair()
    server.expel(client.id, os.fsdecode(b"caf\xe9"), 3600.0)
    log.wait("refused for 3600 s: caf", 1)
    communicators.abort(client)


def test_a_get_that_waits_survives_an_expulsion(communicators: Communicators) -> None:
    """A message is reserved for a thread that has not taken it yet."""
    server, client = communicators.pair()
    errors: list[BaseException] = []

    def read() -> None:
        try:
            while True:
                server.get()
        except Closed:
            return
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(200):
        client.put(number)
        if number % 4 == 0:
            server.expel(client.id, "it is loud", 0.001)
    communicators.abort(client)
    communicators.abort(server)
    for thread in threads:
        thread.join(LIMIT)
    assert errors == []


@pytest.mark.parametrize("limits", [{"queue_size": 1}, {"queue_bytes": 100}], ids=["size", "bytes"])
@pytest.mark.parametrize("drop_oldest", [False, True])
def test_unbounded_message_passes_a_full_queue(
    communicators: Communicators,
    proxies: Callable[[NetworkLocation], Proxy],
    limits: dict[str, Any],
    drop_oldest: bool,
) -> None:
    server = communicators.server(**limits, drop_oldest=drop_oldest, window=1)
    proxy = proxies(server.netloc)
    clients = [communicators.client(proxy.netloc, window=1) for _ in range(2)]
    introduce(server, *clients)
    proxy.hold(0)
    fill = [server.put(bytes(90)) for _ in range(3)]  # one may travel, and one may wait
    control = [server.put(number, bounded=False) for number in range(3)]
    one = server.put("one", clients[0].id, bounded=False)
    proxy.release()
    expectations: list[list[object]] = [[0, 1, 2, "one"], [0, 1, 2]]
    for client, expected in zip(clients, expectations, strict=True):
        found: list[object] = []
        while found[-1:] != expected[-1:]:
            if type(data := client.get(timeout=LIMIT).data) is not bytes:
                found.append(data)
        assert found == expected
    for delivery in (*control, one):
        delivery.result(LIMIT)
    assert any(isinstance(delivery.exception(LIMIT), QueueFull) for delivery in fill)
    communicators.abort(server)


def test_client_sends_unbounded_messages(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy]
) -> None:
    server = communicators.server()
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, queue_size=1)
    introduce(server, client)
    proxy.hold(0)
    deliveries = [client.put(1), client.put(2), client.put(3, bounded=False)]
    proxy.release()
    assert [type(each.exception(LIMIT)) for each in deliveries] == [type(None), QueueFull, type(None)]
    assert [server.get(timeout=LIMIT).data for _ in range(2)] == [1, 3]
    communicators.abort(client)


def test_connected_says_whether_there_is_a_peer(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy]
) -> None:
    server = communicators.server()
    assert not server.connected
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    assert (server.connected, client.connected, client.forked) == (True, True, False)
    proxy.close()
    while client.connected or server.connected:
        pass
    communicators.abort(client)


def test_calls_run_in_order_in_a_thread_of_netq(communicators: Communicators, log: LogRecorder) -> None:
    server = communicators.server()
    seen: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()

    def note(number: int) -> None:
        seen.put((number, threading.current_thread().name[:5]))

    server.call_soon(note, 1)
    server.call_soon(lambda: 1 / 0)
    server.call_soon(note, 2)
    assert [seen.get(timeout=LIMIT) for _ in range(2)] == [(1, "netq-"), (2, "netq-")]
    log.wait("failed, which netq has called")
    server.close(LIMIT)
    server.call_soon(note, 3)
    assert seen.get_nowait() == (3, threading.current_thread().name[:5])


def test_end_of_a_session_comes_in_the_order_of_its_messages(communicators: Communicators) -> None:
    end = Stream([b"end"])
    serialization = SerializationOptions(lambda stream: bytes(stream).decode(), str.encode)
    server = communicators.server(events=EventOptions(end=end), serialization=serialization)
    client = communicators.client(server.netloc, serialization=serialization)
    client.put("last")
    client.close(LIMIT)
    assert [server.get(timeout=LIMIT) for _ in range(2)] == [(client.id, "last"), (client.id, "end")]


# get_ready


def test_messages_that_are_here_come_together(communicators: Communicators) -> None:
    server = communicators.server()
    clients = [communicators.client(server.netloc) for _ in range(2)]
    introduce(server, *clients)
    assert server.get_ready() == []
    for number in range(3):
        for client in clients:
            client.put(number, lane=number).result(LIMIT)
    first = server.get_ready(4)
    rest = server.get_ready()
    for client in clients:
        assert [(each.data, each.lane) for each in first + rest if each.peer == client.id] == [(0, 0), (1, 1), (2, 2)]
    assert (len(first), server.get_ready()) == (4, [])


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_message_that_cannot_be_loaded_costs_no_other(communicators: Communicators, error: type[BaseException]) -> None:
    def load(stream: Stream) -> bytes:
        if (data := stream.read()) == b"bad":
            raise error
        return data

    serialization = SerializationOptions(load, bytes)
    server = communicators.server(serialization=serialization)
    client = communicators.client(server.netloc, serialization=serialization)
    for data in (b"1", b"2", b"bad", b"3"):
        client.put(data).result(LIMIT)
    got: list[bytes] = []
    errors = 0
    while len(got) < 3:
        try:
            got += [each.data for each in server.get_ready()]
        except (netq.Unreadable, SystemExit):
            errors += 1
    assert (got, errors) == ([b"1", b"2", b"3"], 1)


def test_interrupted_load_loses_no_message(communicators: Communicators) -> None:
    class Alarm(Exception):
        pass

    def handle(number: int, frame: FrameType | None) -> None:
        raise Alarm

    loads = 0

    def load(stream: Stream) -> bytes:
        nonlocal loads
        loads += 1
        if loads == 3:
            signal.raise_signal(signal.SIGALRM)
        return stream.read()

    serialization = SerializationOptions(load, bytes)
    server = communicators.server(serialization=serialization)
    client = communicators.client(server.netloc, serialization=serialization)
    for number in range(5):
        client.put(bytes([number])).result(LIMIT)
    before = signal.signal(signal.SIGALRM, netq.outside_steps(handle))
    try:
        with pytest.raises(Alarm):
            server.get_ready()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [each.data for each in server.get_ready()] == [bytes([number]) for number in range(5)]
