"""SIGKILL of a client while it sends, and of a server while it receives; and all the ways in which a process ends.

The case "`kill -9` of a client in mid-send" of docs/explanation/reliability.md; and clients that find the
successor of a killed server.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from pickle import PickleBuffer
from typing import TYPE_CHECKING, BinaryIO

import pytest

import netq.exchange
from netq import Closed, NetworkLocation, Purpose
from netq.testing.fixtures import LIMIT, Communicators
from netq.testing.proxy import Proxy
from tests.programs.child import Child, Children
from tests.wires import ALL, PROXIED, Wire, on

if TYPE_CHECKING:
    from tests.faults.conftest import Figure

Proxies = Callable[[NetworkLocation], Proxy]

MIB = 1024**2


# 8: a client is killed while it sends


SIZE = 32 * MIB  # bytes of the large message
SLACK = {"grpc": 32 * MIB}  # without a kill, a gRPC server grows by 25 MiB more than its message
OFFSETS = (1, 23, 100_000, SIZE // 2 + 1, SIZE - 1)
Killer = Callable[[Child], bool]


class KilledSenders:
    """A server that reports its messages and its memory, and clients that are killed while they send."""

    def __init__(self, communicators: Communicators, children: Children, wire: Wire) -> None:
        self._communicators = communicators
        self._children = children
        self._wire = wire
        self._whole = bytearray(os.urandom(SIZE))
        self._resident: list[int] = []
        at_once = {"takeover_grace": 0.0}  # a successor need not wait until its predecessor is surely dead
        self._server = children.start("ledger", wire, Purpose.SERVER, connection=at_once)
        self.netloc = NetworkLocation(*self._server.receive()["netloc"])

    def play(self, netloc: NetworkLocation, kill: Killer) -> None:
        """Kill a sender within its large message. Its successor's message arrives, and no part of its own."""
        id = uuid.uuid4()
        sender = self._children.start("sender", self._wire, Purpose.CLIENT, netloc, id=id, size=SIZE)
        reports = [self._server.receive()]
        assert sender.receive() == {"ready": True}
        while not kill(sender):  # the sender was faster than the kill: try again
            assert self._server.receive()["data"][0] == SIZE
            assert sender.receive() == {"ready": True}
        successor = self._communicators.client(self.netloc, id=id)
        successor.put("hello").result(LIMIT)
        successor.put(PickleBuffer(self._whole)).result(LIMIT)
        reports += [self._server.receive(), self._server.receive()]
        assert [fact["peer"] for fact in reports] == [str(id)] * 3
        assert [fact["data"] for fact in reports] == ["whole", "hello", [SIZE, zlib.crc32(self._whole)]]
        self._resident += [fact["resident"] for fact in reports]
        self._communicators.release(successor)
        assert successor.close(LIMIT) == 0

    def check(self, figure: Figure) -> None:
        """The successor's message has reused the memory of the partial one: there are never two of them."""
        growth = max(self._resident) - self._resident[0]
        limit = SIZE + SLACK.get(self._wire.kind, 20 * MIB)
        figure(
            "8 client killed",
            f"{self._wire.kind}: no part delivered; with a message of 32 MiB after each kill the server has grown by "
            f"{growth / MIB:.0f} MiB, limit {limit / MIB:.0f} MiB",
        )
        assert growth < limit


@pytest.mark.slow
@on(*PROXIED)
def test_killed_sender_delivers_no_part_and_costs_no_memory(
    communicators: Communicators, children: Children, proxies: Proxies, wire: Wire, figure: Figure
) -> None:
    senders = KilledSenders(communicators, children, wire)
    proxy = proxies(senders.netloc)
    for offset in OFFSETS if wire.kind == "tcp" else OFFSETS[1::2]:
        senders.play(proxy.netloc, functools.partial(kill_after_passing, proxy, offset))
    senders.check(figure)


def kill_after_passing(proxy: Proxy, offset: int, program: Child) -> bool:
    """Kill a sender once `offset` bytes of its large message have passed the proxy."""
    before = proxy.passed
    proxy.hold(after=offset)
    program.send("go")
    proxy.wait(before + offset, LIMIT)
    program.kill()
    assert proxy.passed == before + offset
    proxy.cut()
    proxy.release()
    return True


@pytest.mark.slow
@on("shm")
def test_sender_killed_while_it_writes_to_the_ring(
    communicators: Communicators, children: Children, wire: Wire, figure: Figure
) -> None:
    """There is no proxy here to count bytes, but the ring has their number."""
    senders = KilledSenders(communicators, children, wire)
    for offset in OFFSETS[:-1]:  # the last one is too late to catch
        senders.play(senders.netloc, functools.partial(kill_after_writing, offset))
    senders.check(figure)


def kill_after_writing(offset: int, program: Child) -> bool:
    """Kill a sender that has written at least `offset` bytes, and not all; return whether it was caught in time."""
    with open_rings(program) as rings:
        before = written(rings)
        program.send("go")
        while written(rings) < before + offset:
            pass  # busy waiting: a message takes some ten milliseconds
        program.stop()
        caught = written(rings) < before + SIZE
    if caught:
        program.kill()
    else:
        program.signal(signal.SIGCONT)
    return caught


def open_rings(program: Child) -> BinaryIO:
    """Open the memory of a client's rings."""
    descriptors = Path(f"/proc/{program.process.pid}/fd")
    (rings,) = [path for path in descriptors.iterdir() if "memfd:netq" in os.readlink(path)]
    return rings.open("rb")


def written(rings: BinaryIO) -> int:
    """Bytes that a client has written since the beginning: the first number of the first ring."""
    return int.from_bytes(os.pread(rings.fileno(), 8, 0), sys.byteorder)


# 9: the server is killed while clients send


@pytest.mark.slow
@on(*ALL)
def test_clients_of_a_killed_server_find_its_successor(
    communicators: Communicators, children: Children, wire: Wire, figure: Figure
) -> None:
    """Each client has an acknowledged message, one in transit and one that is unsent."""
    first = children.start("ledger", wire, Purpose.SERVER)
    netloc = NetworkLocation(*first.receive()["netloc"])
    clients = [communicators.client(netloc, retry_min=0.1, retry_max=5.0) for _ in range(10)]
    ids = {str(client.id) for client in clients}
    acknowledged = [client.put("acknowledged") for client in clients]
    assert taken(first, len(clients), "acknowledged") == ids
    for future in acknowledged:
        future.result(LIMIT)
    first.signal(signal.SIGSTOP)  # from here on, nothing is acknowledged
    large = bytearray(32 * MIB)
    in_transit = [client.put(large) for client in clients]
    unsent = [client.put("unsent") for client in clients]
    for client in clients:
        for _ in range(2):  # the second call runs after a flush that was queued during the first
            client.statistics()
    start = time.monotonic()
    first.kill()
    with pytest.raises(EOFError):  # the server took nothing else
        first.receive()
    second = children.start("ledger", wire, Purpose.SERVER, netloc)
    assert second.receive()["netloc"] == list(netloc)
    listening = time.monotonic() - start
    assert taken(second, len(clients), "unsent") == ids
    back = time.monotonic() - start
    for future in in_transit:
        with pytest.raises(Closed):
            future.result(LIMIT)
    for future in unsent:
        future.result(LIMIT)
    for client in clients:
        communicators.release(client)
        assert client.close(LIMIT) == 1, "the one that was in transit"
    second.signal(signal.SIGTERM)
    second.finish()
    assert back < 10.0
    figure(
        "9 server killed",
        f"{wire.kind}: the successor listens after {listening:.2f} s, the last of 10 is back after {back:.2f} s, "
        "limit 10 s (retry_max 5 s)",
    )


def taken(server: Child, count: int, data: str) -> set[str]:
    """Return the peers of the next reported messages, which must all be `data`."""
    facts = [server.receive() for _ in range(count)]
    assert [fact["data"] for fact in facts] == [data] * count
    return {fact["peer"] for fact in facts}


# the end of a process without `close`


WAYS = (
    *(f"main {what}" for what in ("put", "put_in_thread", "put_in_pool_of_threads", "put_at_exit", "put_and_lose")),
    "main put_all_at_exit",
    *(f"fork {what}" for what in ("put", "put_and_exit", "put_and_raise", "put_in_thread", "put_in_late_thread")),
    *(f"fork {what}" for what in ("put_in_pool_of_threads", "put_in_daemon", "put_in_asyncio", "put_in_trio")),
    *(f"fork {what}" for what in ("put_and_lose", "put_in_child", "pool", "executor")),
    *(f"forkserver {what}" for what in ("put", "put_in_late_thread", "pool", "executor")),
    *(f"spawn {what}" for what in ("put", "put_in_thread", "put_at_exit", "pool", "executor")),
    "by-hand put",
)
MESSAGES = 200


@pytest.mark.slow
@on("tcp")  # what ends is the process, whatever its transport
@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_ending_a_process_delivers(
    communicators: Communicators, children: Children, wire: Wire, way: str
) -> None:
    server = communicators.server()
    program = children.start("ways", wire, Purpose.CLIENT, server.netloc, way=way, count=MESSAGES)
    numbers = {server.get(timeout=LIMIT).data[0] for _ in range(MESSAGES)}
    assert numbers == set(range(MESSAGES))
    program.process.wait(LIMIT)
    assert ("on purpose" in program.errors()) == ("raise" in way)


@pytest.mark.slow
@on("tcp")
@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_child_that_publishes_and_ends_delivers(children: Children, wire: Wire, start: str) -> None:
    here = netq.CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))
    with (
        netq.exchange.Exchange(here) as exchange,
        netq.exchange.Client(netq.CommunicatorOptions(netloc=exchange.netloc)) as client,
    ):
        client.subscribe("numbers").result(LIMIT)
        program = children.start("ways", wire, Purpose.CLIENT, exchange.netloc, way=f"{start} publish", count=MESSAGES)
        assert [client.get(LIMIT).data[0] for _ in range(MESSAGES)] == list(range(MESSAGES))
        program.finish()
