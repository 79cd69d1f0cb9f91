"""A process that forks, and one that ends with open communicators: what its peer sees, and the state of the copy.

The cases "the end of the program with unsent data" and "SIGTERM" of docs/explanation/reliability.md, and a fork, after
which the parent continues.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from signal import SIGTERM

import pytest

from netq import Closed, NetworkLocation, Purpose
from netq.core import Communicator
from netq.testing.fixtures import LIMIT, Communicators
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.faults.conftest import FULL, Figure
from tests.programs.child import Child, Children
from tests.wires import ALL, PROXIED, Wire, on

pytestmark = pytest.mark.slow

Proxies = Callable[[NetworkLocation], Proxy]
COUNT = 100  # messages of 100 kB: more than sockets hold
SLACK = 1.0 if FULL else 5.0  # seconds for steps that take no time; what waits by mistake waits `linger`, 10 s
SEPARABLE = tuple(kind for kind in ALL if kind != "grpc")  # a fork cannot close the sockets inside the grpc library


def check_child(facts: dict[str, object], wire: Wire) -> None:
    """The copy raises in every call, and keeps no socket open. gRPC's sockets stay, and gRPC cannot be used again."""
    refusals = facts["refusals"]
    assert isinstance(refusals, dict)
    for name in ("put", "get", "statistics"):
        assert refusals[name].startswith(f"{name}(): ")
        assert "make a new one after the fork" in refusals[name]
    assert facts["closed"] == 0
    if wire.kind == "grpc":
        assert "fork before the first gRPC communicator is made" in refusals["new"]
    else:
        assert facts["sockets"] == []


@on(*ALL)
def test_fork_of_a_client_keeps_its_session(
    communicators: Communicators, children: Children, wire: Wire, log: LogRecorder, figure: Figure
) -> None:
    server, id = communicators.server(), uuid.uuid4()
    program = children.start("forker", wire, Purpose.CLIENT, server.netloc, id=id, outlived=False)
    program.receive()
    assert server.get(timeout=LIMIT) == (id, "hello")
    address = server.statistics()[id].address
    server.put("before", id)
    check_child(program.receive(), wire)
    ended = program.receive()
    assert ended["status"] == 0
    assert ended["seconds"] < SLACK
    server.put("after", id)
    assert [server.get(id, timeout=LIMIT).data for _ in range(2)] == ["before", "after"]
    assert server.statistics()[id].address == address, "it had to connect again"
    server.close()
    program.finish()
    assert not log.having(f"{id}: lost")
    figure("26 fork", f"{wire.kind}: a client's child ended after {ended['seconds']:.3f} s, limit {SLACK:g} s")


@on(*ALL)
def test_fork_of_a_server_keeps_its_sessions(
    communicators: Communicators, children: Children, wire: Wire, log: LogRecorder, figure: Figure
) -> None:
    program = children.start("forker", wire, Purpose.SERVER, outlived=False)
    client = communicators.client(NetworkLocation(*program.receive()["netloc"]))
    client.put("before")
    assert client.get(timeout=LIMIT).data == "before"
    check_child(program.receive(), wire)
    ended = program.receive()
    assert ended["status"] == 0
    assert ended["seconds"] < SLACK
    client.put("after")
    assert client.get(timeout=LIMIT).data == "after"
    assert len(log.having("connected")) == 1, "it had to connect again"
    client.put("enough")
    client.close(LIMIT)  # the server waits for its client
    program.finish()
    figure("26 fork", f"{wire.kind}: a server's child ended after {ended['seconds']:.3f} s, limit {SLACK:g} s")


@on(*SEPARABLE)
def test_server_listens_again_while_a_fork_lives(communicators: Communicators, children: Children, wire: Wire) -> None:
    program = children.start("forker", wire, Purpose.SERVER, outlived=True)
    netloc = NetworkLocation(*program.receive()["netloc"])
    first = communicators.client(netloc)
    first.put("before")
    assert first.get(timeout=LIMIT).data == "before"
    check_child(program.receive(), wire)
    with pytest.raises(Closed):  # the child's copy does not keep the link open
        first.get(timeout=LIMIT)
    first.close(LIMIT)
    assert program.receive()["netloc"] == list(netloc)
    second = communicators.client(netloc)
    second.put("after")
    assert second.get(timeout=LIMIT).data == "after"
    second.close()
    assert program.receive()["status"] == 0
    program.finish()


@on(*ALL)
def test_process_that_ends_without_close_delivers(
    communicators: Communicators, children: Children, wire: Wire, figure: Figure
) -> None:
    server, id = communicators.server(), uuid.uuid4()
    program = children.start("forgetful", wire, Purpose.CLIENT, server.netloc, id=id, count=COUNT)
    for number in range(COUNT):
        assert server.get(timeout=LIMIT).data[0] == number
    with pytest.raises(Closed):
        server.get(id, timeout=LIMIT)
    ends = program.receive()["ends"]
    program.finish()
    assert program.errors() == ""
    seconds = time.monotonic() - ends
    figure(
        "26 exit with unsent data", f"{wire.kind}: {COUNT} of {COUNT} delivered, ended {seconds:.2f} s after its end"
    )


@on(*ALL)
def test_process_that_ends_without_its_server_waits_linger(
    communicators: Communicators, children: Children, wire: Wire, figure: Figure
) -> None:
    linger = 1.5
    connection = {"linger": linger}
    program = children.start(
        "forgetful", wire, Purpose.CLIENT, communicators.unused_address(), connection=connection, count=COUNT
    )
    ends = program.receive()["ends"]
    program.finish()
    seconds = time.monotonic() - ends
    assert linger <= seconds < linger + SLACK
    assert f"closing waits up to {linger:g} s (linger) for it to return" in program.errors()
    figure("26 exit without a server", f"{wire.kind}: ended after {seconds:.2f} s, limit {linger + SLACK:g} s")


@on(*PROXIED)
def test_sigterm_drains(
    communicators: Communicators, children: Children, proxies: Proxies, wire: Wire, figure: Figure
) -> None:
    """The proxy holds the bytes: when the program gets SIGTERM, most messages have not arrived."""
    server, id = communicators.server(), uuid.uuid4()
    proxy = proxies(server.netloc)
    program = children.start("drained", wire, Purpose.CLIENT, proxy.netloc, id=id, count=COUNT)
    assert program.receive() == {"ready": True}
    assert server.get(timeout=LIMIT) == (id, "hello")
    proxy.hold(after=250_000)
    stopped = put_and_stop(program)
    proxy.release()
    check_drained(server, id, program)
    figure(
        "28 SIGTERM drains",
        f"{wire.kind}: {COUNT} of {COUNT} delivered, ended {time.monotonic() - stopped:.2f} s after it",
    )


@on(*ALL)
def test_sigterm_drains_messages_without_credit(
    communicators: Communicators, children: Children, wire: Wire, figure: Figure
) -> None:
    server, id = communicators.server(window=250_000), uuid.uuid4()
    program = children.start("drained", wire, Purpose.CLIENT, server.netloc, id=id, count=COUNT)
    assert program.receive() == {"ready": True}
    assert server.get(timeout=LIMIT) == (id, "hello")
    stopped = put_and_stop(program)
    assert server.statistics()[id].messages_in < COUNT // 2, "most has arrived before: nothing is tried"
    check_drained(server, id, program)
    figure(
        "28 SIGTERM, a small window",
        f"{wire.kind}: {COUNT} of {COUNT} delivered, ended {time.monotonic() - stopped:.2f} s after it",
    )


def put_and_stop(program: Child) -> float:
    """Let the program put all messages, and send SIGTERM; return the time at which it handled that."""
    program.send("go")
    assert program.receive() == {"put": True}
    program.signal(SIGTERM)
    return float(program.receive()["at"])


def check_drained(server: Communicator, id: uuid.UUID, program: Child) -> None:
    """All messages arrive, then the end of the session, within the time that the server has to read."""
    for number in range(COUNT):
        assert server.get(timeout=LIMIT).data[0] == number
    with pytest.raises(Closed):
        server.get(id, timeout=LIMIT)
    program.finish()
