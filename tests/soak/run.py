"""One run: a server and its clients in this process, faults, and proxies where the transport allows them.

Called by tests/soak/__main__.py and by the test. Owns everything that a run opens, and closes it. The order at the end:
all faults end, all messages settle, all communicators close, and then the history is read and checked.
"""

from __future__ import annotations

import ctypes
import functools
import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from netq import CommunicatorOptions, ConnectionOptions, NetworkLocation, Purpose
from netq.security import certificates
from netq.testing.proxy import Proxy
from tests.soak.history import check, read
from tests.soak.life import LIMIT, Life, Side, client_id, server_id
from tests.soak.nemesis import Nemesis
from tests.soak.recorder import Recorder
from tests.soak.report import Report, Sample
from tests.soak.schedule import HEARTBEAT, MISSES, RATE, schedule, steps
from tests.soak.traffic import Traffic
from tests.soak.wires import faults, opened
from tests.wires import Wire

# Clients connect from 127.0.0.1. Another address here: while the server is down, no client's socket gets its port.
_HOST = "127.0.0.2"
_CONNECTION = ConnectionOptions(
    heartbeat=HEARTBEAT,
    misses=MISSES,
    handshake_timeout=3.0,
    retry_min=0.02,
    retry_max=0.5,
    window=256 * 1024,  # smaller than the largest messages, so that credit and budget both limit senders
    memory=8 * 1024 * 1024,  # two of the largest messages: others wait; partial ones of absent clients are dropped
    transport_size=64 * 1024,
)
_WARM_UP = 5.0  # seconds
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Plan:
    """What to run. The same seed gives the same faults, but the system's timing decides what they hit."""

    wire: str
    seconds: float
    seed: int
    clients: int = 20
    rate: float = RATE


def run(plan: Plan, files: certificates.Files, history: Path) -> Report:
    """Run a plan, and return its report; the history stays in its file. Raises NotInstalled."""
    timeline = steps(schedule(plan.seed, plan.seconds, plan.clients, plan.rate, faults(plan.wire)))
    with (
        tempfile.TemporaryDirectory() as folder,
        opened(plan.wire, files, Path(folder)) as (wire, broker),
        Recorder(history) as recorder,
        _opened(plan, wire, recorder) as (sides, proxies, pool),
    ):
        traffic = Traffic(sides[0], {number: side for number, side in sides.items() if number}, plan.seed)
        nemesis = Nemesis(sides, proxies, broker, traffic, recorder, pool)
        stop, memory = threading.Event(), list[Sample]()
        work = [pool.submit(traffic.run, stop), pool.submit(nemesis.run, timeline, stop)]
        work.append(pool.submit(_sample, memory, recorder, stop))
        try:
            stop.wait(plan.seconds)
        finally:  # after Ctrl-C, too: threads wait for it
            stop.set()
        for each in work:
            each.result(LIMIT)
        nemesis.heal()
        healed = recorder.time
        recorder.settle(LIMIT)
        settling = recorder.time - healed
        _close(sides, recorder, pool)
    with history.open(encoding="utf-8") as lines:
        violations = check(read(lines))
    counts = recorder.counts, recorder.bytes, nemesis.done
    return Report(
        plan.wire, plan.seconds, plan.seed, plan.clients, *counts, settling, violations, recorder.errors, memory
    )


Opened = tuple[dict[int, Side], dict[int, Proxy], ThreadPoolExecutor]


@contextmanager
def _opened(plan: Plan, wire: Wire, recorder: Recorder) -> Iterator[Opened]:
    """Yield the server (0) and the clients (from 1), the proxies between them, and threads for all of them."""
    with ThreadPoolExecutor(2 * plan.clients + 8) as pool, ExitStack() as stack:
        sides: dict[int, Side] = {}
        stack.callback(_end, sides)

        def side(number: int, netloc: NetworkLocation) -> Side:
            return Side(netloc, functools.partial(_live, wire, recorder, pool, number))

        sides[0] = side(0, NetworkLocation(_HOST, 0))
        netloc, clients = sides[0].life.communicator.netloc, range(1, plan.clients + 1)
        proxies = {} if plan.wire == "shm" else {number: stack.enter_context(Proxy(netloc)) for number in clients}
        for number in clients:
            sides[number] = side(number, proxies[number].netloc if proxies else netloc)
        yield sides, proxies, pool


def _live(
    wire: Wire, recorder: Recorder, pool: ThreadPoolExecutor, number: int, netloc: NetworkLocation, life: int
) -> Life:
    """Return a new life of one side."""
    purpose = Purpose.CLIENT if number else Purpose.SERVER
    options = CommunicatorOptions(
        id=client_id(number) if number else server_id(life),
        netloc=netloc,
        connection=_CONNECTION,
        workers=1 if number else 2,
    )
    return Life(wire.make(purpose, options), life, "up" if number else "down", recorder, pool)


def _close(sides: dict[int, Side], recorder: Recorder, pool: ThreadPoolExecutor) -> None:
    """Close the clients at once, then the server: every message must be delivered."""
    clients = {number: pool.submit(side.life.close, LIMIT) for number, side in sides.items() if number}
    left = {number: future.result(2 * LIMIT) for number, future in clients.items()}
    left[0] = sides[0].life.close(LIMIT)
    for number, count in left.items():
        if count:
            recorder.error(f"{number}: closing lost {count} messages")


def _end(sides: dict[int, Side]) -> None:
    """After an error, end all communicators that are open, so that no thread is left."""
    for side in reversed(sides.values()):
        if not side.life.closed:
            side.life.close(timeout=0)


def _sample(memory: list[Sample], recorder: Recorder, stop: threading.Event) -> None:
    """Record the resident memory once a second, after the warm-up."""
    if stop.wait(_WARM_UP):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while not stop.wait(1.0):
        if trim is not None:
            trim(0)  # freed memory in the arenas of a hundred threads grows for minutes, and would hide a leak
        size = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
        memory.append((recorder.time, size))
        recorder.note("memory", f"{size} bytes")
