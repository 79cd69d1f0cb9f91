"""`kill -9` of a client in mid-send, and of a server in mid-stream.

Cases 8 and 9 of docs/reliability.md.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from netq import Closed, NetworkLocation, Purpose
from netq.testing.proxy import Proxy
from netq.testing.stage import LIMIT, Stage
from tests.faults.programs.child import Child, Children

if TYPE_CHECKING:
    from tests.faults.conftest import Figure, Wire

Proxies = Callable[[NetworkLocation], Proxy]

MIB = 1024**2


@pytest.fixture
def children() -> Iterator[Children]:
    with Children() as children:
        yield children


# 8: a client is killed in mid-send


@pytest.mark.slow
def test_a_client_killed_in_the_middle_of_a_message_delivers_no_part_of_it_and_costs_no_memory(
    stage: Stage, children: Children, proxies: Proxies, wire: Wire, figure: Figure
) -> None:
    """The memory of the part is what the successor's message comes into: two of them are never there."""
    size = 64 * MIB
    whole = np.frombuffer(os.urandom(size), np.uint8)
    server = children.start("ledger", wire, Purpose.SERVER)
    netloc = NetworkLocation(*server.hear()["netloc"])
    proxy, resident = proxies(netloc), []
    for offset in (1, 23, 100_000, 32 * MIB + 1, size - 1):
        id = uuid.uuid4()
        sender = children.start("sender", wire, Purpose.CLIENT, proxy.netloc, id=id, size=size)
        heard = [server.hear()]
        kill_in_mid_send(sender, proxy, offset)
        successor = stage.client(netloc, id=id)
        successor.put("hello").result(LIMIT)
        successor.put(whole).result(LIMIT)
        heard += [server.hear(), server.hear()]
        assert [fact["peer"] for fact in heard] == [str(id)] * 3
        assert [fact["data"] for fact in heard] == ["whole", "hello", [size, zlib.crc32(whole.data)]]
        resident += [fact["resident"] for fact in heard]
        stage.forget(successor)
        assert successor.close(LIMIT) == 0
    growth = (max(resident) - resident[0]) / MIB
    figure(
        "8 client killed",
        f"{wire.kind}: no part delivered; with a message of 64 MiB after each of 5 kills the server has grown by "
        f"{growth:.0f} MiB, limit 84 MiB",
    )
    assert growth < size / MIB + 20


def kill_in_mid_send(program: Child, proxy: Proxy, offset: int) -> None:
    """Kill a sender when `offset` bytes of its large message have passed."""
    assert program.hear() == {"ready": True}
    before = proxy.passed
    proxy.hold(after=offset)
    program.say("go")
    proxy.wait(before + offset, LIMIT)
    program.kill()
    assert proxy.passed == before + offset
    proxy.cut()
    proxy.release()


# 9: the server is killed in mid-stream


@pytest.mark.slow
def test_clients_of_a_server_that_is_killed_come_back_to_its_successor(
    stage: Stage, children: Children, wire: Wire, figure: Figure
) -> None:
    """Each has a message that was acknowledged, one that travels and one that has not begun to."""
    first = children.start("ledger", wire, Purpose.SERVER)
    netloc = NetworkLocation(*first.hear()["netloc"])
    clients = [stage.client(netloc, retry_min=0.1, retry_max=5.0) for _ in range(10)]
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
        stage.forget(client)
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
