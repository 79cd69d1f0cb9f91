"""`kill -9` of a client in mid-send, and of a server in mid-stream.

Cases 8 and 9 of docs/explanation/reliability.md.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import time
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from netq import Closed, NetworkLocation, Purpose
from netq.testing.fixtures import LIMIT, Communicators
from netq.testing.proxy import Proxy
from tests.programs.child import Child, Children
from tests.wires import ALL, PROXIED, Wire, on

if TYPE_CHECKING:
    from tests.faults.conftest import Figure

Proxies = Callable[[NetworkLocation], Proxy]

MIB = 1024**2


# 8: a client is killed in mid-send


SIZE = 64 * MIB  # of the large message
SLACK = {"grpc": 36 * MIB}  # 89 MiB is what a server of grpc's grows by with messages of 64 MiB and no kill
OFFSETS = (1, 23, 100_000, SIZE // 2 + 1, SIZE - 1)
Killer = Callable[[Child], bool]


class Scene:
    """A server that writes down what it takes, and in how much memory; and clients that are killed as they send."""

    def __init__(self, communicators: Communicators, children: Children, wire: Wire) -> None:
        self._communicators = communicators
        self._children = children
        self._wire = wire
        self._whole = np.frombuffer(os.urandom(SIZE), np.uint8)
        self._resident: list[int] = []
        self._server = children.start("ledger", wire, Purpose.SERVER)
        self.netloc = NetworkLocation(*self._server.hear()["netloc"])

    def play(self, netloc: NetworkLocation, kill: Killer) -> None:
        """Kill a sender in the middle of its large message: its successor's comes, and no part of its own."""
        id = uuid.uuid4()
        sender = self._children.start("sender", self._wire, Purpose.CLIENT, netloc, id=id, size=SIZE)
        heard = [self._server.hear()]
        assert sender.hear() == {"ready": True}
        while not kill(sender):  # it was quicker than we, and may say more
            assert self._server.hear()["data"][0] == SIZE
            assert sender.hear() == {"ready": True}
        successor = self._communicators.client(self.netloc, id=id)
        successor.put("hello").result(LIMIT)
        successor.put(self._whole).result(LIMIT)
        heard += [self._server.hear(), self._server.hear()]
        assert [fact["peer"] for fact in heard] == [str(id)] * 3
        assert [fact["data"] for fact in heard] == ["whole", "hello", [SIZE, zlib.crc32(self._whole.data)]]
        self._resident += [fact["resident"] for fact in heard]
        self._communicators.release(successor)
        assert successor.close(LIMIT) == 0

    def check(self, figure: Figure) -> None:
        """The memory of the part is what the successor's message has come into: two of them are never there."""
        growth = max(self._resident) - self._resident[0]
        limit = SIZE + SLACK.get(self._wire.kind, 20 * MIB)
        figure(
            "8 client killed",
            f"{self._wire.kind}: no part delivered; with a message of 64 MiB after each kill the server has grown by "
            f"{growth / MIB:.0f} MiB, limit {limit / MIB:.0f} MiB",
        )
        assert growth < limit


@pytest.mark.slow
@on(*PROXIED)
def test_a_client_killed_in_the_middle_of_a_message_delivers_no_part_of_it_and_costs_no_memory(
    communicators: Communicators, children: Children, proxies: Proxies, wire: Wire, figure: Figure
) -> None:
    scene = Scene(communicators, children, wire)
    proxy = proxies(scene.netloc)
    for offset in OFFSETS:
        scene.play(proxy.netloc, functools.partial(kill_after_passing, proxy, offset))
    scene.check(figure)


def kill_after_passing(proxy: Proxy, offset: int, program: Child) -> bool:
    """Kill a sender when `offset` bytes of its large message have passed."""
    before = proxy.passed
    proxy.hold(after=offset)
    program.say("go")
    proxy.wait(before + offset, LIMIT)
    program.kill()
    assert proxy.passed == before + offset
    proxy.cut()
    proxy.release()
    return True


@pytest.mark.slow
@on("shm")
def test_a_client_killed_in_the_middle_of_a_copy_delivers_no_part_of_it_and_costs_no_memory(
    communicators: Communicators, children: Children, wire: Wire, figure: Figure
) -> None:
    """Nothing is between the two of them that could count, but the system counts what a process writes."""
    scene = Scene(communicators, children, wire)
    for offset in OFFSETS[:-1]:  # nobody is so quick
        scene.play(scene.netloc, functools.partial(kill_after_writing, offset))
    scene.check(figure)


def kill_after_writing(offset: int, program: Child) -> bool:
    """Kill a sender that has written `offset` bytes at least, and not all; return whether that was so."""
    before = written(program)
    program.say("go")
    while written(program) < before + offset:
        pass  # a message takes some ten milliseconds
    program.stop()
    if written(program) >= before + SIZE:
        program.signal(signal.SIGCONT)
        return False
    program.kill()
    return True


def written(program: Child) -> int:
    return int(re.findall(r"^wchar: (\d+)$", Path(f"/proc/{program.process.pid}/io").read_text(), re.MULTILINE)[0])


# 9: the server is killed in mid-stream


@pytest.mark.slow
@on(*ALL)
def test_clients_of_a_server_that_is_killed_come_back_to_its_successor(
    communicators: Communicators, children: Children, wire: Wire, figure: Figure
) -> None:
    """Each has a message that was acknowledged, one that travels and one that has not begun to."""
    first = children.start("ledger", wire, Purpose.SERVER)
    netloc = NetworkLocation(*first.hear()["netloc"])
    clients = [communicators.client(netloc, retry_min=0.1, retry_max=5.0) for _ in range(10)]
    ids = {str(client.id) for client in clients}
    acknowledged = [client.put("acknowledged") for client in clients]
    assert taken(first, len(clients), "acknowledged") == ids
    for future in acknowledged:
        future.result(LIMIT)
    first.signal(signal.SIGSTOP)  # now nothing is acknowledged any more
    large = bytearray(32 * MIB)
    travelling = [client.put(large) for client in clients]
    unsent = [client.put("unsent") for client in clients]
    for client in clients:
        for _ in range(2):  # the second is asked after the flush that the first found waiting
            client.statistics()
    start = time.monotonic()
    first.kill()
    with pytest.raises(EOFError):  # it has taken nothing else
        first.hear()
    second = children.start("ledger", wire, Purpose.SERVER, netloc)
    assert second.hear()["netloc"] == list(netloc)
    listening = time.monotonic() - start
    assert taken(second, len(clients), "unsent") == ids
    back = time.monotonic() - start
    for future in travelling:
        with pytest.raises(Closed):
            future.result(LIMIT)
    for future in unsent:
        future.result(LIMIT)
    for client in clients:
        communicators.release(client)
        assert client.close(LIMIT) == 0
    second.signal(signal.SIGTERM)
    second.finish()
    assert back < 10.0
    figure(
        "9 server killed",
        f"{wire.kind}: the successor listens after {listening:.2f} s, the last of 10 is back after {back:.2f} s, "
        "limit 10 s (retry_max 5 s)",
    )


def taken(server: Child, count: int, data: str) -> set[str]:
    """The peers of the next messages that a ledger writes down, all of which are to be `data`."""
    facts = [server.hear() for _ in range(count)]
    assert [fact["data"] for fact in facts] == [data] * count
    return {fact["peer"] for fact in facts}
