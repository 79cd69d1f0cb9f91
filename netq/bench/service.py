"""The server's side: each client has a thread, which does what the client asks until it disconnects.

The server greets each client with "hello". What a client may ask is bounded (protocol.py, plan.py, and `largest`). A
client that breaks the protocol is told so, and ignored from then on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import queue
import threading
import uuid
from typing import Any

import netq
from netq.bench import protocol, streaming
from netq.bench.plan import LARGEST, Plan
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


def serve(server: Communicator, arrivals: Arrivals, largest: int, *, once: bool = False) -> None:
    """Serve clients, with messages of `largest` bytes at most, until None arrives.

    With `once`: serve one client, and end when it has gone. A client that was refused does not count.
    """
    free = threading.BoundedSemaphore(1 if once else CLIENTS)
    full = "it serves one client, and has one" if once else f"it serves {CLIENTS} clients already"

    def run(peer: uuid.UUID) -> None:
        served = False
        try:
            served = _serve_client(server, peer, largest)
        finally:
            if served and once:
                arrivals.put(None)
            else:
                free.release()

    while (peer := _next(arrivals)) is not None:
        if free.acquire(blocking=False):
            threading.Thread(target=run, args=(peer,), name=f"bench-{peer}", daemon=True).start()
        else:
            server.put(("refused", full), peer).add_done_callback(_may_fail)


def _next(arrivals: Arrivals) -> uuid.UUID | None:
    """Wait for an arrival, a second at a time: a signal just before a wait without end would be seen at its end."""
    while True:
        with contextlib.suppress(queue.Empty):
            return arrivals.get(timeout=1.0)


def _may_fail(answer: object) -> None:
    """Look at an answer that may fail, as its client may have gone. Without a look the log would say so."""


def _endpoint(server: Communicator, peer: uuid.UUID) -> streaming.Endpoint:
    def put(data: Any) -> netq.Delivery:
        return server.put(data, peer)

    return streaming.Endpoint(put, functools.partial(server.get, peer))


def _serve_client(server: Communicator, peer: uuid.UUID, largest: int) -> bool:
    """Do what one client asks, one request after the other, until it leaves. Return whether a request was served."""
    end = _endpoint(server, peer)
    served = False
    try:
        end.put(("hello", protocol.VERSION, facts())).add_done_callback(_may_fail)
        while True:
            _serve_request(end, largest)
            served = True
    except netq.Closed:  # the client has gone, or this server closes
        return served
    except (BenchError, netq.Unreadable, MemoryError) as error:
        why = str(error) or "no memory for such messages"
        log.warning("%s: this client is not served any more: %s", _address(server, peer), why)
        end.put(("refused", why)).add_done_callback(_may_fail)
    return served


def _address(server: Communicator, peer: uuid.UUID) -> str:
    """Return the client's address; its id if it has gone."""
    figures = server.statistics().get(peer)
    return str(peer) if figures is None else figures.address


def _serve_request(end: streaming.Endpoint, largest: int) -> None:
    request = end.get().data
    match request:
        case ("transfer", *fields):
            _transfer(end, *protocol.read_transfer(tuple(fields), largest))
        case ("echo", int(size)) if size <= LARGEST:
            protocol.check_size(size, largest)
            protocol.check_memory(size, 1)
            _echo(end)
        case _:
            raise protocol.Unexpected(request)


def _transfer(end: streaming.Endpoint, direction: str, plan: Plan) -> None:
    protocol.check_memory(plan.largest, 2 if direction == "both" else 1)
    made = iter(()) if direction == "up" else streaming.messages(plan)
    meter = Meter()
    end.put(("ready",))
    protocol.expect(end.get, "go")
    counted = Counted(0, 0)
    if direction == "up":
        counted = streaming.receive(end, plan.count)
    elif direction == "down":
        streaming.send(end, made)
    else:
        counted = streaming.exchange(end, plan, made)
    end.put(("done", *counted, *meter.read()))


def _echo(end: streaming.Endpoint) -> None:
    meter = Meter()
    end.put(("ready",))
    counted, last = streaming.echo(end)
    if last != ("end",):
        raise protocol.Unexpected(last)
    end.put(("done", *counted, *meter.read()))
