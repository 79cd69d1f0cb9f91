"""What is measured without a rate and at one size: iops, latency, throughput.

Each returns its figures under their keys in JSON. load.py measures at a rate, sweep.py by size. Times are of
perf_counter_ns, and go into an array that is allocated before.
"""

from __future__ import annotations

import time
from array import array
from typing import Any

from netq.bench import streaming
from netq.bench.client import Client, Sides, Transfer
from netq.bench.plan import Plan
from netq.bench.resources import Usage, one_by_one
from netq.bench.statistics import spread

MICROSECOND = 1000  # nanoseconds

Figures = dict[str, Any]


def iops(client: Client, plan: Plan, mode: str) -> Figures:
    """Send the messages of a plan each way: one direction after the other ("sync"), or both at once ("async")."""
    done = [client.transfer(direction, plan) for direction in (("up", "down") if mode == "sync" else ("both",))]
    seconds = sum(transfer.seconds for transfer in done)
    messages, nbytes = _moved(done)
    return {
        "messages": messages,
        "bytes": nbytes,
        "seconds": seconds,
        "iops": messages / seconds,
        "gbit_per_second": nbytes * 8 / seconds / 1e9,
        **_used([transfer.used for transfer in done]),
    }


def throughput(client: Client, plan: Plan, direction: str) -> Figures:
    """Send messages of one size: "up" to the server, "down" from it, or "both" ways at once."""
    transfer = client.transfer(direction, plan)
    messages, nbytes = _moved([transfer])
    used = _used([transfer.used])
    for side in used.values():
        side["cpu_seconds_per_gb"] = side["cpu_seconds"] / (nbytes / 1e9)
        side["extra_per_message"] = None if side["extra_bytes"] is None else side["extra_bytes"] / plan.largest
    return {
        "messages": messages,
        "bytes": nbytes,
        "seconds": transfer.seconds,
        "gb_per_second": nbytes / transfer.seconds / 1e9,
        **used,
    }


def latency(client: Client, size: int, count: int) -> Figures:
    """Make round trips of one message, one after the other."""
    times = array("q", bytes(8 * count))
    with client.echoing(size) as echoes:
        echoes.warm_up()
        begin = time.perf_counter_ns()
        measure_round_trips(echoes.end, echoes.message, times)
        seconds = (time.perf_counter_ns() - begin) / 1e9
    assert echoes.used is not None
    return {
        "messages": count,
        "bytes": size * count,
        "seconds": seconds,
        "microseconds": spread(times, MICROSECOND),
        **_used([echoes.used]),
    }


def measure_round_trips(end: streaming.Endpoint, message: streaming.Payload, times: array[int]) -> None:
    """Make `len(times)` round trips, and store the nanoseconds of each."""
    clock, put, receive = time.perf_counter_ns, end.put, streaming.receive_one
    for number in range(len(times)):
        begin = clock()
        put(message)
        receive(end)
        times[number] = clock() - begin


def side(used: Usage) -> Figures:
    """Return the figures of one side: CPU seconds, resident memory, extra memory."""
    return {"cpu_seconds": used.cpu / 1e9, "resident_bytes": used.resident, "extra_bytes": used.extra}


def _moved(done: list[Transfer]) -> tuple[int, int]:
    came = [counted for transfer in done for counted in (transfer.up, transfer.down)]
    return sum(each.messages for each in came), sum(each.nbytes for each in came)


def _used(sides: list[Sides]) -> dict[str, Figures]:
    return {name: side(one_by_one([getattr(each, name) for each in sides])) for name in Sides._fields}
