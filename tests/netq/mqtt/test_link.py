"""No packet is larger than was agreed: brokers silently drop larger ones."""

from __future__ import annotations

import random

import pytest

from netq.mqtt.link import _packets
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from tests.netq.makers import at_broker
from tests.servers.mosquitto import Mosquitto


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_packets_keep_order_and_size_limit(size: int) -> None:
    chance = random.Random(size)
    buffers = [chance.randbytes(chance.randint(0, 3 * size)) for _ in range(20)]
    packets = _packets(list(buffers), size)
    assert b"".join(b"".join(packet) for packet in packets) == b"".join(buffers)
    assert all(sum(map(len, packet)) == size for packet in packets[:-1])
    assert 0 < sum(map(len, packets[-1])) <= size
    assert _packets([], size) == []


def test_mixed_unicast_and_broadcast_lose_no_link(broker: Mosquitto, log: LogRecorder) -> None:
    """A part for several peers ends at the same offset on all links, so it may exceed the rest of a packet."""
    with Communicators(at_broker(broker.netloc, packet_size=4096)) as communicators:
        server = communicators.server()
        clients = [communicators.client(server.netloc) for _ in range(3)]
        introduce(server, *clients)
        sizes = [3000, 200_000, 10, 4095, 100_000, 5000]
        futures = [server.put(bytes(size)) for size in sizes]
        futures += [server.put(bytes(size), clients[0].id, lane=1) for size in sizes]
        for client in clients[1:]:
            assert [len(client.get(timeout=LIMIT).data) for _ in sizes] == sizes
        assert sorted(len(clients[0].get(timeout=LIMIT).data) for _ in sizes * 2) == sorted(sizes * 2)
        for future in futures:
            future.result(LIMIT)
        assert not log.having("expected")
