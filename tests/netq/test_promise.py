"""Promises: futures that the user's code settles, and which tell as those of `put` if no one looks at a failure."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

import netq
from netq import CommunicatorOptions, NetworkLocation, Promise
from netq.core import Communicator
from netq.testing import loopback
from netq.testing.fixtures import LIMIT
from netq.testing.log import LogRecorder

UNSEEN = "and its future was not looked at: "


@pytest.fixture
def queue() -> Iterator[Communicator]:
    with loopback.Server(CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))) as queue:
        yield queue


def test_promise_has_what_it_was_settled_with(queue: Communicator) -> None:
    kept, broken, cancelled = (Promise(queue) for _ in range(3))
    assert (kept.done(), kept.running(), repr(kept)) == (False, False, "<Promise state=pending>")
    assert kept.set_running_or_notify_cancel()
    assert (kept.running(), kept.cancel()) == (True, False)
    kept.set_result(7)
    broken.set_exception(ValueError("no"))
    assert cancelled.cancel()
    assert not cancelled.set_running_or_notify_cancel()
    assert concurrent.futures.wait([kept, broken, cancelled], LIMIT).not_done == set()
    assert (kept.result(LIMIT), repr(broken)) == (7, "<Promise state=finished raised ValueError>")
    assert isinstance(broken.exception(LIMIT), ValueError)
    assert (cancelled.cancelled(), kept.cancelled()) == (True, False)


def fail(queue: Communicator, look: Callable[[Promise], object]) -> None:
    promise = Promise(queue, queue.id)
    look(promise)
    promise.set_exception(netq.Closed(queue.id, "it is gone"))


LOOKS: dict[str, Callable[[Promise], object]] = {
    "callback": lambda promise: promise.add_done_callback(lambda _: None),
    "wait": lambda promise: concurrent.futures.wait([promise], 0),
    "await": lambda promise: asyncio.run(_await_shortly(promise)),
}


async def _await_shortly(promise: Promise) -> None:
    await asyncio.wait([asyncio.wrap_future(promise)], timeout=0)


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_failure_is_told_unless_its_user_has_looked(
    queue: Communicator, log: LogRecorder, look: Callable[[Promise], object]
) -> None:
    fail(queue, look)
    fail(queue, lambda _: None)
    log.wait(f"{UNSEEN}{queue.id}: it is gone")
    assert len(log.having(UNSEEN)) == 1
    assert queue.close(LIMIT) == 2


def test_failure_counts_for_the_queue_of_the_promise(queue: Communicator) -> None:
    with loopback.Server(CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))) as other:
        promise = Promise(queue)
        promise.queue = other
        promise.set_exception(ValueError())
        promise.exception()
        assert (queue.close(LIMIT), other.close(LIMIT)) == (0, 1)


def test_callback_is_added_while_another_thread_holds_the_condition(queue: Communicator) -> None:
    future, seen = Promise(queue), list[str]()
    holds, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with future._condition:  # and a finalizer on top of it waits for a lock of the other thread
            holds.set()
            go_on.wait(LIMIT)

    holder = threading.Thread(target=hold)
    holder.start()
    assert holds.wait(LIMIT)
    adds = threading.Thread(target=future.add_done_callback, args=(lambda _: seen.append("called"),))
    adds.start()
    adds.join(LIMIT)
    is_added = not adds.is_alive()
    go_on.set()
    holder.join()
    adds.join()
    future.set_result(None)
    assert is_added
    assert seen == ["called"]


def test_each_callback_is_called_once(queue: Communicator) -> None:
    for _ in range(300):
        future, seen = Promise(queue), SimpleQueue[int]()
        settles = threading.Thread(target=future.set_result, args=(None,))
        settles.start()
        for number in range(20):
            future.add_done_callback(functools.partial(lambda put, number, _: put(number), seen.put, number))
        settles.join()
        assert sorted(seen.get(timeout=LIMIT) for _ in range(20)) == list(range(20))
        assert seen.empty()


@pytest.mark.parametrize("fails", [lambda _: 1 // 0, lambda _: sys.exit(1)])
def test_callback_that_fails_is_told_by_the_log_of_netq(
    queue: Communicator, log: LogRecorder, fails: Callable[[object], object]
) -> None:
    future, seen = Promise(queue), list[str]()
    future.add_done_callback(fails)
    future.add_done_callback(lambda _: seen.append("called"))
    future.set_result(None)
    future.add_done_callback(lambda _: 1 // 0)
    log.wait("a callback of a future failed", 2)
    assert seen == ["called"]
