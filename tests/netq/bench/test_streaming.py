"""Messages between two communicators of one process: all arrive, and those in flight are bounded."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

import netq
from netq.bench import streaming
from netq.bench.plan import Plan
from netq.bench.protocol import Counted, Unexpected, serialization
from netq.bench.streaming import Endpoint
from netq.testing import loopback
from netq.testing.fixtures import LIMIT, Communicators

PLANS = [Plan(((1, 1),)), Plan(((64, 2500),)), Plan(((200_000, 40),)), Plan(((64, 1000), (100_000, 20), (2**21, 3)))]
WINDOW = 2**16  # bytes that may be here unread: less than a message, and than what is put ahead


@pytest.fixture
def ends() -> Iterator[tuple[Endpoint, Endpoint]]:
    """Both ends of a session."""
    with Communicators(lambda purpose, options: KINDS[purpose](options)) as communicators:
        server, client = communicators.pair(serialization=serialization(), window=WINDOW)
        yield _end(server, client), _end(client, server)


KINDS = {netq.Purpose.SERVER: loopback.Server, netq.Purpose.CLIENT: loopback.Client}


def _end(mine: netq.Communicator, other: netq.Communicator) -> Endpoint:
    return Endpoint(lambda data: mine.put(data, other.id), functools.partial(mine.get, other.id))


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(plan.pairs))
def test_messages_one_way_are_received(ends: tuple[Endpoint, Endpoint], plan: Plan) -> None:
    ours, theirs = ends
    with ThreadPoolExecutor() as pool:
        sent = pool.submit(streaming.send, ours, streaming.messages(plan))
        assert streaming.receive(theirs, plan.count) == (plan.count, plan.nbytes)
        sent.result(LIMIT)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(plan.pairs))
def test_both_ways_at_once_do_not_deadlock(ends: tuple[Endpoint, Endpoint], plan: Plan) -> None:
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(streaming.exchange, end, plan, streaming.messages(plan)) for end in ends]
        assert [run.result(LIMIT) for run in runs] == [(plan.count, plan.nbytes)] * 2


@pytest.mark.parametrize("size", [1, 64 * 1024, 64 * 1024 + 1, 2**20])
def test_echo_equals_the_message(ends: tuple[Endpoint, Endpoint], size: int) -> None:
    ours, theirs = ends
    with ThreadPoolExecutor() as pool:
        echoing = pool.submit(streaming.echo, theirs)
        message = streaming.payload(size)
        for _ in range(3):
            ours.put(message)
            assert bytes(ours.get(timeout=LIMIT).data) == bytes(message)
        ours.put(("end",))
        assert echoing.result(LIMIT) == (Counted(3, 3 * size), ("end",))


def ours_is_never_read(*, timeout: float | None = None) -> netq.Message:
    raise AssertionError("who only sends gets nothing")


class Undelivered(Exception):
    """Somebody waits for a delivery that never is."""


class Deaf:
    """A peer that takes nothing of what is put."""

    def __init__(self) -> None:
        self.put_count = 0

    def put(self, data: object) -> netq.Delivery:
        self.put_count += 1
        return cast(netq.Delivery, self)

    def result(self, timeout: float | None = None) -> None:
        raise Undelivered


@pytest.mark.parametrize(("size", "most"), [(64, 2 * streaming.BATCH), (2**20, 2 * 64)])
def test_echo_waits_for_a_peer_that_does_not_read(size: int, most: int) -> None:
    deaf, message = Deaf(), netq.Message(uuid.uuid4(), bytes(size))
    with pytest.raises(Undelivered):
        streaming.echo(Endpoint(deaf.put, lambda timeout=None: message))
    assert deaf.put_count == most


def test_short_transfer_waits_only_at_the_end() -> None:
    deaf, plan = Deaf(), Plan(((2**21, 300),))
    with pytest.raises(Undelivered):
        streaming.send(Endpoint(deaf.put, ours_is_never_read), streaming.messages(plan))
    assert deaf.put_count == 300


def test_sender_waits_for_acknowledgements() -> None:
    deaf, plan = Deaf(), Plan(((64, 10**6),))
    with pytest.raises(Undelivered):
        streaming.send(Endpoint(deaf.put, ours_is_never_read), streaming.messages(plan))
    assert deaf.put_count == 2 * streaming.BATCH


@pytest.mark.parametrize("data", [("hello", 1), None, [1], "text"])
def test_unexpected_data_raises(ends: tuple[Endpoint, Endpoint], data: object) -> None:
    ours, theirs = ends
    theirs.put(data)
    with pytest.raises(Unexpected):
        streaming.receive(ours, 1)


def test_messages_of_a_plan_share_one_buffer_of_noise() -> None:
    made = list(streaming.messages(Plan(((2**20, 2), (2**19, 1)))))
    assert len({id(message) for message in made}) == 2
    whole = max(map(bytes, made), key=len)
    assert any(bytes(message) == whole[: 2**19] for message in made)
    assert len(set(whole)) == 256


def test_failed_allocation_is_one_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MemoryError):
        streaming._noise(2**62)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("size", [1, 100, 2**20, 2**20 + 1, 3 * 2**20 - 1])
def test_noise_fills_the_whole_buffer(size: int) -> None:
    block = streaming._noise(size)
    assert block.nbytes == size
    assert len(set(block[-100_000:])) > min(size, 256) * 0.6
