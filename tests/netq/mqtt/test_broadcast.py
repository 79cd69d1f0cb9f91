"""A message to several clients enters the broker once, and a slow or lost client does not harm the others."""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable

import numpy as np
import pytest

from netq import NetworkLocation
from netq.core import Communicator
from netq.mqtt import packet, window
from netq.mqtt.packet import PacketKind
from netq.mqtt.topic import new_id
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.netq.makers import at_broker
from tests.netq.mqtt.conftest import NewBroker
from tests.netq.mqtt.stranger import Stranger
from tests.servers.mosquitto import Mosquitto

MIB = 1024**2
CLIENTS, MANY = 8, 20
OVERHEAD = 6.4 * MIB  # bytes that enter the broker besides the message: new links begin with packets of their own
Proxies = Callable[[NetworkLocation], Proxy]
Array = np.ndarray[tuple[int], np.dtype[np.float32]]


def model(size: int) -> Array:
    return np.arange(size // 4, dtype=np.float32)


def assert_all_got(clients: list[Communicator], data: Array) -> None:
    for client in clients:
        assert np.array_equal(client.get(timeout=LIMIT).data, data)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_broadcast_to_eight_clients_enters_the_broker_once(new_broker: NewBroker, workers: int) -> None:
    broker = new_broker()
    with Communicators(at_broker(broker.netloc)) as communicators:
        server = communicators.server(workers=workers)
        clients = [communicators.client(server.netloc) for _ in range(CLIENTS)]
        introduce(server, *clients)
        data = model(16 * MIB)
        before = broker.counter("bytes/received")
        future = server.put(data)
        assert_all_got(clients, data)
        future.result(LIMIT)
        received = broker.counter("bytes/received") - before
    print(f"{workers} workers: {received / data.nbytes:.3f} of the message entered the broker")
    assert data.nbytes < received <= data.nbytes + OVERHEAD


@pytest.mark.slow
@pytest.mark.alone  # on a busy machine the links find smaller packets for themselves, each its own
def test_many_clients_with_small_shares_need_no_probe_timer(broker: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "TOTAL_PACKETS", 2 * MANY)  # a share of two packets, as 100 clients have
    with Communicators(at_broker(broker.netloc)) as communicators:
        server = communicators.server()
        clients = [communicators.client(server.netloc) for _ in range(MANY)]
        introduce(server, *clients)
        warm = server.put(bytes(MIB))  # new links begin with small packets, each with its own
        for client in clients:
            client.get(timeout=LIMIT)
        warm.result(LIMIT)
        data = model(4 * MIB)
        before, start = broker.counter("bytes/received"), time.monotonic()
        future = server.put(data)
        assert_all_got(clients, data)
        future.result(LIMIT)
        seconds = time.monotonic() - start
        received = broker.counter("bytes/received") - before
    print(f"{MANY} clients: {received / data.nbytes:.2f} of the message entered the broker, in {seconds:.1f} s")
    assert received <= 1.5 * data.nbytes
    assert seconds < 5.0, "a timer takes a second for each two of 16 blocks"


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4])
def test_client_that_stands_still_delays_the_others_briefly(
    new_broker: NewBroker, proxies: Proxies, count: int
) -> None:
    broker = new_broker()
    proxy = proxies(broker.netloc)
    with Communicators(at_broker(broker.netloc)) as communicators:
        server = communicators.server()
        stuck = communicators.client(proxy.netloc)
        others = [communicators.client(server.netloc) for _ in range(count - 1)]
        introduce(server, stuck, *others)
        before = broker.memory()
        data = model(32 * MIB)
        proxy.hold()
        start = time.monotonic()
        future = server.put(data)
        assert_all_got(others, data)
        seconds = time.monotonic() - start
        broker.counter("bytes/received")  # a second later: what goes to the one that stands still is there
        grown = broker.memory("VmHWM") - before
        print(f"{count} clients: the broker grew by {grown / MIB:.1f} MiB; the others had all after {seconds:.1f} s")
        assert not future.done()
        assert grown < 16 * MIB
        assert seconds < 10.0
        proxy.release()
        assert_all_got([stuck], data)
        future.result(LIMIT)


@pytest.mark.slow
def test_lost_member_resumes_and_the_others_continue(broker: Mosquitto, proxies: Proxies) -> None:
    proxy = proxies(broker.netloc)
    with Communicators(at_broker(broker.netloc)) as communicators:
        server = communicators.server()
        clients = [communicators.client(proxy.netloc), *[communicators.client(server.netloc) for _ in range(3)]]
        introduce(server, *clients)
        data = model(24 * MIB)
        proxy.cut_after(8 * MIB)
        future = server.put(data)
        assert_all_got(clients, data)
        future.result(LIMIT)
        assert_all_got_again(server, clients)


@pytest.mark.slow
def test_lost_block_is_detected_and_sent_again(broker: Mosquitto, log: LogRecorder) -> None:
    prefix = f"test/{new_id()}"
    stranger = Stranger(broker.netloc, prefix)
    with Communicators(at_broker(broker.netloc, prefix=prefix)) as communicators:
        server = communicators.server()
        clients = [communicators.client(server.netloc) for _ in range(3)]
        introduce(server, *clients)
        data = model(32 * MIB)
        future = server.put(data)
        _, joined = stranger.wait(PacketKind.JOINED, "s", len(clients))
        stranger.publish(f"g/{joined[packet.HEADER_SIZE :].hex()}", packet.block(10**6) + b"of another")
        log.wait("of a group is lost")
        assert_all_got(clients, data)
        future.result(LIMIT)
    stranger.close()


def test_short_messages_and_single_peers_use_unicast(broker: Mosquitto) -> None:
    prefix = f"test/{new_id()}"
    stranger = Stranger(broker.netloc, prefix)
    with Communicators(at_broker(broker.netloc, prefix=prefix)) as communicators:
        server = communicators.server()
        clients = [communicators.client(server.netloc) for _ in range(3)]
        introduce(server, *clients)
        server.put(bytes(10_000)).result(LIMIT)
        server.put(bytes(10**6), clients[0].id).result(LIMIT)
        assert all(client.get(timeout=LIMIT).data == bytes(10_000) for client in clients)
        assert clients[0].get(timeout=LIMIT).data == bytes(10**6)
        assert stranger.count(PacketKind.JOIN, "c") == 0
        assert_all_got_again(server, clients)
        stranger.wait(PacketKind.JOIN, "c", 3)
    stranger.close()


def test_group_is_reused_for_the_same_clients(broker: Mosquitto) -> None:
    prefix = f"test/{new_id()}"
    stranger = Stranger(broker.netloc, prefix)
    with Communicators(at_broker(broker.netloc, prefix=prefix)) as communicators:
        server = communicators.server()
        clients = [communicators.client(server.netloc) for _ in range(3)]
        introduce(server, *clients)
        for _ in range(5):
            assert_all_got_again(server, clients)
        stranger.wait(PacketKind.JOIN, "c", 3)
        assert stranger.count(PacketKind.JOIN, "c") == 3
        assert stranger.count(PacketKind.LEAVE, "c") == 0
        other = communicators.client(server.netloc)
        introduce(server, other)
        assert_all_got_again(server, [*clients, other])
        stranger.wait(PacketKind.JOIN, "c", 7)
        assert stranger.count(PacketKind.JOIN, "c") == 7
    stranger.close()


def test_concurrent_broadcasts_on_lanes_arrive_complete(broker: Mosquitto) -> None:
    with Communicators(at_broker(broker.netloc)) as communicators:
        check_concurrent_broadcasts(communicators)


def check_concurrent_broadcasts(communicators: Communicators) -> None:
    """Put messages to changing audiences on several lanes; each client gets all of its own."""
    server = communicators.server()
    clients = [communicators.client(server.netloc) for _ in range(4)]
    introduce(server, *clients)
    wanted: dict[uuid.UUID, list[bytes]] = {client.id: [] for client in clients}
    futures = []
    for number in range(24):
        some = [client for index, client in enumerate(clients) if (number >> index) % 2 or number % 3 == index]
        data = bytes([number]) * (300_000 + 100_000 * (number % 7))
        if some:
            futures.append(server.put(data, *[client.id for client in some], lane=number % 3))
        for client in some:
            wanted[client.id].append(data)
    for client in clients:
        got = [client.get(timeout=LIMIT).data for _ in wanted[client.id]]
        assert sorted(got) == sorted(wanted[client.id])
    for future in futures:
        future.result(LIMIT)


def test_broadcast_cancelled_for_one_reaches_the_others(broker: Mosquitto) -> None:
    with Communicators(at_broker(broker.netloc)) as communicators:
        server = communicators.server()
        clients = [communicators.client(server.netloc) for _ in range(3)]
        introduce(server, *clients)
        for _ in range(10):
            data = bytearray(range(256)) * (2 * MIB // 256)
            future = server.put(pickle.PickleBuffer(data))
            if future.cancel():
                data[:] = bytes(len(data))  # it is the caller's again
        server.put("end").result(LIMIT)
        whole = bytearray(range(256)) * (2 * MIB // 256)
        for client in clients:
            while (got := client.get(timeout=LIMIT).data) != "end":
                assert got == whole


def assert_all_got_again(server: Communicator, clients: list[Communicator]) -> None:
    """Assert that the links still work, by another broadcast."""
    future = server.put(bytes(range(256)) * 4096)
    assert [client.get(timeout=LIMIT).data for client in clients] == [bytes(range(256)) * 4096] * len(clients)
    future.result(LIMIT)
