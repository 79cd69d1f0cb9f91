"""A second server of one prefix takes it over: the first says so, and does not fight."""

from __future__ import annotations

from netq.testing.log import Log
from netq.testing.stage import LIMIT, Stage, introduce
from tests.netq.makers import at_broker
from tests.servers.mosquitto import Mosquitto


def test_the_newer_server_has_the_clients_and_the_older_one_does_not_come_back(broker: Mosquitto, log: Log) -> None:
    with Stage(at_broker(broker.netloc)) as stage:
        first = stage.server()
        clients = [stage.client(first.netloc) for _ in range(3)]
        introduce(first, *clients)
        second = stage.server()
        log.wait("another server of")
        introduce(second, *clients)
        introduce(second, *clients)
        assert len(log.having("has taken over; this one serves nobody any more")) == 1
        assert len(log.having("serving")) == 2  # each once: no flapping
        assert all(not figures.connected for figures in first.statistics().values())
        stage.cut(first)
        second.put("mine").result(LIMIT)
        assert [client.get(timeout=LIMIT).data for client in clients] == ["mine"] * 3
