"""18: a peer that does not read. Who sends to it stops at a bound, and the other peers do not notice."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from netq import Closed, Communicator, QueueFull
from netq.testing.stage import LIMIT, Stage, introduce
from tests.faults.conftest import Figure, Wire

MIB = 2**20
WINDOW = 8 * MIB
ECHOES = 1000


@contextmanager
def echoing(server: Communicator, slow: Communicator) -> Iterator[None]:
    """Answer all but the slow one."""

    def answer() -> None:
        while True:
            try:
                peer, data = server.get()
            except Closed:
                return
            if peer != slow.id:
                server.put(data, peer)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        server.close(timeout=0)
        thread.join()


def round_trips(client: Communicator) -> float:
    """Return the 99th percentile of the seconds of an echo."""
    seconds = []
    for number in range(ECHOES):
        begin = time.perf_counter()
        client.put((number, bytes(1024)))
        assert client.get(timeout=LIMIT).data[0] == number
        seconds.append(time.perf_counter() - begin)
    return statistics.quantiles(seconds, n=100)[98]


@pytest.mark.slow
def test_who_does_not_read_stops_its_sender_and_nobody_else(stage: Stage, wire: Wire, figure: Figure) -> None:
    server = stage.server(queue_size=50)
    slow = stage.client(server.netloc, window=WINDOW)
    quick = stage.client(server.netloc)
    introduce(server, slow, quick)
    with echoing(server, slow):
        alone = round_trips(quick)
        futures = [server.put(bytearray(MIB), slow.id) for _ in range(100)]
        futures[WINDOW // (MIB + 1024) - 1].result(LIMIT)
        beside = round_trips(quick)
        unread = slow.statistics()[server.id].bytes_in
        waiting = server.statistics()[slow.id].queued
        refused = [future for future in futures if future.done() and future.exception() is not None]
        stage.forget(server)
        stage.cut(slow)
    unread_mib = f"{unread / MIB:.1f} MiB unread (window 8)"
    figure("18 slow reader", f"{wire.kind}: {unread_mib}, {waiting} messages of 1 MiB wait, {len(refused)} QueueFull")
    both = f"{alone * 1e3:.2f} ms alone, {beside * 1e3:.2f} ms beside it"
    figure("18 slow reader", f"{wire.kind}: p99 of another client's echo {both}")
    assert unread <= WINDOW + 2 * MIB
    assert 50 - WINDOW // MIB - 2 <= waiting <= 50
    assert len(refused) >= 100 - 50 - WINDOW // MIB - 2
    assert all(isinstance(future.exception(), QueueFull) for future in refused)
    assert beside < max(2 * alone, 0.02)
