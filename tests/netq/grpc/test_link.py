"""The HTTP/2 frames of a link: heartbeats are DATA, never PING."""

from __future__ import annotations

from typing import Any

import pytest

from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from tests.netq.grpc.tap import DATA, GOAWAY, PING, Tap

MIB = 1024**2
BEATS: dict[str, Any] = {"heartbeat": 0.2, "misses": 100}  # a busy machine may hold one up for seconds


@pytest.mark.slow
def test_link_sends_no_http2_ping_and_no_goaway(communicators: Communicators, log: LogRecorder) -> None:
    """So no server or proxy on the way ever sees too many pings."""
    server = communicators.server(**BEATS)
    with Tap(server.netloc) as tap:
        client = communicators.client(tap.netloc, **BEATS)
        introduce(server, client)
        with pytest.raises(TimeoutError):
            server.get(timeout=4.0)
        data = bytes(5 * MIB)
        server.put(data, client.id).result(LIMIT)
        client.put(data).result(LIMIT)
        frames = [tap.frames(way) for way in (0, 1)]
        for kinds in frames:
            assert kinds.count(DATA) >= 20
            assert not {PING, GOAWAY} & set(kinds)
        assert server.statistics()[client.id].connected
        assert not log.having("lost (")
        client.close(LIMIT)
        communicators.release(client)
