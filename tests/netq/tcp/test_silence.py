"""Peers that are silent, and peers that stay away: how long that is borne."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from netq import Closed, NetworkLocation
from netq.testing.checks.sessions import EventRecorder
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy

Proxies = Callable[[NetworkLocation], Proxy]
BEATS: dict[str, Any] = {"heartbeat": 0.1, "misses": 3}


def test_both_ends_notice_a_black_hole_and_go_on_when_it_is_over(
    communicators: Communicators, proxies: Proxies, log: LogRecorder
) -> None:
    server = communicators.server(**BEATS)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, handshake_timeout=0.2, **BEATS)
    introduce(server, client)
    proxy.hold()
    start = time.monotonic()
    future = client.put("into the hole")
    log.wait(f"{client.id}: lost (nothing heard for 0.")
    log.wait(f":{proxy.netloc.port}: nothing heard for 0.")
    assert time.monotonic() - start < 0.3 + 1.0
    assert not server.statistics()[client.id].connected
    assert server.statistics()[client.id].absent > 0.0
    assert not future.done()
    proxy.release()
    future.result(LIMIT)
    assert server.get(timeout=0).data == "into the hole"
    with pytest.raises(TimeoutError):
        server.get(timeout=0)


def test_a_link_that_has_nothing_to_say_is_kept_by_the_heartbeat(
    communicators: Communicators, log: LogRecorder
) -> None:
    """From its first moment on, and beyond what the handshake was given."""
    server = communicators.server(handshake_timeout=0.3, **BEATS)
    client = communicators.client(server.netloc, handshake_timeout=0.3, **BEATS)
    introduce(server, client)
    with pytest.raises(TimeoutError):
        server.get(timeout=0.9)
    assert server.statistics()[client.id].connected
    assert server.statistics()[client.id].round_trip or client.statistics()[server.id].round_trip, "nobody has asked"
    assert not log.having("heard")


def test_a_server_forgets_a_client_that_stays_away(communicators: Communicators, proxies: Proxies) -> None:
    told = EventRecorder()
    server = communicators.server(session_timeout=0.2, events=told.events)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    assert told.next() == ("ini", client.id)
    proxy.refusing = True
    proxy.cut()
    future = server.put("never comes", client.id)
    with pytest.raises(Closed, match=r"no link for 0\.2 s \(session_timeout\)") as raised:
        future.result(LIMIT)
    assert raised.value.peer == client.id
    with pytest.raises(Closed):
        server.get(client.id, timeout=LIMIT)
    assert told.next() == ("fin", client.id)
    proxy.refusing = False
    assert told.next() == ("ini", client.id)
    introduce(server, client)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("hole", [False, True], ids=["refused", "accepted and not answered"])
def test_a_client_gives_its_session_up_and_begins_another(
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


@pytest.mark.parametrize("hole", [False, True], ids=["refused", "accepted and not answered"])
def test_close_waits_no_longer_than_linger_for_a_peer_that_is_away(
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


def test_close_does_not_linger_for_a_peer_that_is_away_and_has_nothing_due(
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


def test_close_with_a_timeout_ends_though_the_peer_is_silent(communicators: Communicators, proxies: Proxies) -> None:
    server = communicators.server()
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
