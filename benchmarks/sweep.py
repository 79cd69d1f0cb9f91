"""The task "sweep", for peers whose calls block: round trips, then messages one way, for one size after the other.

Called by benchmarks/side.py. One pair of processes measures all sizes. The client decides how many messages fit into
the time, and sends a header with their size and number before them, because a bare socket has no message ends.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.blocking import Wire
from benchmarks.meter import Meter
from benchmarks.task import ACK, PIECE, Task, message

HEADER = struct.Struct("!qq?")  # size and number of the messages that follow; whether each is sent back. 0: the end
SMALL = 64 * 1024  # bytes: up to this size messages are `bytes`, above they are arrays
LEAST = 3  # messages that count
WARM = 0.1  # share of the time, for messages that do not count


def sweep_client(wire: Wire, task: Task, meter: Meter) -> None:
    whole = np.resize(message("array", min(task.size, PIECE)), task.size)
    meter.baseline()
    meter.begin()
    for size in task.sizes():
        data = bytes(whole[:size]) if size <= SMALL else whole[:size]
        _check_echo(wire, data)
        times: list[int] = []
        _in_time(_round_trips, wire, data, times, task.seconds)
        count, seconds = _in_time(_one_way, wire, data, [], task.seconds)
        meter.steps[size] = {"times": times, "count": count, "seconds": seconds}
    wire.send(HEADER.pack(0, 0, False))
    meter.end()


def sweep_server(wire: Wire, task: Task, meter: Meter) -> None:
    meter.baseline()
    meter.begin()
    while True:
        size, count, is_echo = HEADER.unpack(wire.receive(HEADER.size))
        if not count:
            break
        nbytes = 0
        for _ in range(count):
            received = wire.receive(size)
            nbytes += len(received)
            if is_echo:
                wire.send(received)
            del received
        if nbytes != size * count:
            raise RuntimeError(f"{nbytes} bytes came; expected {count} messages of {size}")
        if not is_echo:
            wire.send(ACK)
    meter.end()


def _in_time(
    run: Callable[[Wire, Any, list[int], int], None], wire: Wire, data: Any, times: list[int], seconds: float
) -> tuple[int, float]:
    """Send one message, then a tenth of what fits into the time, then all; return the last number, and its seconds."""
    count, took = 1, math.inf
    for share, least in ((0.0, 1), (WARM, 1), (1.0, LEAST)):
        count = max(least, int(count * share * seconds / took))
        times.clear()
        begin = time.perf_counter()
        run(wire, data, times, count)
        took = time.perf_counter() - begin
    return count, took


def _round_trips(wire: Wire, data: Any, times: list[int], count: int) -> None:
    size, clock, send, receive = len(data), time.perf_counter_ns, wire.send, wire.receive
    send(HEADER.pack(size, count, True))
    for _ in range(count):
        sent = clock()
        send(data)
        receive(size)
        times.append(clock() - sent)


def _one_way(wire: Wire, data: Any, times: list[int], count: int) -> None:
    send = wire.send
    send(HEADER.pack(len(data), count, False))
    for _ in range(count):
        send(data)
    wire.receive(len(ACK))


def _check_echo(wire: Wire, data: Any) -> None:
    wire.send(HEADER.pack(len(data), 1, True))
    wire.send(data)
    view, came = memoryview(data), memoryview(wire.receive(len(data)))
    pieces = range(0, len(view), PIECE)
    if len(came) != len(view) or any(bytes(view[i : i + PIECE]) != bytes(came[i : i + PIECE]) for i in pieces):
        raise RuntimeError(f"the echo of {len(view)} bytes is not what was sent")
