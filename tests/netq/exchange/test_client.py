"""A client of an exchange: what it does when something is refused, fails, closes or hangs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, cast

import pytest

import netq
from netq import CommunicatorOptions, ConnectionOptions, Purpose, SerializationOptions
from netq.errors import Absent, Busy, Closed, Failed, InvalidOption, NotPermitted, SecurityError, Unreadable
from netq.exchange import Client, Exchange, Permission
from netq.exchange.envelope import Envelope, EnvelopeKind
from netq.testing.fixtures import LIMIT
from netq.testing.log import LogHandler, LogRecorder
from netq.utils.stream import Stream
from tests.netq.exchange.test_exchange import HERE, Site, done, error, options_at, until_last
from tests.wires import NewWire


@pytest.fixture
def site(new_wire: NewWire) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(new_wire("tcp"), stack)


@contextlib.contextmanager
def plain_server() -> Iterator[netq.Communicator]:
    """A server that is no exchange, and answers nothing by itself."""
    heads = SerializationOptions(Envelope.parse, Envelope.pack)
    options = CommunicatorOptions(netloc=HERE, connection=ConnectionOptions(linger=0.2), serialization=heads)
    with netq.new("tcp", Purpose.SERVER, options) as server:
        yield server


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients connect again at once."""
    monkeypatch.setattr("netq.exchange.client._PAUSE", 0.01)


def test_jobs_that_are_not_permitted_raise(site: Site) -> None:
    client = site.client(site.exchange(permissions=[]))
    worker = client.jobs("a")
    with pytest.raises(NotPermitted, match="work: 'a': not permitted"):
        worker.get(LIMIT)
    with pytest.raises(NotPermitted):
        next(iter(worker))
    assert isinstance(error(worker.begun), NotPermitted)
    with pytest.raises(NotPermitted):
        client.jobs("a").get(LIMIT)  # it may ask again


def test_jobs_of_a_closed_client_end(site: Site) -> None:
    client = site.client(site.exchange())
    client.close(LIMIT)
    worker = client.jobs("a")
    with pytest.raises(Closed):
        worker.get(LIMIT)
    assert list(worker) == []


def test_refusal_by_the_next_exchange_ends_worker_and_service(
    site: Site, log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    exchange = site.exchange()
    client = site.client(exchange)
    worker = client.jobs("a")
    done(worker.begun, client.serve("s", print), client.subscribe("t"))
    exchange.close(LIMIT)
    site.exchange(exchange.netloc, permissions=[Permission(["*"], subscribe=["t"])])
    with pytest.raises(NotPermitted):
        worker.get(LIMIT)
    assert "work: 'a': not permitted" in log.wait("the exchange refuses: work")
    log.wait("the exchange refuses: serve")
    assert isinstance(error(client.serve("s", print)), NotPermitted)


def test_exchange_closes_at_once_although_a_client_is_connected(site: Site) -> None:
    exchange = site.exchange(connection=ConnectionOptions(linger=LIMIT))
    done(site.client(exchange).subscribe("a"))
    begin = time.monotonic()
    exchange.close(LIMIT)
    assert time.monotonic() - begin < LIMIT / 2


def test_client_goes_on_when_it_cannot_connect_again(
    site: Site, log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    exchange = site.exchange()
    client = site.client(exchange)
    done(client.subscribe("a"))
    new, tries = netq.new, iter(range(3))

    def fails_twice(protocol: Any, purpose: Any, options: Any) -> netq.Communicator:
        if purpose is Purpose.CLIENT and next(tries, None) is not None:
            raise SecurityError("a.pem: not readable")
        return new(protocol, purpose, options)

    monkeypatch.setattr(netq, "new", fails_twice)
    exchange.close(LIMIT)
    site.exchange(exchange.netloc)
    log.wait("connected", 2)
    assert list(tries) == []
    assert len(log.having("cannot connect again, and goes on trying: a.pem: not readable")) == 1
    done(client.send(client.id, 1))
    assert client.get(LIMIT).data == 1


@pytest.mark.slow
def test_what_is_asked_after_the_exchange_has_closed_waits_for_the_next(site: Site) -> None:
    exchange = site.exchange()
    client, other = site.client(exchange), site.client(exchange)
    done(client.subscribe("t"), client.serve("double", lambda data: 2 * data), other.publish("else", 0))
    exchange.close(LIMIT)
    futures: list[Any] = []
    end = time.monotonic() + 1.5  # longer than the pause between two connections
    while time.monotonic() < end:
        futures += [other.publish("t", len(futures)), other.send(client.id, len(futures))]
        threading.Event().wait(0.02)
    assert not any(future.done() for future in futures)
    site.exchange(exchange.netloc)
    done(*futures[::2])
    assert {type(future.exception(LIMIT)) for future in futures[1::2]} <= {type(None), Absent}


def test_requests_keep_their_order_over_the_end_of_an_exchange(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    exchange = site.exchange()
    client = site.client(exchange)
    done(client.publish("t", 1))
    exchange.close(LIMIT)
    futures = [client.push("q", number) for number in range(100)]
    site.exchange(exchange.netloc)
    worker = client.jobs("q", ahead=100)
    found = [worker.get(LIMIT) for _ in futures]
    assert [job.data for job in found] == list(range(100))
    for job in found:
        job.done()
    done(*futures)


def test_what_waits_for_an_exchange_fails_when_the_client_closes(site: Site) -> None:
    exchange = site.exchange()
    client = site.client(exchange)
    done(client.publish("t", 1))
    exchange.close(LIMIT)
    future = client.publish("t", 2)
    client.close(LIMIT)
    assert isinstance(error(future), Closed)
    assert isinstance(error(client.publish("t", 3)), Closed)


def test_endless_and_huge_timeouts_wait(site: Site) -> None:
    exchange = site.exchange()
    client, other = site.client(exchange), site.client(exchange)
    worker = client.jobs("q")
    done(worker.begun)
    for timeout in (math.inf, 1e300, 10**400):
        pushed = other.push("q", 1)
        worker.get(timeout).done()
        assert pushed.result(timeout) is pushed.exception(timeout) is None
        done(other.send(client.id, 2))
        assert client._inbox.get(timeout).peer == other.id
    done(other.send(client.id, 2))
    assert client.get(math.inf).data == 2
    client.close(1e10)
    other.close(math.inf)
    exchange.close(math.inf)
    assert exchange.wait(math.inf)
    assert exchange.wait(10**400)


class Speechless(Exception):
    """An exception whose text and representation raise."""

    def __str__(self) -> str:
        raise AttributeError("reason")

    __repr__ = __str__


def speechless(_: Any) -> None:
    raise Speechless


def test_error_without_a_text_ends_no_service_and_no_worker(site: Site) -> None:
    exchange = site.exchange()
    client, caller = site.client(exchange), site.client(exchange)
    done(client.serve("s", speechless))
    for _ in range(2):
        assert str(error(caller.call("s", 1))) == "s: Speechless: it has no text, because its __str__ raises"
    worker = client.jobs("q")
    for _ in range(2):
        future = caller.push("q", 1)
        with worker.get(LIMIT) as job:
            speechless(job)
        assert str(error(future)) == "q: Speechless: it has no text, because its __str__ raises"


def test_error_without_a_text_makes_data_unreadable(site: Site) -> None:
    exchange = site.exchange()
    options = replace(site.options(exchange), serialization=SerializationOptions(load=speechless))
    with Client(options) as client:
        done(client.subscribe("t"), client.publish("t", 1))
        with pytest.raises(Unreadable, match="Speechless: it has no text"):
            client.get(LIMIT)


async def coroutine(data: Any) -> Any:
    return data


async def generator(data: Any) -> Any:
    yield data


class Awaited:
    async def __call__(self, data: Any) -> Any:
        return data

    async def method(self, data: Any) -> Any:
        return data


@pytest.mark.parametrize(
    "function",
    [coroutine, generator, functools.partial(coroutine), Awaited(), Awaited().method, functools.partial(Awaited())],
)
def test_async_functions_are_no_services(site: Site, function: Any) -> None:
    client = site.client(site.exchange())
    with pytest.raises(InvalidOption, match="expected a function of one argument, not an async one"):
        client.serve("s", function)


def test_service_that_returns_a_coroutine_says_so(site: Site) -> None:
    client = site.client(site.exchange())
    done(client.serve("s", lambda data: coroutine(data)))
    assert "the function returned a coroutine; expected a value: serve a function that is not async" in str(
        error(client.call("s", 1))
    )


def exits(_: Any) -> None:
    sys.exit(3)


def test_callback_that_exits_ends_nothing(site: Site, log: LogRecorder) -> None:
    client = site.client(site.exchange())
    client.publish("a", 1).add_done_callback(exits)
    log.wait("a callback of a future failed")
    done(client.send(client.id, 1))
    assert client.get(LIMIT).data == 1


def test_function_that_exits_fails_its_call_only(site: Site) -> None:
    client = site.client(site.exchange())
    done(client.serve("exit", exits))
    for _ in range(2):
        failed = error(client.call("exit", 1))
        assert isinstance(failed, Failed)
        assert str(failed) == "exit: SystemExit: 3"


@pytest.mark.parametrize("where", ["function", "callback"])
def test_close_waits_no_longer_than_it_is_told(site: Site, where: str) -> None:
    exchange = site.exchange()
    client, caller = site.client(exchange), site.client(exchange)
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def hangs(_: Any) -> None:
        begun.set()
        go_on.wait(5)
        ended.set()

    if where == "function":
        done(client.serve("hang", hangs))
        caller.call("hang", 1)
    else:
        client.publish("a", 1).add_done_callback(hangs)
    assert begun.wait(LIMIT)
    client.close(0.05)
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(LIMIT)


def test_close_lets_functions_answer(site: Site) -> None:
    exchange = site.exchange()
    client, caller = site.client(exchange), site.client(exchange)
    begun, go_on = threading.Event(), threading.Event()

    def slow(data: Any) -> Any:
        begun.set()
        return go_on.wait(LIMIT) and data

    done(client.serve("slow", slow))
    future = caller.call("slow", 7)
    assert begun.wait(LIMIT)
    closing = threading.Thread(target=client.close)
    closing.start()
    go_on.set()
    assert future.result(LIMIT) == 7
    closing.join(LIMIT)
    assert not closing.is_alive()


def test_client_may_be_closed_in_a_callback(site: Site) -> None:
    client = site.client(site.exchange())
    returned: SimpleQueue[None] = SimpleQueue()
    client.publish("a", 1).add_done_callback(lambda _: returned.put(client.close()))  # type: ignore[func-returns-value]
    assert returned.get(timeout=LIMIT) is None
    with pytest.raises(Closed):
        client.get(LIMIT)


def test_client_may_be_closed_in_its_function(site: Site, log: LogRecorder) -> None:
    exchange = site.exchange()
    client, caller = site.client(exchange), site.client(exchange)
    done(client.serve("stop", lambda data: client.close() or data))  # type: ignore[func-returns-value]
    assert caller.call("stop", 1).result(LIMIT) == 1
    with pytest.raises(Closed):
        client.get(LIMIT)
    assert not log.having("failed")


def test_a_client_that_closes_waits_for_answers(site: Site) -> None:
    exchange = site.exchange()
    client = Client(options_at(exchange.netloc, connection=ConnectionOptions(linger=LIMIT)))
    with exchange._lock:
        future = client.publish("a", 1)
        while not client._requester._requests.delivered():
            os.sched_yield()
        closing = threading.Thread(target=client.close, args=(LIMIT,))
        closing.start()
        while not client._requester._requests._settled._waiters:
            os.sched_yield()
    closing.join(LIMIT)
    assert future.exception(0) is None


def test_a_client_that_closes_does_not_wait_for_what_is_no_exchange() -> None:
    with plain_server() as server:
        client = Client(options_at(server.netloc))
        future = client.publish("a", 1)
        server.get(timeout=LIMIT)
        client.close(LIMIT)
        assert isinstance(error(future), netq.Closed)


def test_inbox_is_bounded_in_bytes(site: Site) -> None:
    exchange = site.exchange()
    slow, publisher = site.client(exchange, inbox_memory=5_000), site.client(exchange)
    done(slow.subscribe("#"))
    done(
        publisher.publish("a", bytes(9_000)), publisher.publish("b", bytes(2_000)), publisher.publish("c", bytes(2_000))
    )
    until_last(slow, bytes(2_000))
    done(publisher.send(slow.id, 1))
    full = error(publisher.send(slow.id, bytes(4_000)))
    assert isinstance(full, Busy)
    assert str(full).endswith(" of 5000 bytes (inbox_memory)")
    assert [slow.get(LIMIT).topic for _ in range(3)] == ["b", "c", ""]
    assert slow.dropped == 1


def test_job_without_a_worker_tells_the_exchange_again() -> None:
    with plain_server() as server, Client(options_at(server.netloc)) as client:
        client.subscribe("a")
        peer, _ = server.get(timeout=LIMIT)
        server.put(Envelope(EnvelopeKind.JOB, 7, "q"), peer)
        found = [server.get(timeout=LIMIT).data]
        while found[-1].kind is not EnvelopeKind.RETURN:  # the subscription came twice, if the session began after it
            found.append(server.get(timeout=LIMIT).data)
        assert [(each.kind, each.name, each.detail) for each in found[-2:]] == [
            (EnvelopeKind.WORK, "q", 0),
            (EnvelopeKind.RETURN, "", 0),
        ]
        client.close(0)


def test_reply_that_is_too_large_fails_its_call(site: Site) -> None:
    exchange = site.exchange(connection=ConnectionOptions(message_size=10_000, linger=0.2))
    client = site.client(exchange)
    done(client.serve("grow", bytes))
    failed = error(client.call("grow", 50_000))
    assert isinstance(failed, Failed)
    assert "the reply is too large" in str(failed)


def in_a_fork(function: Callable[[], object]) -> str:
    """Return what a function prints in a child of this process, or raises there."""
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: a fork with threads
        child = os.fork()
    if not child:
        signal.alarm(5)  # ends the child if it hangs
        try:
            said = repr(function())
        except BaseException as raised:
            said = f"{type(raised).__name__}: {raised}"
        os.write(writes, said.encode())
        os._exit(0)
    os.close(writes)
    with open(reads) as pipe:
        said = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "it hangs"
    return said


async def wait_for(future: Future[Any]) -> None:
    await asyncio.wrap_future(future)


WAITS: dict[str, Callable[[Future[Any]], object]] = {
    "result": lambda future: future.result(),
    "result with a timeout": lambda future: future.result(1.0),
    "exception": lambda future: future.exception(),
    "cancel": lambda future: future.cancel(),
    "add_done_callback": lambda future: future.add_done_callback(print),
    "wait": lambda future: concurrent.futures.wait([future]),
    "as_completed": lambda future: list(concurrent.futures.as_completed([future])),
    "await": lambda future: asyncio.run(wait_for(future)),
}


def test_fork_cannot_wait(site: Site) -> None:
    exchange = site.exchange()
    client = site.client(exchange)
    worker = client.jobs("a")
    done(worker.begun)
    for wait in (client.get, worker.get, exchange.wait):
        assert in_a_fork(wait).startswith("RuntimeError: ")


@pytest.mark.parametrize("use", WAITS.values(), ids=WAITS)
def test_futures_in_a_fork_raise_unless_they_were_done(site: Site, use: Callable[[Future[Any]], object]) -> None:
    client = site.client(site.exchange())
    pending, was_done = client.push("a", 1), client.publish("a", 1)
    done(was_done)
    assert "this process is a fork" in in_a_fork(lambda: use(pending))
    assert "Error" not in in_a_fork(lambda: use(was_done))
    assert in_a_fork(lambda: (pending.done(), pending.running(), pending.cancelled(), repr(pending)[:8])) == (
        "(False, False, False, '<Promise')"
    )
    assert not pending.done()


def test_future_in_a_fork_does_not_wait_for_a_lock_of_the_parent(site: Site) -> None:
    client = site.client(site.exchange())
    future = client.publish("a", 1)
    done(future)
    locked, go_on = threading.Event(), threading.Event()

    def lock() -> None:
        with future._condition:
            locked.set()
            go_on.wait(LIMIT)

    holder = threading.Thread(target=lock)
    holder.start()
    assert locked.wait(LIMIT)
    said = in_a_fork(lambda: (future.done(), future.result(), future.exception()))
    go_on.set()
    holder.join()
    assert said == "(True, None, None)"


def test_wait_that_fails_in_a_fork_keeps_no_lock_of_those_that_were_done(site: Site) -> None:
    client = site.client(site.exchange())
    futures = [client.push("a", number) for number in range(2)]
    published = [client.publish("a", number) for number in range(2)]
    for future in published:
        done(future)
    # concurrent.futures locks them in the order of their ids.
    was_done = min(published, key=id)
    while max(futures, key=id) is not max((*futures, was_done), key=id):
        futures.append(client.push("a", 1))

    def wait() -> list[object]:
        with pytest.raises(RuntimeError, match="this process is a fork"):
            concurrent.futures.wait([was_done, max(futures, key=id)])
        results: list[object] = []
        thread = threading.Thread(target=lambda: results.append(was_done.result()), daemon=True)
        thread.start()
        thread.join(LIMIT)
        return results

    assert in_a_fork(wait) == "[None]"


def test_close_in_a_fork_does_nothing(site: Site) -> None:
    client = site.client(site.exchange())
    done(client.serve("s", abs))
    worker = client.jobs("a")
    done(worker.begun)
    with client._requester.turns.held():  # as another thread may at the moment of the fork
        assert in_a_fork(worker.close) == in_a_fork(client.close) == "None"
    assert client.call("s", -1).result(LIMIT) == 1
    client.push("a", 1)
    worker.get(LIMIT).done()


TIMEOUTS: dict[str, Callable[[Client, Exchange, Any], object]] = {
    "result": lambda client, exchange, timeout: client.publish("a", 1).result(timeout),
    "exception": lambda client, exchange, timeout: client.publish("a", 1).exception(timeout),
    "begun": lambda client, exchange, timeout: client.jobs("begun").begun.result(timeout),
    "wait": lambda client, exchange, timeout: exchange.wait(timeout),
}


@pytest.mark.parametrize("use", TIMEOUTS.values(), ids=TIMEOUTS)
@pytest.mark.parametrize("timeout", [math.nan, "1", timedelta(seconds=1)])
def test_timeout_that_is_no_number_is_refused(site: Site, use: Callable[..., object], timeout: Any) -> None:
    exchange = site.exchange()
    with pytest.raises(TypeError, match=r": timeout=.*; expected seconds, or None to wait as long as it takes"):
        use(site.client(exchange), exchange, timeout)


def test_what_was_refused_may_be_asked_again(site: Site) -> None:
    exchange = site.exchange(permissions=[Permission(["*"], publish=["#"])])
    client = site.client(exchange)
    for _ in range(2):
        assert isinstance(error(client.serve("s", print)), NotPermitted)
        assert isinstance(error(client.jobs("q").begun), NotPermitted)
        assert isinstance(error(client.subscribe("t")), NotPermitted)


def test_unserve_ends_a_service(site: Site) -> None:
    exchange = site.exchange()
    client, caller = site.client(exchange), site.client(exchange)
    begun, go_on = threading.Event(), threading.Event()

    def slow(data: Any) -> Any:
        begun.set()
        return go_on.wait(LIMIT) and data

    done(client.serve("slow", slow))
    runs, waits = caller.call("slow", 1), caller.call("slow", 2)
    assert begun.wait(LIMIT)
    done(caller.publish("a", 1))  # behind the calls, so the exchange has passed them on
    done(caller.send(client.id, 1))  # behind them: so they are there
    done(client.unserve("slow"))
    refused = error(waits)
    assert isinstance(refused, Absent)
    assert str(refused) == "slow: the client that was to answer offers this service no more"
    assert str(error(caller.call("slow", 3))) == "call: 'slow': no client offers this service"
    done(client.serve("slow", lambda data: -data))
    assert caller.call("slow", 4).result(LIMIT) == -4
    go_on.set()
    assert runs.result(LIMIT) == 1
    done(client.unserve("slow"), client.unserve("slow"))


def test_call_of_a_service_that_has_ended_is_refused() -> None:
    with plain_server() as server, Client(options_at(server.netloc)) as client:
        client.subscribe("a")
        peer, _ = server.get(timeout=LIMIT)
        server.put(Envelope(EnvelopeKind.REQUEST, 7, "s"), peer)
        while (answer := server.get(timeout=LIMIT).data).kind is EnvelopeKind.SUBSCRIBE:
            pass
        assert (answer.kind, answer.number, answer.detail) == (EnvelopeKind.REFUSED, 7, 1)
        client.close(0)


def test_closed_worker_does_not_end_the_next(site: Site) -> None:
    exchange = site.exchange()
    client = site.client(exchange)
    first = client.jobs("q")
    first.close()
    second = client.jobs("q")
    first.close()
    future = client.push("q", 1)
    job = second.get(LIMIT)
    first.close()
    job.done()
    job.fail("too late")
    done(future)


def test_long_name_is_shortened_in_the_error(site: Site) -> None:
    client = site.client(site.exchange())
    with pytest.raises(InvalidOption) as caught:
        client.publish("a" * 1025, 1)
    assert str(caught.value) == f"topic: '{'a' * 99}…; 1025 bytes; expected 1 to 1024"


def test_unreadable_names_topic_and_sender(site: Site) -> None:
    exchange = site.exchange()
    client, raw = site.client(exchange), site.raw(exchange)
    done(client.subscribe("a"))
    raw.put(Envelope(EnvelopeKind.PUBLISH, 1, "a", data=Stream([b"no pickle"])).pack())
    with pytest.raises(Unreadable) as caught:
        client.get(LIMIT)
    assert str(caught.value).startswith(f"'a': data of {raw.id} cannot be loaded: ")


def test_plain_server_is_suspected_in_the_log(log: LogRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netq.exchange.client._SILENT", 0.01)
    with plain_server() as server, Client(options_at(server.netloc)) as client:
        client.call("a", 1)  # may take as long as it likes
        future = client.publish("a", 1)
        line = log.wait("is it an exchange?")
        assert line.startswith(f"127.0.0.1:{server.netloc.port}: no answer")
        assert not future.done()
        client.close(0)
    assert len(log.having("is it an exchange?")) == 1


def test_a_request_whose_future_is_dropped_tells_its_failure(site: Site, log: LogRecorder) -> None:
    client = site.client(site.exchange(permissions=[]))
    kept = client.publish("kept", 1)
    assert isinstance(error(kept), NotPermitted)
    client.publish("called back", 1).add_done_callback(lambda future: future.exception())
    waited = client.publish("waited for", 1)
    concurrent.futures.wait([waited], LIMIT)
    del waited, kept
    client.publish("dropped", 1)
    log.wait("a request failed, and its future was not looked at: publish: 'dropped'")
    assert not log.having("'kept'")
    assert not log.having("'called back'")
    assert not log.having("'waited for'")


def test_a_request_that_is_answered_before_its_future_is_dropped_tells_its_failure(
    site: Site, log: LogRecorder
) -> None:
    client = site.client(site.exchange(permissions=[]))
    future = client.publish("dropped", 1)
    assert isinstance(error(client.publish("later", 1)), NotPermitted)
    assert future.done()
    assert not log.having("'dropped'")
    del future
    log.wait("a request failed, and its future was not looked at: publish: 'dropped'")


def test_a_wait_that_times_out_is_a_look_at_how_a_request_ends(site: Site, log: LogRecorder) -> None:
    exchange, ended = site.exchange(), threading.Event()
    client, server = site.client(exchange), site.client(exchange)
    go_on = threading.Event()
    done(server.serve("first", lambda data: go_on.wait(LIMIT) and 1 / 0))
    waited = client.call("first", 1)
    assert concurrent.futures.wait([waited], 0).not_done == {waited}
    cast(Any, waited)._done_callbacks.append(lambda future: ended.set())  # add_done_callback is a look
    go_on.set()
    assert ended.wait(LIMIT)
    del waited
    client.call("second", 1)
    assert "second" in log.wait("its future was not looked at")
    assert not log.having("its future was not looked at: first")


def test_what_is_refused_for_good_is_told(site: Site, log: LogRecorder) -> None:
    client = site.client(site.exchange(permissions=[Permission(["*"], publish=["#"])]))
    client.subscribe("topic")
    log.wait("its future was not looked at: subscribe: 'topic'")
    other = site.client(site.exchange(permissions=[]))
    other.serve("service", abs)
    log.wait("its future was not looked at: serve: 'service'")
    worker = other.jobs("queue")
    with pytest.raises(NotPermitted):
        worker.get(LIMIT)  # tells it
    del worker
    assert not log.having("'queue'")


def test_callback_that_blocks_does_not_keep_close(site: Site) -> None:
    exchange = site.exchange()
    client = site.client(exchange)
    begun, go_on = threading.Event(), threading.Event()

    def block(_: Future[Any]) -> None:
        begun.set()
        go_on.wait(LIMIT)

    client.push("q", 1).add_done_callback(block)
    done(client.publish("a", 1))
    exchange.close(LIMIT)
    assert begun.wait(LIMIT)
    closes = threading.Thread(target=client.close, args=(0.01,))
    closes.start()
    closes.join(LIMIT)
    is_over = not closes.is_alive()
    go_on.set()
    closes.join()
    assert is_over


def leave(stream: Stream) -> Any:
    raise SystemExit(f"{stream.nbytes} bytes")


def test_reply_that_ends_its_thread_is_unreadable(site: Site) -> None:
    exchange = site.exchange()
    done(site.client(exchange).serve("s", bytes))
    options = replace(options_at(exchange.netloc), serialization=SerializationOptions(leave))
    with Client(options) as client:
        failed = error(client.call("s", 1))
        assert isinstance(failed, Unreadable)
        assert "SystemExit" in str(failed)
        done(client.publish("a", 1))


def test_exception_of_a_signal_handler_comes_out_of_get(site: Site) -> None:
    class Alarm(Exception):
        pass

    def handle(*_: object) -> None:
        raise Alarm

    def load(stream: Stream) -> Any:
        signal.raise_signal(signal.SIGALRM)

    exchange = site.exchange()
    options = replace(options_at(exchange.netloc), serialization=SerializationOptions(load))
    before = signal.signal(signal.SIGALRM, handle)
    try:
        with Client(options) as client:
            done(client.send(client.id, 1))
            with pytest.raises(Alarm):
                client.get(LIMIT)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_jobs_that_end_with_their_exchange_are_told(site: Site, log: LogRecorder) -> None:
    exchange = site.exchange()
    client = site.client(exchange)
    futures = [client.push("q", number) for number in range(3)]
    done(client.publish("a", 1))
    client.close(LIMIT)
    exchange.close(LIMIT)
    log.wait("the exchange has closed, and its jobs that were not done are lost: 3")
    assert [type(error(future)) for future in futures] == [Closed] * 3


class Blocks(LogHandler):
    """A handler that blocks."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.begun.set()
        self.go_on.wait(LIMIT)


def test_log_handler_that_blocks_does_not_keep_an_exchange(site: Site) -> None:
    exchange = site.exchange()
    with Blocks() as handler:
        client = site.client(exchange)
        future = client.push("q", 1)
        done(client.publish("a", 1))
        client.close(LIMIT)
        closes = threading.Thread(target=exchange.close, args=(0.0,))
        closes.start()
        closes.join(LIMIT)
        is_over = not closes.is_alive()
        assert handler.begun.wait(LIMIT)
        handler.go_on.set()
        closes.join()
    assert is_over
    assert isinstance(error(future), Closed)


ABSENT = """
import netq
from netq.exchange import Client
with netq.new("tcp", "server", netq.CommunicatorOptions(netloc=("127.0.0.1", 0))) as server:
    netloc = server.netloc
client = Client(netq.CommunicatorOptions(netloc=netloc, connection=netq.ConnectionOptions(linger=0.0)))
for number in range(3):
    client.publish("t", number)
"""
BETWEEN = """
import netq.exchange.client
netq.exchange.client._PAUSE = 1000.0
with netq.exchange.Exchange(netq.CommunicatorOptions(netloc=("127.0.0.1", 0))) as exchange:
    client = netq.exchange.Client(netq.CommunicatorOptions(netloc=exchange.netloc))
    client.publish("t", 1).result()
while not client._requester.queue._endpoint.over:
    pass
client.publish("t", 2)
"""


@pytest.mark.parametrize("end", ["", "client.close()"])
@pytest.mark.parametrize(
    ("program", "said"),
    [
        (ABSENT, "3 messages were not delivered: 3 to 127.0.0.1:"),
        (BETWEEN, "a message was not delivered, and its future was not looked at: "),
    ],
    ids=["absent", "between"],
)
def test_end_of_a_process_tells_requests_that_no_exchange_got(program: str, said: str, end: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", program + end], capture_output=True, text=True, timeout=60, check=True
    )
    assert said in ended.stderr
