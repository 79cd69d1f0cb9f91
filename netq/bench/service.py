"""The server's side: each client has a thread, which does what the client asks until it disconnects.

The server greets each client with "hello". What a client may ask is bounded (protocol.py, plan.py, and `largest`). A
client that breaks the protocol is told so, and ignored from then on.
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
from netq.bench import protocol, streaming
from netq.bench.plan import Plan
from netq.bench.protocol import BenchError, Counted
from netq.bench.resources import Meter, facts
from netq.core import Communicator

CLIENTS = 16  # that are served at a time

log = logging.getLogger("netq.bench")

Arrivals = queue.SimpleQueue[uuid.UUID | None]


def open_server(options: netq.CommunicatorOptions, kind: netq.Protocol, arrivals: Arrivals) -> Communicator:
    """Return a communicator that puts the id of each new client into `arrivals`."""
    events = netq.EventOptions(ini=arrivals.put)
    return netq.new(kind, netq.Purpose.SERVER, dataclasses.replace(options, events=events))


def serve(server: Communicator, arrivals: Arrivals, largest: int, clients: int | None = None) -> None:
    """Serve clients, with messages of `largest` bytes at most, until None arrives.

    With `clients`: serve that many in all, and end when the last has gone. A client that was refused does not count.
    """
    free = threading.BoundedSemaphore(clients or CLIENTS)
    done = (lambda: None) if clients is None else _countdown(clients, functools.partial(arrivals.put, None))
    full = (
        f"it serves {CLIENTS} clients already"
        if clients is None
        else f"it serves no more clients: its --clients is {clients}"
    )
    while (peer := arrivals.get()) is not None:
        if not free.acquire(blocking=False):
            server.put(("refused", full), peer).add_done_callback(_may_fail)
            continue
        run = functools.partial(_serve_client, server, peer, largest, free, done, counts=clients is not None)
        threading.Thread(target=run, name=f"bench-{peer}", daemon=True).start()


def _may_fail(answer: object) -> None:
    """Look at an answer that may fail, as its client may have gone. Without a look the log would say so."""


def _countdown(count: int, end: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls `end` when it is called for the last of `count` times, in any thread."""
    remaining = itertools.count(count - 1, -1)

    def count_down() -> None:
        if next(remaining) == 0:
            end()

    return count_down


def _endpoint(server: Communicator, peer: uuid.UUID) -> streaming.Endpoint:
    def put(data: Any) -> netq.Delivery:
        return server.put(data, peer)

    return streaming.Endpoint(put, functools.partial(server.get, peer))


def _serve_client(
    server: Communicator,
    peer: uuid.UUID,
    largest: int,
    free: threading.BoundedSemaphore,
    done: Callable[[], object],
    *,
    counts: bool,
) -> None:
    """Do what one client asks, one request after the other. At the end, call `done` if a request was served.

    The client's place becomes free for another client, unless `counts` is set and a request was served.
    """
    end = _endpoint(server, peer)
    served = False
    try:
        end.put(("hello", protocol.VERSION, facts())).add_done_callback(_may_fail)
        while True:
            _serve_request(end, largest)
            served = True
    except netq.Closed:  # the client has gone, or this server closes
        return
    except (BenchError, netq.Unreadable, MemoryError) as error:
        why = str(error) or "no memory for such messages"
        log.warning("%s: this client is not served any more: %s", _address(server, peer), why)
        end.put(("refused", why)).add_done_callback(_may_fail)
    finally:
        if not (served and counts):
            free.release()
        if served:
            done()


def _address(server: Communicator, peer: uuid.UUID) -> str:
    """Return the client's address; its id if it has gone."""
    figures = server.statistics().get(peer)
    return str(peer) if figures is None else figures.address


def _serve_request(end: streaming.Endpoint, largest: int) -> None:
    request = end.get().data
    match request:
        case ("transfer", *fields):
            _transfer(end, *protocol.read_transfer(tuple(fields), largest))
        case ("echo", int(size)):
            protocol.check_size(size, largest)
            protocol.check_memory(size, 1)
            _echo(end)
        case _:
            raise protocol.Unexpected(request)


def _transfer(end: streaming.Endpoint, direction: str, plan: Plan, delay: float) -> None:
    protocol.check_memory(plan.largest, 2 if direction == "both" else 1)
    made = iter(()) if direction == "up" else streaming.messages(plan)
    meter = Meter()
    end.put(("ready",))
    protocol.expect(end.get, "go")
    counted, sender = Counted(0, 0), streaming.delayed(end, delay)
    if direction == "up":
        counted = streaming.receive(end, plan.count, streaming.show_nothing)
    elif direction == "down":
        streaming.send(sender, plan, made, streaming.show_nothing)
    else:
        counted = streaming.exchange(sender, plan, made, streaming.show_nothing)
    end.put(("done", *counted, *meter.read()))


def _echo(end: streaming.Endpoint) -> None:
    meter = Meter()
    end.put(("ready",))
    counted, last = streaming.echo(end)
    if last != ("end",):
        raise protocol.Unexpected(last)
    end.put(("done", *counted, *meter.read()))
