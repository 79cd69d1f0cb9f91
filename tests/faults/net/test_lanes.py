"""A small message does not wait for a large one on another lane of a slow link.

It waits for TCP only: where a queue of the network overflows, packets wait for the retransmission of a lost one.
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
PACE = 0.3  # seconds between an acknowledgement and the next message
SLOW = "root tbf rate 1mbit burst 5kb latency 200ms"
LATE = 1.0  # seconds, on the slow link


def content(size: int) -> bytearray:
    return bytearray(range(256)) * (size // 256)


def lateness(client: Communicator, server: Communicator) -> float | None:
    """Send a small message on lane 1; return its delay in seconds, or None if the large message came before it."""
    start = time.monotonic()
    future = client.put(bytes(SMALL), lane=1)
    taken = len(server.get(timeout=LIMIT).data)
    seconds = time.monotonic() - start
    future.result(LIMIT)
    return seconds if taken == SMALL else None


@pytest.mark.slow
def test_small_messages_pass_a_large_one_on_a_link_of_1_mbit(on_both: OnBoth, figure: Figure) -> None:
    """The large message would take 35 s, so the link is made fast again after the small ones."""

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
    """Wait between two messages of the load."""
    return not threading.Event().wait(PACE)


def summary(late: list[float]) -> str:
    median, worst = (f"{1000 * seconds:.1f} ms" for seconds in (statistics.median(late), max(late)))
    return f"{len(late)} messages of 64 bytes: median {median}, worst {worst}"
