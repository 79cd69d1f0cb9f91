"""The server's side: every client has a thread of its own, which does what the client asks until it is gone.

A client is told at once who serves it. What it asks is bounded (protocol.py, plan.py, and `largest`); one that says
what is not due is told so, and not listened to any more.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import queue
import threading
import uuid
from collections.abc import Callable
from typing import Any

import netq
from netq.bench import flow, protocol
from netq.bench.plan import Plan
from netq.bench.protocol import BenchError, Counted
from netq.bench.usage import Meter, facts
from netq.core import Communicator

CLIENTS = 16  # at a time

log = logging.getLogger("netq.bench")

Arrivals = queue.SimpleQueue[uuid.UUID | None]


def open_server(options: netq.CommunicatorOptions, kind: netq.Protocol, arrivals: Arrivals) -> Communicator:
    """Return a communicator that puts the id of each client that comes into `arrivals`."""
    events = netq.EventOptions(ini=arrivals.put)
    return netq.new(kind, netq.Purpose.SERVER, dataclasses.replace(options, events=events))


def serve(server: Communicator, arrivals: Arrivals, largest: int, clients: int | None = None) -> None:
    """Serve clients, with messages of `largest` bytes at most, until None arrives.

    With `clients` serve so many in all, and end when they have come and gone. One that was refused does not count.
    """
    places = threading.BoundedSemaphore(clients or CLIENTS)
    done = (lambda: None) if clients is None else _countdown(clients, functools.partial(arrivals.put, None))
    full = (
        f"it serves {CLIENTS} clients already"
        if clients is None
        else f"it serves no more clients: its --clients is {clients}"
    )
    while (peer := arrivals.get()) is not None:
        if not places.acquire(blocking=False):
            server.put(("refused", full), peer)
            continue
        attend = functools.partial(_attend, server, peer, largest, places, done, counts=clients is not None)
        threading.Thread(target=attend, name=f"bench-{peer}", daemon=True).start()


def _countdown(count: int, end: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls `end` when it is called for the last of `count` times, in any thread."""
    left = itertools.count(count - 1, -1)

    def leave() -> None:
        if next(left) == 0:
            end()

    return leave


def _endpoint(server: Communicator, peer: uuid.UUID) -> flow.Endpoint:
    def put(data: Any) -> netq.Delivery:
        return server.put(data, peer)

    return flow.Endpoint(put, functools.partial(server.get, peer))


def _attend(
    server: Communicator,
    peer: uuid.UUID,
    largest: int,
    places: threading.BoundedSemaphore,
    done: Callable[[], object],
    *,
    counts: bool,
) -> None:
    """Do what one client asks, one thing after the other. Then call `done` if it was served, or free its place.

    A place of one that `counts` is not freed when it was served.
    """
    end = _endpoint(server, peer)
    served = False
    try:
        end.put(("hello", protocol.VERSION, facts()))
        while True:
            _answer(end, largest)
            served = True
    except netq.Closed:  # it is gone, or this server closes
        return
    except (BenchError, netq.Unreadable, MemoryError) as error:
        why = str(error) or "no memory for such messages"
        log.warning("%s: this client is not served any more: %s", _address(server, peer), why)
        end.put(("refused", why))
    finally:
        if not (served and counts):
            places.release()
        if served:
            done()


def _address(server: Communicator, peer: uuid.UUID) -> str:
    """Where the client is; its id if it is gone."""
    figures = server.statistics().get(peer)
    return str(peer) if figures is None else figures.address


def _answer(end: flow.Endpoint, largest: int) -> None:
    asked = end.get().data
    match asked:
        case ("transfer", *said):
            _transfer(end, *protocol.read_transfer(tuple(said), largest))
        case ("echo", int(size)):
            protocol.check_size(size, largest)
            protocol.check_memory(size, 1)
            _echo(end)
        case _:
            raise protocol.Unexpected(asked)


def _transfer(end: flow.Endpoint, direction: str, plan: Plan, delay: float) -> None:
    protocol.check_memory(plan.largest, 2 if direction == "both" else 1)
    made = iter(()) if direction == "up" else flow.messages(plan)
    meter = Meter()
    end.put(("ready",))
    protocol.hear(end.get, "go")
    counted, sender = Counted(0, 0), flow.slowed(end, delay)
    if direction == "up":
        counted = flow.receive(end, plan.count, flow.show_nothing)
    elif direction == "down":
        flow.send(sender, plan, made, flow.show_nothing)
    else:
        counted = flow.exchange(sender, plan, made, flow.show_nothing)
    end.put(("done", *counted, *meter.read()))


def _echo(end: flow.Endpoint) -> None:
    meter = Meter()
    end.put(("ready",))
    counted, last = flow.echo(end)
    if last != ("end",):
        raise protocol.Unexpected(last)
    end.put(("done", *counted, *meter.read()))
