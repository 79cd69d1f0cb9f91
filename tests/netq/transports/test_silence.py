"""Silent peers and absent peers: heartbeat, session_timeout, linger."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from netq import Closed, NetworkLocation
from netq.runtime.delivery import Delivery
from netq.testing.checks.sessions import EventRecorder
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.wires import PROXIED, on

pytestmark = pytest.mark.slow

Proxies = Callable[[NetworkLocation], Proxy]
MIB = 1024**2
BEATS: dict[str, Any] = {"heartbeat": 0.1, "misses": 3}


@on(*PROXIED)
def test_both_ends_notice_silence_and_resume_after_it(
    communicators: Communicators, proxies: Proxies, log: LogRecorder
) -> None:
    server = communicators.server(**BEATS)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, handshake_timeout=0.2, **BEATS)
    introduce(server, client)
    proxy.hold()
    future = client.put("into the hole")
    log.wait(f"{client.id}: lost (nothing heard for ")
    log.wait(f":{proxy.netloc.port}: nothing heard for ")
    assert not server.statistics()[client.id].connected
    assert server.statistics()[client.id].absent > 0.0
    assert not future.done()
    proxy.release()
    future.result(LIMIT)
    assert server.get(timeout=0).data == "into the hole"
    with pytest.raises(TimeoutError):
        server.get(timeout=0)


def test_heartbeat_keeps_an_idle_link(communicators: Communicators, log: LogRecorder) -> None:
    """From the first moment, and for longer than handshake_timeout."""
    beats: dict[str, Any] = {"heartbeat": 0.1, "misses": 20}  # a busy machine may let a thread wait for a second
    server = communicators.server(handshake_timeout=0.3, **beats)
    client = communicators.client(server.netloc, handshake_timeout=0.3, **beats)
    introduce(server, client)
    with pytest.raises(TimeoutError):
        server.get(timeout=2.3)
    assert server.statistics()[client.id].connected
    assert server.statistics()[client.id].round_trip or client.statistics()[server.id].round_trip, "no PING was sent"
    assert not log.having("heard")


@on(*PROXIED)
def test_server_forgets_a_client_after_session_timeout(communicators: Communicators, proxies: Proxies) -> None:
    events = EventRecorder()
    server = communicators.server(session_timeout=0.2, events=events.events)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    assert events.next() == ("ini", client.id)
    proxy.refusing = True
    proxy.cut()
    future = server.put("never comes", client.id)
    with pytest.raises(Closed, match=r"no link for 0\.2 s \(session_timeout\)") as raised:
        future.result(LIMIT)
    assert raised.value.peer == client.id
    with pytest.raises(Closed):
        server.get(client.id, timeout=LIMIT)
    assert events.next() == ("fin", client.id)
    proxy.refusing = False
    assert events.next() == ("ini", client.id)
    introduce(server, client)


@on(*PROXIED)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("hole", [False, True], ids=["refused", "unanswered"])
def test_client_begins_a_new_session_after_session_timeout(
    communicators: Communicators, proxies: Proxies, hole: bool, workers: int
) -> None:
    server = communicators.server()
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, session_timeout=0.3, handshake_timeout=0.1, workers=workers, **BEATS)
    introduce(server, client)
    proxy.refusing = not hole
    if hole:
        proxy.hold()
    proxy.cut()
    start = time.monotonic()
    with pytest.raises(Closed, match=r"\(session_timeout\)"):
        client.put("never leaves").result(LIMIT)
    assert time.monotonic() - start < 5.0
    future = client.put("of the next session")
    proxy.refusing = False
    proxy.release()
    future.result(LIMIT)
    assert server.get(timeout=LIMIT).data == "of the next session"


@on(*PROXIED)
@pytest.mark.parametrize("hole", [False, True], ids=["refused", "unanswered"])
def test_close_waits_linger_for_an_absent_peer(
    communicators: Communicators, proxies: Proxies, log: LogRecorder, hole: bool
) -> None:
    server = communicators.server()
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, linger=0.3, handshake_timeout=0.1)
    introduce(server, client)
    proxy.refusing = not hole
    if hole:
        proxy.hold()
    proxy.cut()
    log.wait("trying again")
    future = client.put("too late")
    start = time.monotonic()
    assert client.close(LIMIT) == 1
    assert 0.2 < time.monotonic() - start < 5.0
    with pytest.raises(Closed, match=r"\(linger\)"):
        future.result(0)
    communicators.release(client)


@on(*PROXIED)
def test_close_does_not_linger_with_nothing_unsent(
    communicators: Communicators, proxies: Proxies, log: LogRecorder
) -> None:
    server = communicators.server()
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    proxy.refusing = True
    proxy.cut()
    log.wait(f"{client.id}: lost")
    log.wait("trying again")
    start = time.monotonic()
    assert client.close(LIMIT) == server.close(LIMIT) == 0
    assert time.monotonic() - start < 5.0, "linger is 10 s"


@on(*PROXIED)
def test_close_with_timeout_ends_though_the_peer_is_silent(communicators: Communicators, proxies: Proxies) -> None:
    server = communicators.server(linger=0.1)  # it may begin to close before it notices that the client has gone
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    proxy.hold()
    futures = [client.put(number) for number in range(3)]
    start = time.monotonic()
    assert client.close(timeout=0.1) == 3
    assert time.monotonic() - start < 5.0
    for future in futures:
        with pytest.raises(Closed, match="closed before all was delivered"):
            future.result(0)
    proxy.release()
    communicators.release(client)


@on(*PROXIED)
def test_heartbeats_pass_a_large_message_on_a_slow_link(
    communicators: Communicators, proxies: Proxies, log: LogRecorder
) -> None:
    """At 1 Mbit/s, a batch of 1 MiB would be a silence of eight seconds: longer than the heartbeat allows."""
    server = communicators.server(heartbeat=1.0)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, heartbeat=1.0)
    introduce(server, client)
    proxy.bandwidth = 125_000.0
    client.put(bytes(450_000)).result(LIMIT)
    assert not log.having("lost (")


@on(*PROXIED)
def test_sender_stops_at_the_window_of_a_peer_that_does_not_read(
    communicators: Communicators, proxies: Proxies
) -> None:
    server = communicators.server(window=MIB, memory=4 * MIB)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    before = proxy.passed
    futures = [client.put(bytes(MIB // 4)) for _ in range(128)]
    assert 0 < acknowledged(futures) <= 5
    assert proxy.passed - before < 16 * MIB, "of 32: the window, and the buffers of sockets and of libraries"
    for _ in range(128):
        server.get(timeout=LIMIT)
    futures[-1].result(LIMIT)


def acknowledged(futures: list[Delivery]) -> int:
    """How many are done once no other has been done for a second."""
    while True:
        done = [future.done() for future in futures].count(True)
        later = threading.Event()
        futures[done].add_done_callback(lambda future, later=later: later.set())  # type: ignore[misc]
        if not later.wait(1.0):
            return done
