"""Links come and go, sessions stay."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from netq import Closed, NetworkLocation
from netq.core import Communicator
from netq.runtime.delivery import Delivery
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy

MIB = 1024**2
Proxies = Callable[[NetworkLocation], Proxy]


def wait_until_it_leaves(client: Communicator, future: Delivery) -> None:
    while not future.running():
        client.statistics()  # a turn of its loop


@pytest.mark.parametrize("to_server", [True, False], ids=["to_server", "to_client"])
@pytest.mark.parametrize("cut_after", [10 * MIB, 25 * MIB + 1, 50 * MIB - 1])
def test_a_large_message_is_resumed_where_it_was_cut(
    communicators: Communicators, proxies: Proxies, log: LogRecorder, cut_after: int, to_server: bool
) -> None:
    server = communicators.server()
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    sender, receiver = (client, server) if to_server else (server, client)
    data = bytearray(range(256)) * (50 * MIB // 256)
    before = proxy.passed
    proxy.cut_after(cut_after)
    future = sender.put(pickle.PickleBuffer(data))
    assert receiver.get(timeout=LIMIT).data == data
    future.result(LIMIT)
    log.wait("connected")
    assert proxy.passed - before <= 1.2 * len(data)


def test_a_link_that_is_cut_again_and_again_brings_a_message_forward(
    communicators: Communicators, proxies: Proxies
) -> None:
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
    assert server.get(timeout=LIMIT).data == data
    future.result(LIMIT)
    assert proxy.passed - before <= 2 * len(data)


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


def test_a_client_waits_for_its_server_and_says_so_once(communicators: Communicators, log: LogRecorder) -> None:
    client = communicators.client(communicators.unused_address())
    future = client.put("early")
    line = log.wait("trying again")
    assert line.startswith(f"127.0.0.1:{client.netloc.port}: ")
    assert "refused" in line
    while client._hub._attempt < 5:
        with pytest.raises(TimeoutError):
            client.get(timeout=0.01)
    server = communicators.server(client.netloc)
    assert server.get(timeout=LIMIT).data == "early"
    future.result(LIMIT)
    log.wait("connected")
    assert len(log.having("trying again")) == 1


def test_a_new_server_gets_what_had_not_left_and_what_was_on_its_way_fails(
    communicators: Communicators, proxies: Proxies
) -> None:
    first = communicators.server(window=256)  # the first message leaves, and fills it
    proxy = proxies(first.netloc)
    client = communicators.client(proxy.netloc)
    introduce(first, client)
    proxy.hold()
    on_its_way = client.put("on its way", lane=1)  # of which nobody has used the window yet
    waiting = client.put("had not left", lane=1)
    wait_until_it_leaves(client, on_its_way)
    proxy.refusing = True
    proxy.cut()
    proxy.release()
    while first.statistics()[client.id].connected:
        pass
    communicators.abort(first)
    second = communicators.server(first.netloc)
    proxy.refusing = False
    with pytest.raises(Closed, match="began anew while this message was on its way") as raised:
        on_its_way.result(LIMIT)
    assert raised.value.peer == first.id
    assert second.get(timeout=LIMIT).data == "had not left"
    waiting.result(LIMIT)
    with pytest.raises(TimeoutError):
        second.get(timeout=0)


def test_close_delivers_over_a_link_that_is_lost_meanwhile(communicators: Communicators, proxies: Proxies) -> None:
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


def test_links_that_are_lost_at_once_make_the_pauses_longer(
    communicators: Communicators, proxies: Proxies, log: LogRecorder
) -> None:
    server = communicators.server()
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    for number in range(1, 7):
        log.wait("connected", number)
        proxy.cut()
    log.wait("connected", 7)
    assert client._hub._attempt >= 5
    introduce(server, client)
