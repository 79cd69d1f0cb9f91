"""A session outlives its links: resume after a cut, restart of the server, pauses between attempts."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import pytest

from netq import Closed, NetworkLocation
from netq.core import Communicator
from netq.runtime.delivery import Delivery
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.netq.conftest import Attempts
from tests.wires import LISTENING, PROXIED, SEALED, Wire, on

pytestmark = pytest.mark.slow

MIB = 1024**2
SIZE = 20 * MIB
CUTS = [
    *[("tcp", cut, to_server) for cut in (4 * MIB, SIZE - 1) for to_server in (True, False)],
    *[("tls", 4 * MIB, True), ("tls", SIZE - 1, False)],
    *[(kind, SIZE // 2 + 1, True) for kind in (*PROXIED, *SEALED)],
    *[(kind, SIZE // 2 + 1, False) for kind in PROXIED],
]
RESENT = {"tcp": 1.2, "tls": 1.2}  # bytes on the wire per byte of the message; others buffer more below the link
Proxies = Callable[[NetworkLocation], Proxy]


def wait_until_it_leaves(client: Communicator, future: Delivery) -> None:
    while not future.running():
        client.statistics()  # a turn of its loop


@pytest.mark.parametrize(("wire", "cut_after", "to_server"), CUTS, indirect=["wire"])
def test_large_message_resumes_where_it_was_cut(
    communicators: Communicators, wire: Wire, proxies: Proxies, log: LogRecorder, cut_after: int, to_server: bool
) -> None:
    server = communicators.server()
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    sender, receiver = (client, server) if to_server else (server, client)
    data = bytearray(range(256)) * (SIZE // 256)
    before = proxy.passed
    proxy.cut_after(cut_after)
    future = sender.put(pickle.PickleBuffer(data))
    assert bytes(receiver.get(timeout=LIMIT).data) == data  # views are compared byte by byte
    future.result(LIMIT)
    log.wait("connected")
    assert proxy.passed - before <= RESENT.get(wire.kind, 1.3) * len(data)


@on(*PROXIED)
def test_message_advances_over_repeated_cuts(communicators: Communicators, proxies: Proxies) -> None:
    server = communicators.server()
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    data = bytearray(range(256)) * (10 * MIB // 256)
    before = proxy.passed
    future = client.put(pickle.PickleBuffer(data))
    for mib in range(1, 10):
        proxy.wait(before + mib * MIB, LIMIT)
        proxy.cut()
    assert bytes(server.get(timeout=LIMIT).data) == data
    future.result(LIMIT)
    assert proxy.passed - before <= 2 * len(data)


@on(*PROXIED)
def test_small_messages_survive_cuts_in_order_and_once(communicators: Communicators, proxies: Proxies) -> None:
    server = communicators.server(workers=2)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    for number in range(1000):
        client.put(number)
        server.put(-number, client.id)
        if number % 200 == 100:
            proxy.cut_after(1000)
    assert [server.get(timeout=LIMIT).data for _ in range(1000)] == list(range(1000))
    assert [client.get(timeout=LIMIT).data for _ in range(1000)] == [-number for number in range(1000)]
    with pytest.raises(TimeoutError):
        server.get(timeout=0)


@on(*LISTENING)
def test_client_that_starts_first_is_served(communicators: Communicators, log: LogRecorder, attempts: Attempts) -> None:
    client = communicators.client(communicators.unused_address())
    future = client.put("early")
    line = log.wait("trying again")
    assert line.startswith(f"127.0.0.1:{client.netloc.port}: ")
    assert "refused" in line
    attempts.wait(5)
    server = communicators.server(client.netloc)
    assert server.get(timeout=LIMIT).data == "early"
    future.result(LIMIT)
    log.wait("connected")
    assert len(log.having("trying again")) == 1


def test_restarted_server_is_found(communicators: Communicators, log: LogRecorder) -> None:
    first = communicators.server()
    client = communicators.client(first.netloc)
    introduce(first, client)
    communicators.abort(first)
    log.wait("trying again")  # a message put earlier may be on its way to the first server
    future = client.put("to the second")
    second = communicators.server(first.netloc)
    assert second.get(timeout=LIMIT).data == "to the second"
    future.result(LIMIT)


@on(*PROXIED)
def test_restarted_server_gets_unsent_messages_and_sent_ones_fail(
    communicators: Communicators, proxies: Proxies
) -> None:
    first = communicators.server(window=256)  # the first message leaves, and fills it
    proxy = proxies(first.netloc)
    client = communicators.client(proxy.netloc)
    introduce(first, client)
    proxy.hold()
    sent = client.put("sent", lane=1)  # a lane that has not used its window yet
    unsent = client.put("unsent", lane=1)
    wait_until_it_leaves(client, sent)
    proxy.refusing = True
    proxy.cut()
    proxy.release()
    while first.statistics()[client.id].connected:
        pass
    communicators.abort(first)
    second = communicators.server(first.netloc)
    proxy.refusing = False
    with pytest.raises(Closed, match="began anew while this message was on its way") as raised:
        sent.result(LIMIT)
    assert raised.value.peer == first.id
    assert second.get(timeout=LIMIT).data == "unsent"
    unsent.result(LIMIT)
    with pytest.raises(TimeoutError):
        second.get(timeout=0)


@on(*PROXIED)
def test_close_delivers_over_a_new_link(communicators: Communicators, proxies: Proxies) -> None:
    server = communicators.server()
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    future = client.put(pickle.PickleBuffer(bytearray(5 * MIB)))
    proxy.cut_after(MIB)
    assert client.close(LIMIT) == 0
    future.result(0)
    assert len(server.get(timeout=LIMIT).data) == 5 * MIB
    with pytest.raises(Closed):
        server.get(client.id, timeout=LIMIT)


@on(*PROXIED)
def test_pauses_grow_when_links_are_lost_at_once(
    communicators: Communicators, proxies: Proxies, log: LogRecorder, attempts: Attempts
) -> None:
    server = communicators.server()
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    for number in range(1, 7):
        log.wait("connected", number)
        proxy.cut()
    log.wait("connected", 7)
    assert attempts.latest >= 5
    introduce(server, client)


@pytest.mark.parametrize("workers", [1, 3])
def test_sessions_are_spread_over_all_workers(communicators: Communicators, workers: int) -> None:
    server = communicators.server(workers=workers)
    clients = [communicators.client(server.netloc) for _ in range(6)]
    introduce(server, *clients)
    threads: set[int] = set()  # which complete the futures: those of the loops, unless a future is done already
    data = bytes(4 * MIB)
    for client in clients:
        server.put(data, client.id).add_done_callback(lambda future: threads.add(threading.get_ident()))
        assert client.get(timeout=LIMIT).data == data
        server.put("last", client.id).result(LIMIT)  # so the callback of the first has run
        assert client.get(timeout=LIMIT).data == "last"
    assert len(threads - {threading.get_ident()}) == workers
