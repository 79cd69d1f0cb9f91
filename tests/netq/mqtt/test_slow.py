"""A slow way to the broker: heartbeats pass, and a message on another lane does not wait for all of a large one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from netq import NetworkLocation
from netq.testing.log import Log
from netq.testing.proxy import Proxy
from netq.testing.stage import LIMIT, Stage, introduce
from tests.netq.makers import at_broker
from tests.servers.mosquitto import Mosquitto

SIZE = 2 * 1024**2


@pytest.mark.slow
@pytest.mark.parametrize("to_server", [True, False], ids=["to_server", "to_client"])
def test_at_one_mbit_a_second_no_link_is_lost_and_the_other_lane_is_served_first(
    broker: Mosquitto, proxies: Callable[[NetworkLocation], Proxy], log: Log, to_server: bool
) -> None:
    proxy = proxies(broker.netloc)
    with Stage(at_broker(broker.netloc)) as stage:
        server = stage.server(heartbeat=1.0)
        client = stage.client(proxy.netloc, heartbeat=1.0)
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
