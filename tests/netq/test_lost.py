"""Communicators that no one refers to any more: they are closed, and what was put is delivered."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import subprocess
import sys
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Iterator

import pytest

import netq
import netq.aio
from netq import CommunicatorOptions, ConnectionOptions, NetworkLocation, Purpose
from netq.core import Communicator
from netq.io import process_end
from netq.testing import loopback
from netq.testing.fixtures import LIMIT

pytestmark = pytest.mark.usefixtures("own_garbage")

COUNT = 30
HERE = NetworkLocation("127.0.0.1", 0)
warns = pytest.mark.filterwarnings("ignore:unclosed netq communicator:ResourceWarning")

# The check that a test leaves no thread and no descriptor behind is that of tests/conftest.py.


def client_of(server: Communicator) -> Communicator:
    return netq.new(options=CommunicatorOptions(netloc=server.netloc))


@pytest.fixture(autouse=True)
def explicit_collections() -> Iterator[None]:
    """`gc.collect` does nothing while another thread collects."""
    gc.collect()  # what other tests have left
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def server() -> Iterator[Communicator]:
    with netq.new(purpose=Purpose.SERVER, options=CommunicatorOptions(netloc=HERE)) as server:
        yield server


@warns
@pytest.mark.parametrize("in_cycles", [False, True])
def test_lost_clients_deliver_and_end(server: Communicator, in_cycles: bool) -> None:
    threads, functions = set(threading.enumerate()), len(process_end._functions)

    def lose(number: int) -> netq.Delivery:
        client = client_of(server)
        cycle: list[object] = [client]
        cycle.extend([cycle] if in_cycles else [])
        return client.put(number)

    futures = [lose(number) for number in range(COUNT)]
    gc.collect()
    assert {server.get(timeout=LIMIT).data for _ in range(COUNT)} == set(range(COUNT))
    for future in futures:
        future.result(LIMIT)
    until(lambda: set(threading.enumerate()) <= threads and len(process_end._functions) <= functions)


def until(predicate: Callable[[], bool]) -> None:
    """Wait for what threads of netq do as they end."""
    deadline = time.monotonic() + LIMIT
    while not predicate():
        assert time.monotonic() < deadline
        os.sched_yield()


def test_a_lost_communicator_warns_once(server: Communicator) -> None:
    held = [client_of(server)]
    with pytest.warns(ResourceWarning, match=f"unclosed netq communicator {held[0].id}") as found:
        held.clear()
    assert len(found) == 1


def test_a_warning_under_the_baton_may_wait_for_a_lock(server: Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector may run on top of the baton's holder; filters and showwarning are the user's."""
    client, cycle, lock = client_of(server), list[object](), threading.Lock()
    warned, got = threading.Event(), list[bool]()

    def show(*args: object, **more: object) -> None:
        warned.set()
        got.append(lock.acquire(timeout=LIMIT))

    def collect() -> None:
        with client._baton.lock:
            cycle.clear()

    cycle.append(client_of(server))
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        monkeypatch.setattr(warnings, "showwarning", show)  # catch_warnings has set its own
        holder = threading.Thread(target=collect)
        with lock:
            holder.start()
            assert warned.wait(LIMIT)
            future = client.put("not sent yet")
            future.add_done_callback(lambda _: None)
            assert future.cancel() in (False, True)
        holder.join(2 * LIMIT)
    assert got == [True]
    client.close(LIMIT)


PROGRAM = """
import gc, threading
import netq

server = netq.new("tcp", "server", netq.CommunicatorOptions(netloc=("127.0.0.1", 0)))
client = netq.new("tcp", "client", netq.CommunicatorOptions(netloc=server.netloc))
first = client.put("arrives")
server.get()
busy = threading.Semaphore(0)

class Finalizer:
    def __del__(self, print=print, first=first, client=client):
        first.cancel()
        first.add_done_callback(print)
        client.put("too late").cancel()
        client.request_close()
        print("finalized")

def put():
    while True:
        future = client.put("x")
        future.add_done_callback(id)
        future.cancel()
        busy.release()

for _ in range(3):
    threading.Thread(target=put, daemon=True).start()
for _ in range(100):
    busy.acquire()
cycle = [Finalizer()]
cycle.append(cycle)
gc.disable()  # the end of the interpreter collects it
del cycle
"""


def test_a_finalizer_after_the_end_of_the_threads_does_not_wait_for_them() -> None:
    """At the end of the process Python stops daemon threads where they are, perhaps with a baton."""
    run = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(run, capture_output=True, text=True, timeout=10 * LIMIT, check=True)
    assert done.stdout.endswith("finalized\n")


def test_a_closed_one_does_not_warn(server: Communicator) -> None:
    client = client_of(server)
    client.close(LIMIT)
    del client
    gc.collect()


@warns
def test_a_lost_server_delivers_and_ends() -> None:
    server = netq.new(purpose=Purpose.SERVER, options=CommunicatorOptions(netloc=HERE))
    client = client_of(server)
    client.put("hello")
    server.put("goodbye", server.get(timeout=LIMIT).peer)
    del server
    gc.collect()
    assert client.get(timeout=LIMIT).data == "goodbye"
    with pytest.raises(netq.Closed):
        client.get(timeout=LIMIT)
    client.close(LIMIT)


@warns
def test_a_finalizer_on_top_of_a_loop_does_not_wait(server: Communicator) -> None:
    """The collector may run in the loop's thread, with the baton."""
    for _ in range(COUNT):
        cycle: list[object] = [client_of(server)]
        cycle.append(cycle)
    del cycle
    server._endpoint.home.ask(gc.collect)
    server._endpoint.home.ask(lambda: None)


@warns
def test_a_lost_one_without_a_server_ends_after_linger() -> None:
    options = CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 1), connection=ConnectionOptions(linger=0.1))
    future = loopback.Client(options).put("to no one")
    gc.collect()
    with pytest.raises(netq.Closed):
        future.result(LIMIT)


@warns
def test_lost_asyncio_communicators_deliver_and_leave_the_event_loop(server: Communicator) -> None:
    async def lose(number: int) -> None:
        queue = netq.aio.new(options=CommunicatorOptions(netloc=server.netloc))
        await queue.put("hello")
        server.put("here", server.get(queue.id, timeout=LIMIT).peer)
        assert (await queue.get()).data == "here"  # the event loop polls from now on
        queue.put(number)

    async def main() -> None:
        before = len(os.listdir("/proc/self/fd"))
        for number in range(COUNT):
            await lose(number)
        gc.collect()
        assert {server.get(timeout=LIMIT).data for _ in range(COUNT)} == set(range(COUNT))
        while len(os.listdir("/proc/self/fd")) > before:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def in_child(check: Callable[[], None]) -> None:
    """Run a check in a fork."""
    if pid := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return
    status = 1
    try:
        check()
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def test_futures_of_the_parent_raise_in_a_fork() -> None:
    absent = NetworkLocation("127.0.0.1", 1)
    options = CommunicatorOptions(netloc=absent, id=uuid.uuid4())
    client = loopback.Client(options)
    pending, done = client.put("to no one"), client.put("cancelled")
    assert done.cancel()

    def check() -> None:
        calls: list[Callable[[], object]] = [
            pending.cancel,
            pending.result,
            pending.exception,
            lambda: pending.add_done_callback(print),
            lambda: concurrent.futures.wait([pending]),
            lambda: netq.poll([client]),
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match="make a new one after the fork"):
                call()
        assert not pending.done()
        assert "pending" in repr(pending)
        assert done.done()
        assert not pending.cancelled()
        assert done.cancelled()
        assert concurrent.futures.wait([done]).done == {done}
        assert list(concurrent.futures.as_completed([done])) == [done]  # type: ignore[arg-type]
        assert client.close() == 0

    try:
        in_child(check)
    finally:
        client.close(0)


def test_a_wait_that_fails_in_a_fork_keeps_no_lock_of_those_that_were_done() -> None:
    client = loopback.Client(CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 1)))
    futures = [client.put(number) for number in range(3)]
    done = min(futures, key=id)  # concurrent.futures locks them in this order
    assert done.cancel()

    def check() -> None:
        with pytest.raises(RuntimeError, match="make a new one after the fork"):
            concurrent.futures.wait(futures)
        waited: list[object] = []
        thread = threading.Thread(target=lambda: waited.append(concurrent.futures.wait([done]).done), daemon=True)
        thread.start()
        thread.join(LIMIT)
        assert waited == [{done}]

    try:
        in_child(check)
    finally:
        client.close(0)


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_a_copy_that_is_collected_in_a_fork_leaves_the_parent_alone(server: Communicator) -> None:
    client = client_of(server)
    client.put("before")
    assert server.get(timeout=LIMIT).data == "before"
    holder = [client]

    def check() -> None:
        nonlocal client
        holder.clear()
        del client
        gc.collect()

    in_child(check)
    client.put("after").result(LIMIT)
    assert server.get(timeout=LIMIT).data == "after"
    client.close(LIMIT)
