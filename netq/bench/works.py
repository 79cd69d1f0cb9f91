"""What is measured one message after another: iops, latency, throughput. Each returns its figures, as JSON has them.

load.py is the one at a rate. Times are of perf_counter_ns, and kept in arrays until all is over.
"""

from __future__ import annotations

import time
from array import array
from typing import Any

from netq.bench import flow
from netq.bench.client import Client, Sides, Transfer
from netq.bench.crowd import Crowd
from netq.bench.percentiles import spread
from netq.bench.plan import Plan
from netq.bench.progress import Progress
from netq.bench.usage import Usage, one_by_one

MICROSECONDS = 1000  # nanoseconds

Figures = dict[str, Any]


def iops(crowd: Crowd, plan: Plan, mode: str, delay: float, progress: Progress) -> Figures:
    """Send the messages of a plan each way: one direction after the other ("sync"), or both at once ("async")."""
    directions = ("up", "down") if mode == "sync" else ("both",)
    done = [crowd.transfer(way, plan, progress.bar(f"iops {mode}, {way}", plan.count), delay) for way in directions]
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


def throughput(client: Client, plan: Plan, direction: str, progress: Progress) -> Figures:
    """Send messages of one size: "up" to the server, "down" from it, or "both" ways at once."""
    transfer = client.transfer(direction, plan, progress.bar(f"throughput {direction}", plan.count))
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


def latency(client: Client, size: int, count: int, progress: Progress) -> Figures:
    """Make round trips of one message, each begun when the one before has ended."""
    times = array("q", bytes(8 * count))
    show = progress.bar("latency", count)
    with client.echoing(size) as echoes:
        echoes.warm()
        begin = time.perf_counter_ns()
        trips(echoes.end, echoes.message, times, show)
        seconds = (time.perf_counter_ns() - begin) / 1e9
    assert echoes.used is not None
    return {
        "messages": count,
        "bytes": size * count,
        "seconds": seconds,
        "microseconds": spread(times, MICROSECONDS),
        **_used([echoes.used]),
    }


def trips(end: flow.Endpoint, message: flow.Payload, times: array[int], show: flow.Show) -> None:
    """Fill `times` with the nanoseconds of as many round trips."""
    clock, put, receive = time.perf_counter_ns, end.put, flow.receive_one
    for number in range(len(times)):
        begin = clock()
        put(message)
        receive(end)
        times[number] = clock() - begin
        if not number % flow.BATCH:
            show(number)


def side(used: Usage) -> Figures:
    """Return the figures of one side."""
    return {"cpu_seconds": used.cpu / 1e9, "resident_bytes": used.resident, "extra_bytes": used.extra}


def _moved(done: list[Transfer]) -> tuple[int, int]:
    came = [counted for transfer in done for counted in (transfer.up, transfer.down)]
    return sum(each.messages for each in came), sum(each.nbytes for each in came)


def _used(sides: list[Sides]) -> dict[str, Figures]:
    return {name: side(one_by_one([getattr(each, name) for each in sides])) for name in Sides._fields}
