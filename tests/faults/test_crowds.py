"""Many clients of one server: their costs while idle, their return after a cut of all links, and too few descriptors.

The cases "1,000 idle clients", "500 clients cut at one instant" and "64 descriptors, 100 clients" of
docs/explanation/reliability.md, with TCP and, fewer of them, TLS. With a broker, the links are the broker's; gRPC has
its own test with 200 clients; shared memory serves a few processes of one machine. In the first two cases the server is
one process and all clients are another, so that each has its own figures.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from queue import Empty
from typing import TYPE_CHECKING, NamedTuple

import pytest

from netq import NetworkLocation, Purpose
from netq.core import Communicator
from netq.testing.fixtures import LIMIT, Communicators
from netq.testing.proxy import Proxy
from tests.faults.conftest import FULL, Figure
from tests.programs.child import Child, Children, Facts

if TYPE_CHECKING:
    from tests.wires import Wire

Proxies = Callable[[NetworkLocation], Proxy]

KIB = 1024
STARTUP = 60.0  # seconds for a thousand handshakes on a busy machine
DEFAULTS = {"retry_min": 0.1, "retry_max": 30.0}


# 5: many idle clients

IDLE_CLIENTS = {"tcp": 1000, "tls": 250} if FULL else {"tcp": 200, "tls": 100}  # handshakes of TLS take long
IDLE = 10.0  # seconds: each end of each link sends its heartbeat in them, or is asked for one
MOST_AT_SERVER = 150 * KIB  # bytes per client
MOST_CPU = 0.10  # of a core, for a thousand


class Hall(NamedTuple):
    """A server and its clients, and the costs of both before the clients connected and after."""

    server: Child
    crowd: Child
    clients: int
    before: tuple[Facts, Facts]
    after: tuple[Facts, Facts]

    def growth(self, who: int) -> float:
        """Return the bytes per client, at the server (0) or at the clients (1)."""
        return float(self.after[who]["private"] - self.before[who]["private"]) / self.clients

    def end(self) -> None:
        """End the clients."""
        for child in (self.crowd, self.server):
            child.send("")
            child.finish()


def fill(children: Children, wire: Wire) -> Hall:
    """Start a server and its clients, and wait until all have been answered."""
    server = children.start("audience", wire, Purpose.SERVER)
    netloc, clients = NetworkLocation(*server.receive()["netloc"]), IDLE_CLIENTS[wire.kind]
    warm_up(children, wire, netloc)
    before = server.ask("cost")
    crowd = children.start("crowd", wire, Purpose.CLIENT, netloc, count=clients)
    empty, filled = crowd.receive(), crowd.receive(STARTUP)
    assert filled["answers"] == ["hello"]
    after = server.ask("cost")
    assert after["began"] - before["began"] == clients
    return Hall(server, crowd, clients, (before, empty), (after, filled))


def warm_up(children: Children, wire: Wire, netloc: NetworkLocation) -> None:
    """Connect and close one client first: it causes what is loaded and made only once."""
    visitor = children.start("crowd", wire, Purpose.CLIENT, netloc, count=1)
    visitor.receive()
    assert visitor.receive()["answers"] == ["hello"]
    visitor.send("")
    visitor.finish()


@pytest.mark.slow
def test_many_idle_clients_cost_little(wires: dict[str, Wire], children: Children, figure: Figure) -> None:
    halls = {kind: fill(children, wire) for kind, wire in wires.items()}
    start = time.monotonic()
    used = {kind: hall.server.ask("cpu")["cpu"] for kind, hall in halls.items()}
    for hall in halls.values():
        with pytest.raises(Empty):  # there is nothing to report
            hall.server.receive(timeout=max(start + IDLE - time.monotonic(), 0.0))
    seconds = time.monotonic() - start
    shares = {  # as if there were a thousand
        kind: (hall.server.ask("cpu")["cpu"] - used[kind]) / seconds * 1000 / hall.clients
        for kind, hall in halls.items()
    }
    for kind, hall in halls.items():
        hall.end()
        figure(
            "5 idle clients",
            f"{kind}, {hall.clients}: {hall.growth(0) / KIB:.0f} KiB each at the server, limit 150; "
            f"{hall.growth(1) / KIB:.0f} KiB each at the clients; "
            f"the server takes {100 * shares[kind]:.1f} % of a core for a thousand, goal 10 %",
        )
    assert {kind: hall.growth(0) for kind, hall in halls.items() if hall.growth(0) > MOST_AT_SERVER} == {}
    assert max(shares.values()) < 2 * MOST_CPU  # twice the goal, for a busy machine


# 6: all are cut at one instant

CUT_CLIENTS = {"tcp": 500, "tls": 100} if FULL else {"tcp": 100, "tls": 30}
BACK = 60.0  # seconds
SPAN = 0.1  # seconds in which not all clients should connect


@pytest.mark.slow
def test_all_clients_reconnect_after_a_cut_of_all(
    children: Children, proxies: Proxies, wire: Wire, figure: Figure
) -> None:
    clients = CUT_CLIENTS[wire.kind]
    server = children.start("audience", wire, Purpose.SERVER, connection=DEFAULTS)
    proxy = proxies(NetworkLocation(*server.receive()["netloc"]))
    crowd = children.start("crowd", wire, Purpose.CLIENT, proxy.netloc, connection=DEFAULTS, count=clients)
    crowd.receive()
    assert crowd.receive(STARTUP)["answers"] == ["hello"]
    assert crowd.ask("watch") == {"watching": True}
    start = time.monotonic()
    proxy.cut()
    crowd.send("returns")
    times = [when - start for when in crowd.receive(BACK + STARTUP)["returns"]]
    assert len(times) == clients
    server.send("reach all")
    assert server.receive(STARTUP) == {"reached": clients}
    assert crowd.ask("reached") == {"reached": clients}
    assert server.ask("cost")["began"] == clients, "a session was not resumed but begun anew"
    figure(
        "6 clients cut",
        f"{wire.kind}, {clients}: back after {times[0]:.2f} s the first, {times[clients // 2]:.2f} s the median, "
        f"{times[-1]:.2f} s the last, limit {BACK:g} s; at most {most_within(times, SPAN)} within 100 ms",
    )
    assert times[-1] < BACK
    for child in (crowd, server):
        child.send("")
        child.finish()


def most_within(times: list[float], span: float) -> int:
    """Return the largest number of these sorted times within any `span`."""
    return max(sum(begin <= when < begin + span for when in times) for begin in times)


# 24: a server has few descriptors

CROWD = 100
CROWDED = 1.5  # seconds that the server stays full
PAUSE = 1.0  # seconds between its attempts to accept


@pytest.mark.slow
def test_server_with_64_descriptors_serves_100_clients(
    communicators: Communicators, children: Children, wire: Wire, figure: Figure
) -> None:
    program = children.start("exhausted", wire, Purpose.SERVER)
    netloc = NetworkLocation(*program.receive()["netloc"])
    start = time.monotonic()
    waiting = {str(client.id): client for client in [communicators.client(netloc) for _ in range(CROWD)]}
    for id, client in waiting.items():
        client.put(id)
    served, lines = full(program)
    fitted = len(served)
    for id in served:
        leave(communicators, waiting.pop(id), id)
    while waiting:
        facts = program.receive()
        if "log" in facts:
            lines.append(facts["log"])
        else:
            leave(communicators, waiting.pop(facts["served"]), facts["served"])
    seconds = time.monotonic() - start
    program.signal(signal.SIGTERM)
    program.finish()
    assert 40 <= fitted < 64
    assert len(lines) <= seconds / PAUSE + 2, lines
    figure(
        "24 RLIMIT_NOFILE 64",
        f"{wire.kind}: {fitted} of {CROWD} at once, all after {seconds:.1f} s, {len(lines)} lines in the log",
    )


def full(program: Child) -> tuple[list[str], list[str]]:
    """Return the ids that the server has answered and its log lines, CROWDED seconds after all are connected."""
    served: list[str] = []
    lines: list[str] = []
    deadline = time.monotonic() + LIMIT
    with contextlib.suppress(Empty):
        while True:
            facts = program.receive(timeout=max(deadline - time.monotonic(), 0.0))
            if "log" in facts:
                deadline = deadline if lines else time.monotonic() + CROWDED
                lines.append(facts["log"])
            else:
                served.append(facts["served"])
    assert "no connection can be accepted for now" in lines[0]
    return served, lines


def leave(communicators: Communicators, client: Communicator, id: str) -> None:
    """Get the answer, and close."""
    assert client.get(timeout=LIMIT).data == id
    communicators.release(client)
    assert client.close(LIMIT) == 0
