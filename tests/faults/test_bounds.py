"""A slow reader delays its own sender only, and a large message its own lane only.

The cases "a slow reader" and "a 64-byte message on lane 1" of docs/explanation/reliability.md.
"""

from __future__ import annotations

import statistics
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pickle import PickleBuffer

import pytest

from netq import Closed, Communicator, NetworkLocation, Purpose, QueueFull
from netq.testing.fixtures import LIMIT, Communicators, introduce
from tests.faults.conftest import FULL, Figure
from tests.programs.child import Children
from tests.wires import ALL, Wire, on

MIB = 2**20
WINDOW = 8 * MIB
ECHOES = 100
DELAYED = 1.0  # seconds; a quick client waits a millisecond, and for the slow one it would wait for ever


@contextmanager
def echoing(server: Communicator, slow: Communicator) -> Iterator[None]:
    """Answer all clients but the slow one."""

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


def round_trips(client: Communicator) -> list[float]:
    """Return the round trips of echoes, in seconds."""
    seconds = []
    for number in range(ECHOES):
        begin = time.perf_counter()
        client.put((number, bytes(1024)))
        assert client.get(timeout=LIMIT).data[0] == number
        seconds.append(time.perf_counter() - begin)
    return seconds


@pytest.mark.slow
@on(*ALL)
def test_slow_reader_delays_only_its_own_sender(communicators: Communicators, wire: Wire, figure: Figure) -> None:
    server = communicators.server(queue_size=50)
    slow = communicators.client(server.netloc, window=WINDOW)
    quick = communicators.client(server.netloc)
    introduce(server, slow, quick)
    with echoing(server, slow):
        alone = round_trips(quick)
        futures = [server.put(bytearray(MIB), slow.id) for _ in range(100)]
        futures[WINDOW // (MIB + 1024) - 1].result(LIMIT)
        loaded = round_trips(quick)
        unread = slow.statistics()[server.id].bytes_in
        waiting = server.statistics()[slow.id].queued
        refused = [future for future in futures if future.done() and future.exception() is not None]
        communicators.release(server)
        communicators.abort(slow)
    unread_mib = f"{unread / MIB:.1f} MiB unread (window 8)"
    figure("18 slow reader", f"{wire.kind}: {unread_mib}, {waiting} messages of 1 MiB wait, {len(refused)} QueueFull")
    both = "{:.2f} ms alone, {:.2f} ms with it".format(
        *(1e3 * statistics.quantiles(each, n=100)[98] for each in (alone, loaded))
    )
    figure("18 slow reader", f"{wire.kind}: p99 of another client's echo {both}")
    assert unread <= WINDOW + 2 * MIB
    assert 50 - WINDOW // MIB - 2 <= waiting <= 50
    assert len(refused) >= 100 - 50 - WINDOW // MIB - 2
    assert all(isinstance(future.exception(), QueueFull) for future in refused)
    assert statistics.median(loaded) < DELAYED


@pytest.mark.slow
@on(*ALL)
def test_small_messages_pass_a_large_one_on_another_lane(
    communicators: Communicators, wire: Wire, figure: Figure
) -> None:
    size = 128 if wire.kind == "mqtt" and not FULL else 256  # MiB: the others are faster
    with Children() as children:
        server = children.start("clerk", wire, Purpose.SERVER)
        client = communicators.client(NetworkLocation(*server.receive()["netloc"]))
        assert lateness(client) is not None
        begin = time.monotonic()
        future = client.put(PickleBuffer(bytearray(size * MIB)))
        late = []
        while (seconds := lateness(client)) is not None:
            late.append(seconds)
        future.result(LIMIT)
        whole = time.monotonic() - begin
        assert client.get(timeout=LIMIT).data is not None, "the last small one"
        client.put("enough").result(LIMIT)
        client.close(LIMIT)  # the server waits for it
        server.finish()
    # a small one waits for what the kernel has taken before it: up to 36 MiB, by tcp_rmem and tcp_wmem
    assert len(late) >= 3, "they waited for the large one"
    median, worst = statistics.median(late) * 1e3, max(late) * 1e3
    behind = f"behind {size} MiB on lane 0, which took {whole:.1f} s"
    figure(
        "lanes on loopback",
        f"{wire.kind}: {len(late)} of 64 bytes: median {median:.1f} ms, worst {worst:.1f} ms, {behind}",
    )


def lateness(client: Communicator) -> float | None:
    """Send a small message; return its delay in seconds, or None if the large message came before it."""
    client.put(struct.pack("<d56x", time.monotonic()), lane=1)
    seconds: float | None = client.get(timeout=LIMIT).data
    return seconds
