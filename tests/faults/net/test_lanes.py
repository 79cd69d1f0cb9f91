"""A small message does not wait for a large one that travels on another lane of a slow link.

What it does wait for is TCP: where the queue of the network overflows, the packets behind a lost one wait for it too.
"""

from __future__ import annotations

import pickle
import statistics
import threading
import time
from typing import TYPE_CHECKING

import pytest

from netq.core import Communicator
from netq.testing.fixtures import LIMIT

if TYPE_CHECKING:
    from tests.faults.conftest import Figure
    from tests.faults.net.conftest import OnBoth, Site

MIB = 1024**2
SMALL = 64  # bytes
TIMES = 12
PACE = 0.3  # seconds between one that has been acknowledged and the next
SLOW = "root tbf rate 1mbit burst 5kb latency 200ms"
LATE = 1.0  # seconds, on the slow link
LATE_HERE = 0.5  # seconds, where both ends are one process; the goal is some milliseconds


def content(size: int) -> bytearray:
    return bytearray(range(256)) * (size // 256)


def lateness(client: Communicator, server: Communicator) -> float | None:
    """Send a small message on lane 1; return the seconds until it has been taken. None: a large one came before it."""
    start = time.monotonic()
    future = client.put(bytes(SMALL), lane=1)
    taken = len(server.get(timeout=LIMIT).data)
    seconds = time.monotonic() - start
    future.result(LIMIT)
    return seconds if taken == SMALL else None


@pytest.mark.slow
@pytest.mark.alone
def test_small_messages_pass_a_large_one_on_a_link_of_1_mbit(on_both: OnBoth, figure: Figure) -> None:
    """The large one would take 35 s: the link is made fast again when the small ones are there."""

    def scenario(site: Site) -> None:
        server, client = site.pair()
        site.cable.client.run("tc", "qdisc", "replace", "dev", "cable", *SLOW.split())
        large = content(4 * MIB)
        future = client.put(pickle.PickleBuffer(large))
        late = [seconds for _ in range(TIMES) if pace() and (seconds := lateness(client, server))]
        assert len(late) == TIMES, "the large one was not on its way all the time"
        site.cable.client.run("tc", "qdisc", "delete", "dev", "cable", "root")
        assert server.get(timeout=LIMIT).data == large
        future.result(LIMIT)
        figure("lanes at 1 Mbit/s", f"{site.kind}: {summary(late)} behind 4 MiB on lane 0; goal {LATE:g} s")
        assert statistics.median(late) < LATE

    on_both(scenario)


def pace() -> bool:
    """Let a while pass between two messages of the load."""
    return not threading.Event().wait(PACE)


def summary(late: list[float]) -> str:
    median, worst = (f"{1000 * seconds:.1f} ms" for seconds in (statistics.median(late), max(late)))
    return f"{len(late)} messages of 64 bytes: median {median}, worst {worst}"
