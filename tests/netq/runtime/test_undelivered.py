"""Messages that fail: what `close` counts, and what the log says of those whose futures are dropped."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, cast

import pytest

import netq
from netq import Closed, CommunicatorOptions, ConnectionOptions, NetworkLocation, QueueFull
from netq.core import Communicator
from netq.io.timers import Timer, Timers
from netq.runtime.undelivered import Undelivered
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from tests.netq.makers import in_process

pytestmark = pytest.mark.usefixtures("own_garbage")

A, B = uuid.UUID(int=1), uuid.UUID(int=2)
NOT_LOOKED_AT = "its future was not looked at"
FULL = QueueFull(A, "1 messages (queue_size)")


class Clock:
    """A loop whose time is given: what it is asked for runs in `turn`."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []
        self._timers = Timers()
        self.baton = self

    def defer(self, function: Callable[..., object], *args: object) -> None:
        function(*args)

    def at(self, when: float, function: Callable[..., object], *args: object) -> Timer:
        return self._timers.add(when, function, args)

    def call(self, function: Callable[..., object]) -> None:
        self._calls.append(function)

    def turn(self, seconds: float = 0.0) -> None:
        """Run what was asked for, and the timers, `seconds` from now."""
        calls, self._calls = self._calls, []
        for function in calls:
            function()
        self._timers.run(time.monotonic() + seconds)


@pytest.fixture
def communicators() -> Iterator[Communicators]:
    with Communicators(in_process) as communicators:
        yield communicators


@pytest.fixture
def full(communicators: Communicators) -> Iterator[Communicator]:
    """A server with a client to which one message waits, and no other may."""
    server = communicators.server(queue_size=1)
    client = communicators.client(server.netloc, window=1)
    introduce(server, client)
    server.put("in the client's window", client.id).result(LIMIT)
    server.put("waits", client.id)
    communicators.release(server)
    communicators.release(client)
    yield server
    server.close(0)
    client.close(0)


# What is counted, and named.


def test_all_failures_are_counted_and_unseen_ones_named() -> None:
    undelivered = Undelivered(cast(Any, Clock()))
    unseen = [undelivered.failed(peer, FULL, looked_at=False) for peer in (A, A, B, None)]
    undelivered.failed(A, FULL, looked_at=True)
    assert undelivered.count == 5
    for one in unseen[:1]:
        assert one is not None
        one.look()
        one.look()
    assert undelivered.text("host:1", kept=True) == "3 messages were not delivered: " + ", ".join(
        [f"1 to {A}", f"1 to {B}", "1 to host:1"]
    )
    assert undelivered.text("host:1", kept=True) == "", "it was told"
    undelivered.closing = True  # no line for those that are left


def test_an_explicit_close_names_those_whose_futures_were_dropped() -> None:
    undelivered = Undelivered(cast(Any, Clock()))
    undelivered.closing = True
    kept = undelivered.failed(A, FULL, looked_at=False)
    undelivered.failed(B, FULL, looked_at=False)
    assert undelivered.text("", kept=False) == f"1 message was not delivered: 1 to {B}"
    undelivered.closing = True
    assert kept is not None


def test_threads_that_close_count_each_failure_once() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            undelivered = Undelivered(cast(Any, Clock()))
            kept = [undelivered.failed(A, FULL, looked_at=False) for _ in range(100)]
            with futures.ThreadPoolExecutor(3) as threads:
                told = [threads.submit(undelivered.text, "", kept=True) for _ in range(3)]
            assert undelivered.count == len(kept)
            assert sorted(each.result() for each in told) == ["", "", f"100 messages were not delivered: 100 to {A}"]
            undelivered.closing = True
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("late", [False, True])
def test_an_explicit_close_names_those_that_no_line_has_told_yet(log: LogRecorder, late: bool) -> None:
    clock = Clock()
    undelivered = Undelivered(cast(Any, clock))
    for _ in range(3):
        undelivered.failed(A, FULL, looked_at=False)
    clock.turn()
    undelivered.closing = True
    clock.turn(11.0 if late else 0.0)
    assert undelivered.text("", kept=False) == f"2 messages were not delivered: 2 to {A}"
    assert len(log.having(NOT_LOOKED_AT)) == 1


def test_text_names_three_peers() -> None:
    undelivered = Undelivered(cast(Any, Clock()))
    kept = [undelivered.failed(uuid.UUID(int=n), FULL, looked_at=False) for n in range(5) for _ in range(5 - n)]
    named = ", ".join(f"{5 - n} to {uuid.UUID(int=n)}" for n in range(3))
    assert undelivered.text("", kept=True) == f"15 messages were not delivered: {named}, 3 to others"
    undelivered.closing = True
    assert len(kept) == 15


def test_a_failure_that_was_told_with_all_is_not_told_again(log: LogRecorder) -> None:
    clock = Clock()
    undelivered = Undelivered(cast(Any, clock))
    kept, looked = (undelivered.failed(A, FULL, looked_at=False) for _ in range(2))
    assert undelivered.text("", kept=True) == f"2 messages were not delivered: 2 to {A}"
    assert looked is not None
    looked.look()
    del kept
    clock.turn()
    assert not log.having(NOT_LOOKED_AT)
    undelivered.closing = True
    later = undelivered.failed(A, FULL, looked_at=False)
    assert undelivered.text("", kept=True) == f"1 message was not delivered: 1 to {A}"
    assert later is not None


def test_peers_are_counted_one_by_one_up_to_a_thousand() -> None:
    undelivered = Undelivered(cast(Any, Clock()))
    kept = [undelivered.failed(uuid.UUID(int=n), FULL, looked_at=False) for n in range(3000)]
    assert undelivered.count == 3000
    assert len(undelivered._unseen) == 1001
    assert undelivered.text("", kept=True).endswith(", 2,997 to others")
    undelivered.closing = True
    assert len(kept) == 3000


def test_the_first_is_told_at_once_and_others_later(log: LogRecorder) -> None:
    clock = Clock()
    undelivered = Undelivered(cast(Any, clock))
    for _ in range(5):
        undelivered.failed(A, FULL, looked_at=False)
    undelivered.failed(A, Closed(A, "gone"), looked_at=False)
    clock.turn()
    assert len(log.having(NOT_LOOKED_AT)) == 2, "one for each reason"
    clock.turn(11.0)
    assert log.having("more") == [f"{A}: 4 more messages were not delivered (QueueFull); look at their futures"]
    clock.turn(22.0)
    undelivered.failed(A, FULL, looked_at=False)
    clock.turn()
    assert len(log.having(NOT_LOOKED_AT)) == 3, "a new episode"


def test_many_peers_have_few_lines(log: LogRecorder) -> None:
    clock = Clock()
    undelivered = Undelivered(cast(Any, clock))
    for number in range(1000):
        undelivered.failed(uuid.UUID(int=number + 1), FULL, looked_at=False)
    clock.turn()
    clock.turn(11.0)
    assert len(log.having(NOT_LOOKED_AT)) == 17
    assert log.having("other peers: 983 more messages")


def test_messages_replaced_by_newer_ones_are_counted_only() -> None:
    undelivered = Undelivered(cast(Any, Clock()))
    assert undelivered.failed(A, QueueFull(A, "1 messages (queue_size)", dropped=True), looked_at=False) is None
    assert (undelivered.count, undelivered.text("", kept=True)) == (1, "")


# What counts as a look.


@pytest.mark.parametrize(
    "look",
    [
        lambda future: future.exception(LIMIT),
        lambda future: future.add_done_callback(lambda _: None),
        lambda future: futures.wait([future], LIMIT),
        lambda future: futures.wait(future.futures, LIMIT),
    ],
)
@pytest.mark.parametrize("peers", [1, 2])
def test_a_future_that_is_looked_at_is_not_told(
    full: Communicator, log: LogRecorder, look: Callable[[netq.Delivery], object], peers: int
) -> None:
    (client,) = full.statistics()
    future = full.put("too many", *([client] * peers))
    look(future)
    del future
    gc.collect()
    full.put("told", client)
    log.wait(NOT_LOOKED_AT)
    full.close(0)
    assert full._endpoint.undelivered._periods == {(client, QueueFull): 0}, "one, and no further one"


@pytest.mark.parametrize("peers", [1, 2])
def test_a_dropped_future_is_told(full: Communicator, log: LogRecorder, peers: int) -> None:
    (client,) = full.statistics()
    full.put("too many", *([client] * peers))
    assert "1 messages (queue_size)" in log.wait(NOT_LOOKED_AT)
    assert full.close(0) == 1 + peers, "the one that waits, and those that were refused"


def test_a_part_is_told_while_others_wait(full: Communicator, communicators: Communicators, log: LogRecorder) -> None:
    slow = communicators.client(full.netloc, window=1)
    introduce(full, slow)
    full.put("in its window", slow.id).result(LIMIT)
    full.put("to both: one is refused, one waits")
    log.wait(NOT_LOOKED_AT)
    communicators.abort(slow)


def test_a_callback_of_a_dropped_broadcast_is_called(full: Communicator, communicators: Communicators) -> None:
    other = communicators.client(full.netloc)
    introduce(full, other)
    ended: list[object] = []
    full.put("to both").add_done_callback(lambda future: ended.append(future.exception()))
    gc.collect()
    other.get(timeout=LIMIT)
    introduce(full, other)  # its answer has come after its ACK of the broadcast
    full.put("a later one", other.id).result(LIMIT)
    full.close(0)
    assert [type(error) for error in ended] == [QueueFull]
    communicators.abort(other)


def test_dropped_oldest_messages_are_counted_and_not_told(communicators: Communicators, log: LogRecorder) -> None:
    server = communicators.server(queue_size=1, drop_oldest=True)
    client = communicators.client(server.netloc, window=1)
    introduce(server, client)
    server.put("in the window", client.id).result(LIMIT)
    for number in range(10):
        server.put(number, client.id)
    assert communicators.abort(server) >= 9
    assert not log.having(NOT_LOOKED_AT)
    communicators.abort(client)


# Closing.


def test_a_with_block_says_what_was_not_delivered(log: LogRecorder) -> None:
    with netq.new("tcp", "server", CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))) as server:
        netloc = server.netloc
    with netq.new(options=CommunicatorOptions(netloc=netloc, connection=ConnectionOptions(linger=0.0))) as queue:
        queue.put("nobody listens")
        queue.put("nor to this")
    host, port = netloc
    assert len(log.having(f"2 messages were not delivered: 2 to {host}:{port}")) == 1
    assert not log.having(NOT_LOOKED_AT)


def test_close_says_what_was_lost_unseen_and_put_after_it(log: LogRecorder) -> None:
    with netq.new("tcp", "server", CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))) as server:
        netloc = server.netloc
    queue = netq.new(options=CommunicatorOptions(netloc=netloc, connection=ConnectionOptions(linger=0.0)))
    queue.put("nobody listens")
    kept = queue.put("nor to this")
    assert queue.close(LIMIT) == 2
    assert len(log.having(f"1 message was not delivered: 1 to {netloc.host}:{netloc.port}")) == 1
    queue.put("after it")
    assert "this communicator is closed" in log.wait(NOT_LOOKED_AT)
    assert isinstance(kept.exception(), Closed)


def test_a_handler_may_put_while_another_thread_drops_a_future_after_the_end() -> None:
    entered, awaited = threading.Event(), threading.Event()

    class Puts(logging.Handler):
        def acquire(self) -> None:
            if entered.is_set():
                awaited.set()
            super().acquire()

        def handle(self, record: logging.LogRecord) -> bool:
            self.acquire()
            try:
                self.emit(record)
            finally:
                self.release()
            return True

        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "user":
                entered.set()
                awaited.wait(LIMIT)
                queue.put("a line")

    with netq.new("tcp", "server", CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))) as queue:
        pass
    handler, futures = Puts(), [queue.put("after the end")]
    loggers = [logging.getLogger(name) for name in ("user", "netq")]
    for logger in loggers:
        logger.addHandler(handler)
    log_thread = threading.Thread(target=loggers[0].warning, args=("the handler's lock is held, and put waits",))
    drop_thread = threading.Thread(target=futures.clear, daemon=True)
    log_thread.daemon = True
    try:
        log_thread.start()
        assert entered.wait(LIMIT)
        drop_thread.start()
        assert awaited.wait(LIMIT)
        log_thread.join(LIMIT)
        drop_thread.join(LIMIT)
        assert [log_thread.is_alive(), drop_thread.is_alive()] == [False, False]
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def test_a_communicator_of_a_function_is_told_once(log: LogRecorder) -> None:
    with netq.new("tcp", "server", CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))) as server:
        netloc = server.netloc

    def forget() -> None:
        queue = netq.new(options=CommunicatorOptions(netloc=netloc, connection=ConnectionOptions(linger=0.0)))
        queue.put("nobody listens")

    with pytest.warns(ResourceWarning):
        forget()
    assert log.wait("1 message was not delivered")
    assert len(log.having("not delivered")) == 1


def test_a_with_block_whose_messages_arrive_says_nothing(communicators: Communicators, log: LogRecorder) -> None:
    server = communicators.server()
    with communicators.client(server.netloc) as client:
        client.put("arrives")
        communicators.release(client)
    assert server.get(timeout=LIMIT).data == "arrives"
    assert not log.having("not delivered")


def test_the_end_of_a_process_says_what_was_not_delivered() -> None:
    program = """
import netq
with netq.new("tcp", "server", netq.CommunicatorOptions(netloc=("127.0.0.1", 0))) as server:
    netloc = server.netloc
queue = netq.new(options=netq.CommunicatorOptions(netloc=netloc, connection=netq.ConnectionOptions(linger=0.0)))
queue.put("nobody listens")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "1 message was not delivered: 1 to 127.0.0.1:" in done.stderr


def test_the_end_of_a_process_waits_for_a_slow_log_handler() -> None:
    program = """
import logging, threading
import netq
begun = threading.Event()
class Slow(logging.Handler):
    def emit(self, record):
        begun.set()
        threading.Event().wait(0.2)
        print(record.getMessage(), flush=True)
logging.getLogger("netq").addHandler(Slow())
with netq.new("tcp", "server", netq.CommunicatorOptions(netloc=("127.0.0.1", 0))) as server:
    netloc = server.netloc
queue = netq.new(options=netq.CommunicatorOptions(netloc=netloc, connection=netq.ConnectionOptions(linger=0.0)))
queue.put("nobody listens")
begun.wait()  # that the connection is refused is being logged
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "1 message was not delivered: 1 to 127.0.0.1:" in done.stdout


def test_failures_before_close_are_counted(communicators: Communicators) -> None:
    server = communicators.server()
    client = communicators.client(server.netloc)
    introduce(server, client)
    assert isinstance(server.put("to a stranger", A).exception(LIMIT), Closed)
    assert communicators.abort(server) == 1
    communicators.abort(client)


def _wait(wait: Callable[[float], object]) -> None:
    with pytest.raises(TimeoutError):
        wait(0.1)


ACTS: dict[str, Callable[[Communicator, netq.Delivery], object]] = {
    "add a callback": lambda server, future: future.add_done_callback(lambda _: None),
    "cancel": lambda server, future: future.cancel(),
    "put to a stranger": lambda server, future: server.put("two", A),
    "put to several strangers": lambda server, future: server.put("two", A, B),
    "wait for a result": lambda server, future: _wait(server.put("two", cast(uuid.UUID, future.peer)).result),
    "wait for a message": lambda server, future: _wait(lambda seconds: server.get(timeout=seconds)),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_acts_while_a_finalizer_has_the_baton_and_waits_for_a_lock(
    communicators: Communicators, act: Callable[[Communicator, netq.Delivery], object]
) -> None:
    server = communicators.server()
    client = communicators.client(server.netloc)
    introduce(server, client)
    future, baton, lock = server.put("one", client.id), server._baton, threading.Lock()
    holds, ended, got = threading.Event(), threading.Event(), list[bool]()

    def finalizer() -> None:
        with baton.lock:
            holds.set()
            got.append(lock.acquire(timeout=LIMIT))  # of a logging handler, say

    holder = threading.Thread(target=finalizer)
    with lock:
        holder.start()
        assert holds.wait(LIMIT)
        future.add_done_callback(lambda _: ended.set())
        act(server, future)
    holder.join(2 * LIMIT)
    assert got == [True]
    assert ended.wait(LIMIT)
