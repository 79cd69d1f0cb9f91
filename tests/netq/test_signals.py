"""A signal handler interrupts the main thread anywhere, in the inbox too: it may raise, and it may close."""

from __future__ import annotations

import contextlib
import random
import signal
import uuid
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from netq.errors import Closed
from netq.inbox import Inbox, Item, Room
from netq.options import CommunicatorOptions
from netq.testing import loopback
from netq.utils.stream import Stream

PEERS = [uuid.UUID(int=number) for number in range(3)]
EACH = 500

Handle = Callable[[Callable[[], object]], None]


class Alarm(Exception):
    """What the handler raises."""


@pytest.fixture
def handle() -> Iterator[Handle]:
    """Have SIGALRM call a function."""
    before = signal.getsignal(signal.SIGALRM)

    def handle(function: Callable[[], object]) -> None:
        def handler(number: int, frame: FrameType | None) -> None:
            function()

        signal.signal(signal.SIGALRM, handler)

    yield handle
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def raise_alarm() -> None:
    raise Alarm


def full() -> Inbox:
    inbox, room = Inbox(), Room(lambda cost: None, 2**60)
    for number in range(EACH):
        inbox.deliver([Item(peer, Stream([str(number).encode()]), room, 1) for peer in PEERS])
    return inbox


def take_all(inbox: Inbox, got: list[tuple[uuid.UUID, int]]) -> None:
    with contextlib.suppress(TimeoutError):
        while True:
            item = inbox.take(timeout=0)
            got.append((item.peer, int(bytes(item.stream))))


def test_an_exception_in_get_costs_at_most_the_message_that_was_being_returned(handle: Handle) -> None:
    handle(raise_alarm)
    chance = random.Random(0)
    for _ in range(100):
        inbox, got = full(), list[tuple[uuid.UUID, int]]()
        with contextlib.suppress(Alarm):
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.004))
            take_all(inbox, got)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.sigpending()  # a bytecode more: what has come is raised here
        take_all(inbox, got)
        assert len(got) >= EACH * len(PEERS) - 1
        for peer in PEERS:
            numbers = [number for whose, number in got if whose == peer]
            assert numbers == sorted(set(numbers)), "out of order, or twice"


def test_a_handler_that_closes_does_not_wait_for_the_thread_that_it_interrupts(handle: Handle) -> None:
    chance = random.Random(0)
    for _ in range(50):
        server = loopback.Server(CommunicatorOptions(netloc=("127.0.0.1", 0)))  # type: ignore[arg-type]
        closed: list[int] = []
        handle(lambda server=server, closed=closed: closed.append(server.close(0)))  # type: ignore[misc]
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.002))
        while not closed:
            with contextlib.suppress(TimeoutError, Closed):
                server.get(timeout=0)
        assert closed == [0]
