"""Memory is released as soon as it is not needed, without the garbage collector: there are no reference cycles.

Mirrors no module: messages travel between communicators, blocking and asyncio ones.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

import netq
import netq.aio
from netq.runtime.stream_link import Link
from netq.testing.log import LogRecorder


@pytest.fixture
def pair() -> Iterator[tuple[netq.Communicator, netq.Communicator]]:
    anywhere = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
    with (
        netq.new(purpose=netq.Purpose.SERVER, options=anywhere) as server,
        netq.new(options=netq.CommunicatorOptions(netloc=server.netloc)) as client,
    ):
        yield server, client


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watched(array: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> threading.Event:
    """Return an event that is set when the array is freed."""
    freed = threading.Event()
    weakref.finalize(array, freed.set)
    return freed


@pytest.mark.slow
@pytest.mark.usefixtures("no_collector")
def test_delivered_message_is_released_on_both_sides(pair: tuple[netq.Communicator, netq.Communicator]) -> None:
    server, client = pair
    array = np.zeros(1_000_000)
    sent = watched(array)
    future = client.put(array)
    received = server.get(timeout=10).data
    future.result(10)
    del array
    assert sent.wait(10)
    arrived = watched(received)
    del received
    assert arrived.wait(10)


def test_error_of_lost_link_refers_to_nothing(
    pair: tuple[netq.Communicator, netq.Communicator], log: LogRecorder
) -> None:
    """Nor the frames that it has come through, which hold what was being sent."""
    server, client = pair
    errors: list[Exception] = []

    def keep(record: logging.LogRecord) -> bool:
        errors.extend(argument for argument in record.args or () if isinstance(argument, Exception))
        return True

    client.put("hello").result(10)
    (peer,) = server._endpoint.peers.values()
    assert isinstance(peer.link, Link)
    logging.getLogger("netq").addFilter(keep)
    try:
        peer.link._stream.sock.shutdown(socket.SHUT_RDWR)
        log.wait("its session waits for it")
    finally:
        logging.getLogger("netq").removeFilter(keep)
    assert [(str(error), error.__traceback__) for error in errors] == [("the peer hung up", None)]


@pytest.mark.usefixtures("no_collector")
def test_cancelled_message_is_released() -> None:
    with netq.new(options=netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 1))) as nowhere:
        array = np.zeros(1_000_000)
        freed = watched(array)
        future = nowhere.put(array)
        del array
        assert future.cancel()
        del future
        assert freed.wait(10)


@pytest.mark.usefixtures("no_collector")
def test_asyncio_futures_are_released(pair: tuple[netq.Communicator, netq.Communicator]) -> None:
    server, _ = pair

    async def main() -> list[weakref.ref[object]]:
        async with netq.aio.new(options=netq.CommunicatorOptions(netloc=server.netloc)) as client:
            acknowledged = client.put("one")
            await acknowledged
            cancelled = client.put("another")
            cancelled.cancel()
            return [weakref.ref(each) for each in (acknowledged, acknowledged.delivery, cancelled, cancelled.delivery)]

    assert [each() for each in asyncio.run(main())] == [None] * 4


@pytest.mark.usefixtures("no_collector")
def test_message_to_several_peers_is_released(pair: tuple[netq.Communicator, netq.Communicator]) -> None:
    server, client = pair
    with netq.new(options=netq.CommunicatorOptions(netloc=server.netloc)) as other:
        for each in (client, other):
            each.put("here")
            server.get(timeout=10)
        array = np.zeros(1_000_000)
        freed = watched(array)
        future = server.put(array)
        for each in (client, other):
            each.get(timeout=10)
        future.result(10)
        del array
        assert freed.wait(10)
