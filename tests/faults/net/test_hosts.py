"""The hosts and cables of tests/faults/hosts.py: each fault has its effect, and nothing is left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.faults import hosts
from tests.faults.hosts import Cable, Host

LIMIT = 10.0  # seconds
SILENCE = 0.2  # seconds in which a packet would arrive
HEADERS = 14 + 20 + 8  # bytes of Ethernet, IPv4 and UDP


def namespace() -> str:
    return os.readlink("/proc/thread-self/ns/net")


def open_at(host: Host) -> socket.socket:
    with host.inside():
        sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.bind((host.address, 0))
    sock.settimeout(LIMIT)
    return sock


@pytest.fixture
def ends(cable: Cable) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A datagram socket on each host, connected to the other."""
    with open_at(cable.client) as near, open_at(cable.server) as far:
        near.connect(far.getsockname())
        far.connect(near.getsockname())
        yield near, far


@pytest.fixture
def link(cable: Cable) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP connection between the hosts."""
    with ExitStack() as stack:
        with cable.server.inside():
            listener = stack.enter_context(socket.create_server((cable.server.address, 0)))
        with cable.client.inside():
            near = stack.enter_context(socket.create_connection(listener.getsockname(), LIMIT))
        far = stack.enter_context(listener.accept()[0])
        far.settimeout(LIMIT)
        yield near, far


def passes(source: socket.socket, target: socket.socket) -> bool:
    target.settimeout(LIMIT)
    source.send(b"packet")
    return target.recv(100) == b"packet"


def is_lost(source: socket.socket, target: socket.socket) -> bool:
    source.send(b"packet")
    return arrived(target) == 0


def arrived(sock: socket.socket) -> int:
    count = 0
    sock.settimeout(SILENCE)
    while True:
        try:
            sock.recv(100)
        except TimeoutError:
            return count
        count += 1


def test_inside_moves_one_thread_within_the_block(cable: Cable) -> None:
    home = namespace()
    with cable.server.inside():
        there = namespace()
        with cable.client.inside():
            assert len({home, there, namespace()}) == 3
        assert namespace() == there
    with pytest.raises(ZeroDivisionError), cable.server.inside():
        _ = 1 / 0
    assert namespace() == home


def test_hosts_reach_only_each_other(cable: Cable, ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    assert passes(near, far)
    assert passes(far, near)
    with cable.client.inside(), socket.socket() as sock, pytest.raises(OSError, match="unreachable"):
        sock.connect(("192.0.2.1", 9))


@pytest.mark.slow
def test_packets_are_lost_until_healed(cable: Cable, ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    cable.server.drop_input()
    assert is_lost(near, far)
    assert passes(far, near)
    cable.drop()
    assert is_lost(far, near)
    cable.heal()
    assert passes(near, far)
    assert passes(far, near)


@pytest.mark.slow
def test_latest_share_of_packets_is_lost(cable: Cable, ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    cable.server.drop_input(90)
    cable.server.drop_input(20)
    for _ in range(200):
        near.send(b"x")
    assert 120 < arrived(far) < 190, "five standard deviations of a fair lottery, and more"


def test_outgoing_bytes_are_counted_with_headers(cable: Cable, ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    assert passes(near, far)  # both hosts have resolved the other's address
    before = cable.client.bytes_sent
    near.send(bytes(1000))
    assert len(far.recv(2000)) == 1000
    assert cable.client.bytes_sent - before == 1000 + HEADERS


def test_packets_fit_the_mtu_of_the_cable(cable: Cable, link: tuple[socket.socket, socket.socket]) -> None:
    """Otherwise one drop would lose 64 KiB, and the rate would count such packets."""
    near, far = link
    cable.server.drop_input(5)
    near.sendall(bytes(100_000))
    received = 0
    while received < 100_000:
        received += (count := len(far.recv(100_000)))
        assert count > 0
    assert cable.client.bytes_sent > 100_000 * (1514 / 1448), "each packet has headers of its own"


@pytest.mark.slow
def test_rate_limits_outgoing_packets(cable: Cable, link: tuple[socket.socket, socket.socket]) -> None:
    near, far = link
    cable.client.rate(1000)
    start = time.monotonic()
    near.sendall(bytes(60_000))
    received = 0
    while received < 60_000:
        received += len(far.recv(100_000))
    assert time.monotonic() - start >= 8 * (60_000 - 20_000) / 1_000_000, "all but a burst of some 16 KiB"


def test_unplugged_cable_loses_packets(cable: Cable, ends: tuple[socket.socket, socket.socket]) -> None:
    near, far = ends
    cable.client.link("down")
    with pytest.raises(OSError, match="unreachable"):
        near.send(b"x")
    cable.client.link("up")
    assert passes(near, far)


@pytest.mark.parametrize("end", [0, 1])
def test_reset_reaches_both_ends(cable: Cable, link: tuple[socket.socket, socket.socket], end: int) -> None:
    cable.ends[end].reset_connections()
    with pytest.raises(ConnectionAbortedError):
        link[end].recv(1)
    with pytest.raises(ConnectionResetError):
        link[1 - end].recv(1)


def test_cable_that_fails_half_way_leaves_nothing(possible: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "OFFLOADS", ("no such thing",))
    with pytest.raises(RuntimeError, match="no such thing"), Cable(1):
        pass
    assert hosts.left(os.getpid()) == []


def test_sweep_removes_only_hosts_of_dead_processes(cable: Cable) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait(LIMIT)
    hosts.run("ip", "netns", "add", f"netq-{process.pid}-0")
    assert hosts.left(process.pid) == [f"netq-{process.pid}-0"]
    hosts.sweep()
    assert hosts.left(process.pid) == []
    assert len(hosts.left(os.getpid())) == 2


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda patch: patch.setattr(hosts, "TOOLS", ("ip", "no-such-tool")), "not installed: no-such-tool"),
        (lambda patch: patch.setattr(os, "geteuid", lambda: 1000), "root is needed"),
        (lambda patch: patch.setattr(hosts, "OFFLOADS", ("no such thing",)), "no such thing"),
    ],
)
def test_missing_tools_are_named(
    possible: None, monkeypatch: pytest.MonkeyPatch, broken: Callable[[pytest.MonkeyPatch], None], reason: str
) -> None:
    assert hosts.missing() == ""
    broken(monkeypatch)
    assert reason in hosts.missing()
