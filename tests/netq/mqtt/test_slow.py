"""A slow path to the broker: heartbeats pass, and a large message does not block other lanes to its end."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from netq import NetworkLocation
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.netq.makers import at_broker
from tests.servers.mosquitto import Mosquitto

SIZE = 1024**2 // 2
NARROW = 20_000  # bytes a second: 256 KiB take 13 s, a link's first packet 0.8 s; silence of 3 s loses the link


@pytest.mark.slow
@pytest.mark.parametrize("to_server", [True, False], ids=["to_server", "to_client"])
def test_one_mbit_per_second_loses_no_link(
    broker: Mosquitto, proxies: Callable[[NetworkLocation], Proxy], log: LogRecorder, to_server: bool
) -> None:
    proxy = proxies(broker.netloc)
    with Communicators(at_broker(broker.netloc)) as communicators:
        server = communicators.server(heartbeat=0.5)
        client = communicators.client(proxy.netloc, heartbeat=0.5)
        introduce(server, client)
        proxy.bandwidth = 125_000
        sender, receiver = (client, server) if to_server else (server, client)
        large = sender.put(bytes(SIZE))
        sender.put("short", lane=1)
        assert receiver.get(timeout=LIMIT).data == "short"
        assert not large.done()
        assert receiver.get(timeout=LIMIT).data == bytes(SIZE)
        large.result(LIMIT)
        assert not log.having("lost")
        assert not log.having("nothing heard")


@pytest.mark.slow
@pytest.mark.parametrize("to_server", [True, False], ids=["to_server", "to_client"])
def test_twenty_kilobytes_per_second_lose_no_link(
    broker: Mosquitto, proxies: Callable[[NetworkLocation], Proxy], log: LogRecorder, to_server: bool
) -> None:
    proxy = proxies(broker.netloc)
    with Communicators(at_broker(broker.netloc)) as communicators:
        server = communicators.server(heartbeat=1.0)
        client = communicators.client(proxy.netloc, heartbeat=1.0)
        introduce(server, client)
        proxy.bandwidth = NARROW
        sender, receiver = (client, server) if to_server else (server, client)
        data, start = bytes(6 * NARROW), time.monotonic()
        sender.put(data).result(60.0)
        assert receiver.get(timeout=LIMIT).data == data
        print(f"{time.monotonic() - start:.1f} s for what takes 6")
        assert not log.having("lost")
        assert not log.having("nothing heard")
