"""Sealed messages through a broker: one publication for a broadcast, which the broker can neither read nor forge."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from netq import NetworkLocation
from netq.core import Communicator
from netq.mqtt import packet
from netq.mqtt.packet import PacketKind
from netq.mqtt.topic import new_id
from netq.testing.fixtures import LIMIT, Communicators, Make, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.netq.authority import Authority
from tests.netq.makers import at_broker, sealed
from tests.netq.mqtt.conftest import NewBroker
from tests.netq.mqtt.stranger import Stranger
from tests.netq.mqtt.test_broadcast import (
    CLIENTS,
    OVERHEAD,
    assert_all_got,
    assert_all_got_again,
    check_concurrent_broadcasts,
    model,
)
from tests.servers.mosquitto import Mosquitto

pytestmark = pytest.mark.usefixtures("own_garbage")

MIB = 1024**2
SECRET = b"a line that is not for the broker "
Proxies = Callable[[NetworkLocation], Proxy]
NewMake = Callable[..., Make]


@pytest.fixture
def seal(tmp_path: Path) -> Callable[[Make], Make]:
    """Seal the communicators of a maker."""
    authority = Authority(tmp_path)
    return lambda make: sealed(make, authority)


@pytest.fixture
def stranger(broker: Mosquitto) -> Iterator[Stranger]:
    stranger = Stranger(broker.netloc, f"test/{new_id()}")
    yield stranger
    stranger.close()
    gc.collect()


@pytest.mark.slow
def test_sealed_broadcast_enters_the_broker_once(new_broker: NewBroker, seal: Callable[[Make], Make]) -> None:
    broker = new_broker()
    with Communicators(seal(at_broker(broker.netloc))) as communicators:
        server = communicators.server(workers=2)
        clients = [communicators.client(server.netloc) for _ in range(CLIENTS)]
        introduce(server, *clients)
        data = model(16 * MIB)
        before = broker.counter("bytes/received")
        future = server.put(data)
        assert_all_got(clients, data)
        future.result(LIMIT)
        received = broker.counter("bytes/received") - before
    print(f"{received / data.nbytes:.3f} of the message entered the broker")
    assert data.nbytes < received <= data.nbytes + OVERHEAD


def test_who_reads_all_topics_finds_no_plaintext(
    broker: Mosquitto, seal: Callable[[Make], Make], stranger: Stranger
) -> None:
    for make, visible in ((at_broker, True), (lambda *args, **options: seal(at_broker(*args, **options)), False)):
        spy = Stranger(broker.netloc, f"test/{new_id()}")
        data = np.frombuffer(SECRET * 10_000, np.uint8)
        with Communicators(make(broker.netloc, prefix=spy.prefix)) as communicators:
            server = communicators.server()
            clients = [communicators.client(server.netloc) for _ in range(3)]
            introduce(server, *clients)
            future = server.put(data)
            for client in clients:
                assert np.array_equal(client.get(timeout=LIMIT).data, data)
                client.put(SECRET).result(LIMIT)
            future.result(LIMIT)
            ids = [client.id.bytes for client in clients]
        spy.wait(PacketKind.CLOSE, "s", 3)
        seen = spy.everything()
        spy.close()
        assert len(seen) > data.nbytes, "the broadcast was seen"
        assert [text in seen for text in (SECRET, b"NETQ\1", *ids)] == [visible] * 5


def test_forged_block_of_a_group_is_refused_and_the_message_arrives(
    broker: Mosquitto, seal: Callable[[Make], Make], stranger: Stranger, proxies: Proxies, log: LogRecorder
) -> None:
    proxy = proxies(broker.netloc)
    with Communicators(seal(at_broker(broker.netloc, prefix=stranger.prefix))) as communicators:
        server = communicators.server()
        clients = [communicators.client(server.netloc) for _ in range(2)]
        last = communicators.client(proxy.netloc)
        introduce(server, *clients, last)
        data = model(2 * MIB)
        proxy.hold()  # the group has no block before its last member has joined
        future = server.put(data)
        _, joined = stranger.wait(PacketKind.JOINED, "s", len(clients))
        group = joined[packet.HEADER_SIZE :].hex()
        stranger.publish(f"g/{group}", packet.block(1) + bytes(1000))
        proxy.release()
        assert_all_got([*clients, last], data)
        future.result(LIMIT)
        assert log.wait("expected BLOCK of at most")
        assert_all_got_again(server, [*clients, last])


def test_forged_packet_of_a_link_is_refused_and_the_session_resumes(
    broker: Mosquitto, seal: Callable[[Make], Make], stranger: Stranger, log: LogRecorder
) -> None:
    with Communicators(seal(at_broker(broker.netloc, prefix=stranger.prefix))) as communicators:
        server = communicators.server()
        client = communicators.client(server.netloc)
        introduce(server, client)
        topic, last = stranger.wait(PacketKind.DATA, "s", 3)  # the two flights of the handshake, and "hello"
        received = packet.decode(stranger.wait(PacketKind.DATA, "c", 3)[1]).number  # its answers: all that was sent
        found = packet.decode(last)
        header = packet.header(PacketKind.DATA, found.number + 1, received, found.room)
        stranger.publish(topic, header + bytes(found.body))
        log.wait("does not authenticate")
        client.put("after").result(LIMIT)
        assert server.get(timeout=LIMIT).data == "after"
        assert server.statistics()[client.id].messages_in == 2


@pytest.mark.slow
def test_lost_member_resumes_in_the_middle_of_a_sealed_broadcast(
    broker: Mosquitto, seal: Callable[[Make], Make], proxies: Proxies
) -> None:
    proxy = proxies(broker.netloc)
    with Communicators(seal(at_broker(broker.netloc))) as communicators:
        server = communicators.server()
        clients = [communicators.client(proxy.netloc), *[communicators.client(server.netloc) for _ in range(3)]]
        introduce(server, *clients)
        data = model(24 * MIB)
        proxy.cut_after(8 * MIB)
        future = server.put(data)
        assert_all_got(clients, data)
        future.result(LIMIT)
        assert_all_got_again(server, clients)


def test_members_with_other_packet_sizes_get_the_message_alone(broker: Mosquitto, seal: Callable[[Make], Make]) -> None:
    prefix = f"test/{new_id()}"
    large, small = (seal(at_broker(broker.netloc, prefix=prefix, packet_size=size)) for size in (65_536, 5000))
    with Communicators(large) as communicators, Communicators(small) as others:
        server = communicators.server()
        clients = [communicators.client(server.netloc) for _ in range(2)] + [others.client(server.netloc)]
        introduce(server, *clients)
        for size in (MIB, 65_537, 4 * MIB + 1):
            assert_all_got_array(server, clients, np.arange(size, dtype=np.uint8))


def test_message_is_freed_after_a_sealed_broadcast(broker: Mosquitto, seal: Callable[[Make], Make]) -> None:
    """Without the garbage collector: neither the groups nor the links keep a block, and with it the message."""
    with Communicators(seal(at_broker(broker.netloc))) as communicators:
        server = communicators.server()
        clients = [communicators.client(server.netloc) for _ in range(3)]
        introduce(server, *clients)
        gc.collect()
        gc.disable()
        try:
            data, freed = np.zeros(2 * MIB, np.uint8), threading.Event()
            weakref.finalize(data, freed.set)
            future = server.put(data)
            for client in clients:
                client.get(timeout=LIMIT)
            future.result(LIMIT)
            del data
            assert freed.wait(LIMIT)
        finally:
            gc.enable()


def test_concurrent_sealed_broadcasts_arrive_complete(broker: Mosquitto, seal: Callable[[Make], Make]) -> None:
    with Communicators(seal(at_broker(broker.netloc))) as communicators:
        check_concurrent_broadcasts(communicators)


def assert_all_got_array(server: Communicator, clients: list[Communicator], data: np.ndarray) -> None:
    future = server.put(data)
    for client in clients:
        assert np.array_equal(client.get(timeout=LIMIT).data, data)
    future.result(LIMIT)
