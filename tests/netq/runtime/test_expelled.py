"""What a server does with a client that costs others too much: it refuses it for a while, or lets others pass it."""

from __future__ import annotations

import logging
import queue
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import netq
from netq import NetworkLocation, Protocol
from netq.core import Communicator
from netq.options import MIB, CommunicatorOptions, EventOptions, Purpose, SerializationOptions
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from netq.utils.stream import Stream

SIZE = 2 * MIB


def make(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
    return netq.new(Protocol.TCP, purpose, options)


@pytest.fixture
def communicators(proxies: Callable[[NetworkLocation], Proxy]) -> Iterator[Communicators]:
    with Communicators(make) as communicators:
        yield communicators


class Sessions:
    """The events of a server."""

    def __init__(self) -> None:
        self.begun: queue.SimpleQueue[uuid.UUID] = queue.SimpleQueue()
        self.ended: queue.SimpleQueue[uuid.UUID] = queue.SimpleQueue()
        self.options = EventOptions(ini=self.begun.put, fin=self.ended.put)


def test_an_expelled_client_is_refused_for_a_while(communicators: Communicators) -> None:
    sessions = Sessions()
    server = communicators.server(events=sessions.options)
    client = communicators.client(server.netloc)
    introduce(server, client)
    refusals = []
    _log_refusal = server._endpoint._log_refusal
    server._endpoint._log_refusal = lambda link, reason: refusals.append(reason)  # type: ignore[method-assign]
    server.expel(client.id, "it is loud", 0.3)
    assert [sessions.begun.get(timeout=LIMIT) for _ in range(2)] == [client.id] * 2
    assert sessions.ended.get(timeout=LIMIT) == client.id
    assert set(refusals) == {"refused for 0.3 s: it is loud"}
    client.put("good")
    assert server.get(timeout=LIMIT).data == "good"


@pytest.mark.parametrize("pause", [0.0, 0.1])
def test_messages_of_a_refused_client_are_dropped(communicators: Communicators, pause: float) -> None:
    sessions = Sessions()
    server = communicators.server(events=sessions.options)
    client = communicators.client(server.netloc)
    introduce(server, client)
    for number in range(3):
        client.put(number).result(LIMIT)
    server.expel(client.id, "it is loud", pause)
    assert sessions.ended.get(timeout=LIMIT) == client.id
    assert [sessions.begun.get(timeout=LIMIT) for _ in range(2)] == [client.id] * 2
    client.put("later")
    kept = [] if pause else [0, 1, 2]
    assert [server.get(timeout=LIMIT).data for _ in [*kept, "later"]] == [*kept, "later"]


@pytest.mark.parametrize("pause", [0.0, 0.1])
def test_the_end_of_an_expelled_session_is_reported(communicators: Communicators, pause: float) -> None:
    sessions, end = Sessions(), Stream([b"end"])
    serialization = SerializationOptions()
    load = serialization.load
    own = replace(serialization, load=lambda stream: "end" if stream is end else load(stream))
    server = communicators.server(events=replace(sessions.options, end=end), serialization=own)
    client = communicators.client(server.netloc)
    introduce(server, client)
    client.put("unread").result(LIMIT)
    server.expel(client.id, "it is loud", pause)
    assert [sessions.begun.get(timeout=LIMIT) for _ in range(2)] == [client.id] * 2
    client.put("later")
    expected = ["end", "later"] if pause else ["unread", "end", "later"]
    assert [server.get(timeout=LIMIT).data for _ in expected] == expected


def test_losses_of_a_link_are_in_the_log_once_a_minute(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy], log: LogRecorder
) -> None:
    server = communicators.server()
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    for number in range(3):
        proxy.cut()
        client.put(number).result(LIMIT)
        assert server.get(timeout=LIMIT).data == number
    assert len(log.having("its session waits for it")) == 3
    assert len(log.having("its session waits for it", logging.INFO)) == 1


def test_a_client_that_was_paused_sends_small_messages(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy]
) -> None:
    server = communicators.server(memory=2 * SIZE)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    proxy.hold(MIB)
    client.put(bytes(64 * SIZE))
    while server.statistics()[client.id].arriving < MIB // 2:  # of a frame, which is larger
        pass
    server.pause(client.id, "others are faster")
    client.put("small", lane=1)
    proxy.release()
    assert server.get(timeout=LIMIT).data == "small"
    server.resume(client.id)
    assert len(server.get(timeout=LIMIT).data) == 64 * SIZE


@pytest.mark.parametrize("is_cut", [False, True], ids=["connected", "away"])
def test_others_pass_a_message_that_was_paused(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy], is_cut: bool
) -> None:
    server = communicators.server(memory=2 * SIZE, window=1)  # half of the memory is for one such message
    proxy = proxies(server.netloc)
    slow, quick = communicators.client(proxy.netloc), communicators.client(server.netloc)
    for client in (slow, quick):
        introduce(server, client)
    proxy.hold(MIB)
    sent = slow.put(bytes(SIZE))
    while not (figures := server.statistics()[slow.id]).arriving:
        pass
    assert SIZE <= figures.expected < SIZE + 1000
    assert not figures.waits
    quick.put(bytes(SIZE))
    while not server.statistics()[quick.id].waits:
        pass
    assert server.memory_is_full
    if is_cut:
        proxy.cut()
        while server.statistics()[slow.id].connected:
            pass
    server.pause(slow.id, "others are faster")
    assert server.get(timeout=LIMIT).peer == quick.id
    proxy.release()
    while not server.statistics()[slow.id].connected:
        pass
    quick.put(bytes(SIZE))
    assert server.get(timeout=LIMIT).peer == quick.id
    assert not server.memory_is_full
    server.resume(slow.id)
    assert server.get(timeout=LIMIT).peer == slow.id
    sent.result(LIMIT)
    assert server.statistics()[slow.id].expected == 0
