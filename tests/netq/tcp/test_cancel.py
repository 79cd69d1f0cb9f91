"""Cancelling while the socket is full: what was handed to the link is not the caller's memory any more."""

from __future__ import annotations

from collections.abc import Callable
from pickle import PickleBuffer

import pytest

from netq import Communicator, NetworkLocation
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.proxy import Proxy

SIZE, HELD = 64 * 2**20, 16 * 2**20  # bytes of a message, and of it that pass


def holding(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy]
) -> tuple[Communicator, Communicator, Proxy, int]:
    """Return a server and a client that know each other, the proxy between them, and when that will stand still."""
    server = communicators.server()
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    held = proxy.passed + HELD
    proxy.hold(after=HELD)
    return server, client, proxy, held


def test_a_message_cancelled_on_a_link_that_stands_still_is_free_at_once(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy]
) -> None:
    server, client, proxy, held = holding(communicators, proxies)
    data = bytearray(SIZE)
    future = client.put(PickleBuffer(data))  # out of band: a bytearray itself would be copied
    proxy.wait(held, LIMIT)
    with pytest.raises(BufferError):
        data.clear()
    assert future.cancel()
    client.statistics()  # asks the loop: it has heard of it
    data.clear()  # raises BufferError while anybody has a view of it
    proxy.release()
    client.put("next").result(LIMIT)
    assert server.get(timeout=0).data == "next"
    assert proxy.passed - held < SIZE - HELD


def test_the_receiver_forgets_a_message_that_is_cancelled_on_its_way(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy]
) -> None:
    server, client, proxy, held = holding(communicators, proxies)
    future = client.put(bytearray(SIZE))
    proxy.wait(held, LIMIT)
    (peer,) = server._hub.peers.values()
    assert peer.loop.ask(lambda: peer.session._memory.idle) < SIZE, "it is not on its way"
    arriving = server.statistics()[client.id].arriving
    assert HELD // 2 < arriving < SIZE
    assert future.cancel()
    proxy.release()
    client.put("next", lane=1).result(LIMIT)
    client.put("last").result(LIMIT)  # behind it: so the server has heard
    assert peer.loop.ask(lambda: peer.session._memory.idle) >= SIZE, "its block is here, and not idle"
    assert {server.get(timeout=0).data for _ in range(2)} == {"next", "last"}
    assert server.statistics()[client.id].arriving == 0
