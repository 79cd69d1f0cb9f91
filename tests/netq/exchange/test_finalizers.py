"""What finalizers may do on top of the holder of a baton: by turns that are forced, and by a smaller finalizers.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from netq.exchange import Client
from netq.exchange.envelope import Envelope, EnvelopeKind
from netq.testing.fixtures import LIMIT
from tests.netq.exchange.finalizers import run
from tests.netq.exchange.test_exchange import Site, done
from tests.wires import NewWire

WAYS: dict[str, Callable[[Client], Any]] = {
    "publish": lambda client: client.publish("t", 1),
    "push": lambda client: client.push("q", 1),
    "call": lambda client: client.call("s", 1),
    "send": lambda client: client.send(client.id, 1),
    "subscribe": lambda client: client.subscribe("t"),
    "put": lambda client: client._requester.queue.put(Envelope(EnvelopeKind.RETURN)),
}


@pytest.fixture
def client(new_wire: NewWire) -> Iterator[Client]:
    with ExitStack() as stack:
        site = Site(new_wire("tcp"), stack)
        made = site.client(site.exchange())
        done(made.subscribe("begin"), made.serve("s", abs))
        yield made


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_holder_of_the_baton_waits_for_no_thread_that_waits_for_it(
    client: Client, way: Callable[[Client], Any]
) -> None:
    baton = client._requester.queue._baton
    worker = client.jobs("jobs")
    client.push("jobs", 1)
    job = worker.get(LIMIT)
    other = threading.Thread(target=way, args=(client,))
    with baton.lock:  # as the loop's thread holds it, on top of which the collector runs a finalizer
        other.start()
        until = time.monotonic() + 1.0
        while other.is_alive() and not baton.wanted and time.monotonic() < until:
            pass
        way(client)
        job.done()
    other.join(LIMIT)
    assert not other.is_alive()
    done(client.publish("t", 2))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_thread_that_asks_gives_the_holder_of_the_baton_its_lock(client: Client, way: Callable[[Client], Any]) -> None:
    baton, lock, holds, got = client._requester.queue._baton, threading.Lock(), threading.Event(), list[bool]()

    def finalizer() -> None:
        with baton.lock:
            holds.set()
            if lock.acquire(timeout=LIMIT):  # of a logging handler, say
                lock.release()
                got.append(True)

    holder = threading.Thread(target=finalizer)
    with lock:
        holder.start()
        assert holds.wait(LIMIT)
        way(client)
    holder.join(2 * LIMIT)
    assert got == [True]
    done(client.publish("t", 2))


@pytest.mark.slow
def test_finalizers_may_use_a_client_on_top_of_any_code() -> None:
    found = run(1.5, seed=1)
    assert (found.hangs, found.lost) == ([], 0)
    assert found.done > found.failed
    assert found.by_finalizers
