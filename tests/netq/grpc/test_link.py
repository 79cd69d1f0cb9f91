"""Links come and go, sessions stay; nobody pings, and a slow reader costs its bound."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from netq import NetworkLocation
from netq.core import Communicator
from netq.runtime.delivery import Delivery
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.netq.grpc.tap import DATA, GOAWAY, PING, Tap

MIB = 1024**2
Proxies = Callable[[NetworkLocation], Proxy]
BEATS: dict[str, Any] = {"heartbeat": 0.2, "misses": 3}


@pytest.mark.slow
def test_heartbeats_are_data_and_nothing_of_http2_pings_or_says_goaway(
    communicators: Communicators, log: LogRecorder
) -> None:
    """So no server or proxy on the way ever sees too many pings."""
    server = communicators.server(**BEATS)
    with Tap(server.netloc) as tap:
        client = communicators.client(tap.netloc, **BEATS)
        introduce(server, client)
        with pytest.raises(TimeoutError):
            server.get(timeout=4.0)
        data = bytes(5 * MIB)
        server.put(data, client.id).result(LIMIT)
        client.put(data).result(LIMIT)
        frames = [tap.frames(way) for way in (0, 1)]
        for kinds in frames:
            assert kinds.count(DATA) >= 20
            assert not {PING, GOAWAY} & set(kinds)
        assert server.statistics()[client.id].connected
        assert not log.having("lost (")
        client.close(LIMIT)
        communicators.release(client)


@pytest.mark.parametrize("to_server", [True, False], ids=["to_server", "to_client"])
def test_a_large_message_is_resumed_where_it_was_cut(
    communicators: Communicators, proxies: Proxies, log: LogRecorder, to_server: bool
) -> None:
    server = communicators.server()
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    sender, receiver = (client, server) if to_server else (server, client)
    data = bytearray(range(256)) * (50 * MIB // 256)
    before = proxy.passed
    proxy.cut_after(25 * MIB)
    future = sender.put(pickle.PickleBuffer(data))
    assert receiver.get(timeout=LIMIT).data == data
    future.result(LIMIT)
    log.wait("connected")
    assert proxy.passed - before <= 1.3 * len(data)


def test_a_server_that_is_started_again_is_found(communicators: Communicators, log: LogRecorder) -> None:
    first = communicators.server()
    client = communicators.client(first.netloc)
    introduce(first, client)
    communicators.abort(first)
    log.wait("trying again")  # what is put before may be on its way to the first
    future = client.put("to whoever comes")
    second = communicators.server(first.netloc)
    assert second.get(timeout=LIMIT).data == "to whoever comes"
    future.result(LIMIT)


def test_a_stream_of_small_messages_survives_cuts_in_order_and_once(
    communicators: Communicators, proxies: Proxies
) -> None:
    server = communicators.server(workers=2)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    for number in range(2000):
        client.put(number)
        server.put(-number, client.id)
        if number % 400 == 200:
            proxy.cut_after(1000)
    assert [server.get(timeout=LIMIT).data for _ in range(2000)] == list(range(2000))
    assert [client.get(timeout=LIMIT).data for _ in range(2000)] == [-number for number in range(2000)]
    with pytest.raises(TimeoutError):
        server.get(timeout=0)


def test_both_ends_notice_a_black_hole_and_go_on_when_it_is_over(
    communicators: Communicators, proxies: Proxies, log: LogRecorder
) -> None:
    beats: dict[str, Any] = {"heartbeat": 0.1, "misses": 3}
    server = communicators.server(**beats)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, handshake_timeout=0.2, **beats)
    introduce(server, client)
    proxy.hold()
    start = time.monotonic()
    future = client.put("into the hole")
    log.wait(f"{client.id}: lost (nothing heard for 0.")
    log.wait(f":{proxy.netloc.port}: nothing heard for 0.")
    assert time.monotonic() - start < 0.3 + 1.0
    proxy.release()
    future.result(LIMIT)
    assert server.get(timeout=0).data == "into the hole"


@pytest.mark.slow
def test_heartbeats_pass_a_slow_link_that_a_large_message_fills(
    communicators: Communicators, proxies: Proxies, log: LogRecorder
) -> None:
    """1 Mbit/s: a packet of 1 MiB would be a silence of eight seconds, and each link would be lost in it."""
    server = communicators.server(heartbeat=0.5)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, heartbeat=0.5)
    introduce(server, client)
    proxy.bandwidth = 125_000.0
    future = client.put(bytes(375_000))
    future.result(LIMIT)
    assert not log.having("lost (")


@pytest.mark.slow
def test_a_sender_stops_at_the_window_of_one_who_does_not_take(communicators: Communicators) -> None:
    server = communicators.server(window=MIB, memory=4 * MIB)
    client = communicators.client(server.netloc)
    introduce(server, client)
    futures = [client.put(bytes(MIB // 4)) for _ in range(64)]
    acknowledged = _until_it_stands(futures)
    assert 0 < acknowledged <= 5
    link = server._hub.peers[client.id].link
    assert link is not None
    assert link.stream.up._given - link.stream.up._taken <= 2 * MIB  # type: ignore[attr-defined]
    for _ in range(64):
        server.get(timeout=LIMIT)
    futures[-1].result(LIMIT)


def _until_it_stands(futures: list[Delivery]) -> int:
    """How many are done when no more has been for a while."""
    while True:
        done = [future.done() for future in futures].count(True)
        later = threading.Event()
        futures[done].add_done_callback(lambda future, later=later: later.set())  # type: ignore[misc]
        if not later.wait(1.0):
            return done


@pytest.mark.parametrize("workers", [1, 3])
def test_links_move_to_the_loops_of_their_sessions(communicators: Communicators, workers: int) -> None:
    server = communicators.server(workers=workers)
    clients = [communicators.client(server.netloc) for _ in range(6)]
    introduce(server, *clients)
    for client in clients:
        server.put(client.id.hex, client.id).result(LIMIT)
        assert client.get(timeout=LIMIT).data == client.id.hex
    loops = {_loop(server, client) for client in clients}
    assert len(loops) == workers


def _loop(server: Communicator, client: Communicator) -> object:
    link = server._hub.peers[client.id].link
    return link._loop  # type: ignore[union-attr]
