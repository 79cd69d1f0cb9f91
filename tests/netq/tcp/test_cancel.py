"""Cancelling while the socket is full: the link copies what it has taken, so the caller's memory is free at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from pickle import PickleBuffer

import pytest

from netq import Communicator, NetworkLocation
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.proxy import Proxy

SIZE, PASSES = 64 * 2**20, 16 * 2**20  # bytes of a message, and how many of them pass the proxy


def blocked_pair(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy]
) -> tuple[Communicator, Communicator, Proxy, int]:
    """Return a server, its client, the proxy between them, and the value of `passed` at which the proxy stops."""
    server = communicators.server()
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc)
    introduce(server, client)
    stop = proxy.passed + PASSES
    proxy.hold(after=PASSES)
    return server, client, proxy, stop


def test_cancel_on_a_blocked_link_releases_the_memory_at_once(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy]
) -> None:
    server, client, proxy, stop = blocked_pair(communicators, proxies)
    data = bytearray(SIZE)
    future = client.put(PickleBuffer(data))  # out of band: a bytearray itself would be copied
    proxy.wait(stop, LIMIT)
    with pytest.raises(BufferError):
        data.clear()
    assert future.cancel()
    client.statistics()  # waits for a turn of the loop, which handles the cancel
    data.clear()  # raises BufferError while there is a view of it
    proxy.release()
    client.put("next").result(LIMIT)
    assert server.get(timeout=0).data == "next"
    assert proxy.passed - stop < SIZE - PASSES


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the size of the process")
def test_receiver_discards_a_message_cancelled_in_transit(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy]
) -> None:
    server, client, proxy, stop = blocked_pair(communicators, proxies)
    data = PickleBuffer(bytearray(SIZE))
    future = client.put(data)
    proxy.wait(stop, LIMIT)
    arriving = server.statistics()[client.id].arriving
    assert PASSES // 2 < arriving < SIZE
    assert future.cancel()
    proxy.release()
    client.put("next", lane=1).result(LIMIT)
    client.put("last").result(LIMIT)  # on the same lane, so the server has handled the cancel
    assert {server.get(timeout=0).data for _ in range(2)} == {"next", "last"}
    assert server.statistics()[client.id].arriving == 0
    before = virtual_memory()
    client.put(data).result(LIMIT)
    assert len(server.get(timeout=0).data) == SIZE
    assert virtual_memory() - before < SIZE // 2, "the memory of the cancelled message was not used again"


def virtual_memory() -> int:
    """Return the bytes of address space that this process has mapped."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmSize"))
