"""A signal while a thread reads the ring: the handler raises at the end of the step."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

import netq
from netq.options import CommunicatorOptions, NetworkLocation, Protocol, Purpose
from netq.shm.stream import RingStream

LIMIT = 20.0


class Alarm(Exception):
    """What the handler raises."""


@pytest.fixture
def alarm() -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, netq.outside_steps(handle))
    yield
    signal.signal(signal.SIGALRM, before)


@contextmanager
def connected() -> Iterator[tuple[netq.Communicator, netq.Communicator]]:
    """A server, and a client that it has heard of."""
    options = CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))
    with (
        netq.new(Protocol.SHM, Purpose.SERVER, options) as server,
        netq.new(Protocol.SHM, Purpose.CLIENT, CommunicatorOptions(netloc=server.netloc)) as client,
    ):
        client.put("here").result(LIMIT)
        server.get(timeout=LIMIT)
        yield server, client


def get_for_ever(communicator: netq.Communicator, got: list[object]) -> None:
    while True:
        got.append(communicator.get(timeout=LIMIT).data)


@pytest.mark.usefixtures("alarm")
def test_bytes_read_by_an_interrupted_thread_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    recv_into, armed = RingStream.recv_into, threading.Event()

    def receive_and_be_interrupted(self: RingStream, buffer: memoryview) -> int:
        count = recv_into(self, buffer)
        if armed.is_set() and threading.current_thread() is threading.main_thread():
            armed.clear()
            signal.raise_signal(signal.SIGALRM)
        return count

    monkeypatch.setattr(RingStream, "recv_into", receive_and_be_interrupted)
    with connected() as (server, client):
        over, got = threading.Event(), list[object]()

        def put() -> None:
            for number in itertools.count():
                if over.is_set():
                    break
                client.put(number).result(LIMIT)

        thread = threading.Thread(target=put)
        thread.start()
        armed.set()
        try:
            with pytest.raises(Alarm):
                get_for_ever(server, got)
            got.append(server.get(timeout=LIMIT).data)
        finally:
            over.set()
            thread.join()
        assert not armed.is_set()
        assert got == [*range(len(got))]


@pytest.mark.usefixtures("alarm")
def test_wake_up_taken_by_an_interrupted_thread_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    take_packet, armed = RingStream._take_packet, threading.Event()

    def take_and_be_interrupted(self: RingStream) -> None:
        take_packet(self)
        if armed.is_set() and threading.current_thread() is threading.main_thread():
            armed.clear()
            signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(RingStream, "_take_packet", take_and_be_interrupted)
    with connected() as (server, client):
        armed.set()
        over = threading.Event()

        def put() -> None:
            while not over.wait(0.02):  # a pause, so that the server's ring sleeps
                client.put("more")

        thread = threading.Thread(target=put)
        thread.start()
        try:
            with pytest.raises(Alarm):
                get_for_ever(server, [])
            assert server.get(timeout=LIMIT / 4).data == "more"
        finally:
            over.set()
            thread.join()
