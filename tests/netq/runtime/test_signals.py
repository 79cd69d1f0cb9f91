"""A signal handler interrupts the main thread anywhere: it may raise, put and request a close."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import random
import signal
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import TypeAlias

import pytest

import netq
from netq.errors import Closed, Unreadable
from netq.io.baton import Baton
from netq.options import CommunicatorOptions, EventOptions, NetworkLocation, SerializationOptions
from netq.protocol.memory import Memory
from netq.protocol.receiver import Item, Receiver
from netq.runtime.inbox import Inbox
from netq.testing import loopback
from netq.utils.stream import Stream

pytestmark = pytest.mark.usefixtures("python_codec")

PEERS = [uuid.UUID(int=number) for number in range(3)]
EACH = 500
LIMIT = 20.0

Pair: TypeAlias = tuple[netq.Communicator, netq.Communicator]
Handle = Callable[[Callable[[], object]], None]


class Alarm(Exception):
    """What the handler raises."""


@pytest.fixture
def handle() -> Iterator[Handle]:
    """Have SIGALRM call a function. Python would drop an exception that it raises in a callback of the collector."""
    before, callbacks = signal.getsignal(signal.SIGALRM), gc.callbacks.copy()
    gc.callbacks.clear()

    def handle(function: Callable[[], object]) -> None:
        def handler(number: int, frame: FrameType | None) -> None:
            function()

        signal.signal(signal.SIGALRM, handler)

    yield handle
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    gc.callbacks.extend(callbacks)


def raise_alarm() -> None:
    raise Alarm


def full() -> Inbox:
    inbox = Inbox()
    receivers = {peer: Receiver(0, 2**30, Memory(), merge=True) for peer in PEERS}
    for number in range(1, EACH + 1):
        inbox.arrived.extend([(peer, b"", receivers[peer], number) for peer in PEERS])
    return inbox


def take_all(inbox: Inbox, got: list[Item]) -> None:
    got.extend(iter(functools.partial(inbox.take_now, ()), None))  # no code of this test runs between two messages


def take_all_for_ever(inbox: Inbox, got: list[Item], seconds: float) -> None:
    """Take all until the signal comes, after so many seconds."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    while True:
        take_all(inbox, got)


@pytest.mark.slow
@pytest.mark.usefixtures("handle")
def test_an_exception_outside_steps_loses_no_message() -> None:
    signal.signal(signal.SIGALRM, netq.outside_steps(raise_on_signal))
    chance = random.Random(0)
    for _ in range(20):
        inbox, got = full(), list[Item]()
        with pytest.raises(Alarm):
            take_all_for_ever(inbox, got, chance.uniform(0.0001, 0.004))
        take_all(inbox, got)
        for peer in PEERS:
            assert [number for whose, _, _, number in got if whose == peer] == list(range(1, EACH + 1))


class Finalised:
    """Raises the signal when it is freed."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGALRM)


@pytest.mark.usefixtures("handle")
def test_an_exception_of_a_handler_is_put_off_to_the_end_of_a_finaliser() -> None:
    """Python drops one that comes out of it."""
    signal.signal(signal.SIGALRM, netq.outside_steps(raise_on_signal))
    with pytest.raises(Alarm):
        wait_after(Finalised())


def wait_after(*freed: object) -> None:
    del freed
    threading.Event().wait(LIMIT)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with loopback.Server(CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))) as server:
        client = loopback.Client(CommunicatorOptions(netloc=server.netloc))
        client.put("here").result(LIMIT)
        assert server.get(timeout=LIMIT).data == "here"
        yield server, client
        client.close()


def get_and_wait(server: netq.Communicator, got: list[object]) -> None:
    got.append(server.get(timeout=LIMIT).data)
    threading.Event().wait(LIMIT)


def test_ctrl_c_on_the_way_out_of_get_loses_no_message(pair: Pair) -> None:
    server, client = pair
    got: list[object] = []

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code is netq.Communicator._unpack.__code__:
            sys.settrace(before)
            signal.raise_signal(signal.SIGINT)

    client.put("message")
    before = sys.gettrace()
    sys.settrace(interrupt)
    with pytest.raises(KeyboardInterrupt):
        get_and_wait(server, got)
    assert got == ["message"]


def test_close_sets_pythons_own_handler_for_ctrl_c_again(pair: Pair) -> None:
    """Without it, asyncio.run and trio.run leave Ctrl-C to what they find."""
    for communicator in reversed(pair):
        with pytest.raises(TimeoutError):
            communicator.get(timeout=0)
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        communicator.close(0)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class CallableHandler:
    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise Alarm

    def method(self, number: int, frame: FrameType | None) -> None:
        raise Alarm


def raise_on_signal(number: int, frame: FrameType | None) -> None:
    raise Alarm


def load_and_be_interrupted(stream: Stream) -> object:
    signal.raise_signal(signal.SIGALRM)
    return bytes(stream)


class Interrupted:
    """Raises the signal while it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[int]]:
        return signal.raise_signal, (signal.SIGALRM,)


class Dumped:
    """Raises the signal while it is pickled."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        signal.raise_signal(signal.SIGALRM)
        return Dumped, ()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    "handler",
    [raise_on_signal, CallableHandler(), CallableHandler().method, functools.partial(CallableHandler().method)],
    ids=["function", "callable", "method", "partial"],
)
def test_an_exception_of_a_handler_in_load_changes_nothing(
    handle: Handle, handler: Callable[..., object], own: bool
) -> None:
    serialization = SerializationOptions(load=load_and_be_interrupted) if own else SerializationOptions()
    options = CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0), serialization=serialization)
    with loopback.Server(options) as server, loopback.Client(CommunicatorOptions(netloc=server.netloc)) as client:
        signal.signal(signal.SIGALRM, handler)
        client.put(Interrupted())
        client.put("next")
        with pytest.raises(Alarm) as raised:
            server.get(timeout=LIMIT)
        assert "load" in "".join(traceback.format_tb(raised.tb))
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        first, second = (server.get(timeout=LIMIT).data for _ in range(2))
        assert (b"raise_signal" in first and b"next" in second) if own else (first, second) == (None, "next")


def test_an_exception_of_a_handler_in_dump_changes_nothing(handle: Handle, pair: Pair) -> None:
    server, client = pair
    handle(raise_alarm)
    with pytest.raises(Alarm):
        client.put(Dumped())
    client.put("next")
    assert server.get(timeout=LIMIT).data == "next"


def test_an_exception_of_a_message_in_load_is_unreadable(handle: Handle) -> None:
    def load(stream: Stream) -> object:
        raise Alarm

    handle(raise_alarm)
    options = CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0), serialization=SerializationOptions(load=load))
    with loopback.Server(options) as server, loopback.Client(CommunicatorOptions(netloc=server.netloc)) as client:
        client.put(1)
        with pytest.raises(Unreadable):
            server.get(timeout=LIMIT)
        client.put(2)
        with ThreadPoolExecutor(1) as pool, pytest.raises(Unreadable):
            pool.submit(server.get, timeout=LIMIT).result(LIMIT)


WAITING: dict[str, Callable[[netq.Communicator], object]] = {
    "get": lambda client: client.get(timeout=LIMIT),
    "result": lambda client: client.put(b"").result(LIMIT),
    "statistics": lambda client: client.statistics(),
    "close": lambda client: client.close(),
}


@pytest.mark.parametrize("name", WAITING)
def test_calls_that_wait_are_refused_in_a_handler_on_a_wait(handle: Handle, name: str) -> None:
    """And the wait goes on."""
    with (
        netq.new(purpose="server", options=CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))) as server,
        netq.new(options=CommunicatorOptions(netloc=server.netloc)) as client,
    ):
        client.put("here").result(LIMIT)
        refused: list[str] = []

        def interrupt() -> None:
            try:
                WAITING[name](client)
            except RuntimeError as error:
                refused.append(str(error))
            server.put("an answer")

        handle(interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert client.get(timeout=LIMIT).data == "an answer"
        assert [f"{name}()" in why and "request_close()" in why for why in refused] == [True]


def test_a_handler_may_put_on_top_of_put(handle: Handle) -> None:
    chance = random.Random(0)
    with (
        netq.new(purpose="server", options=CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))) as server,
        netq.new(options=CommunicatorOptions(netloc=server.netloc)) as client,
    ):
        client.put(("main", 0)).result(LIMIT)
        mine, interrupts, done = itertools.count(1), itertools.count(), threading.Event()

        def interrupt() -> None:
            if done.is_set():  # a signal that had arrived before the timer was stopped
                return
            client.put(("handler", next(interrupts)))
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.001))

        handle(interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        for _ in range(20_000):
            client.put(("main", next(mine)))
        done.set()
        signal.setitimer(signal.ITIMER_REAL, 0)
        client.put(None).result(LIMIT)
        came: dict[str, list[int]] = {"main": [], "handler": []}
        while (data := server.get(timeout=LIMIT).data) is not None:
            came[data[0]].append(data[1])
        assert came["main"] == list(range(20_001))
        assert came["handler"] == list(range(next(interrupts)))
        assert came["handler"]


def test_request_close_in_a_handler_ends_waiting_gets(handle: Handle) -> None:
    with loopback.Server(CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))) as server:
        client = loopback.Client(CommunicatorOptions(netloc=server.netloc))
        client.put("here").result(LIMIT)
        assert server.get(timeout=LIMIT).data == "here"
        handle(server.request_close)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with ThreadPoolExecutor(1) as pool:
            left = pool.submit(_put_and_leave, client)
            assert server.get(timeout=LIMIT).data == "what is still put"
            with pytest.raises(Closed, match="this communicator is closed"):
                server.get(timeout=LIMIT)
            assert left.result(LIMIT) == 0
        assert isinstance(server.put("too late").exception(LIMIT), Closed)
        server.request_close()
        assert server.close(LIMIT) == 1, "the late one"
        server.request_close()


def _put_and_leave(client: netq.Communicator) -> int:
    with contextlib.suppress(Closed):
        client.get(timeout=LIMIT)
    client.put("what is still put").result(LIMIT)
    return client.close(LIMIT)


def test_an_event_may_request_a_close() -> None:
    told: list[netq.Communicator] = []
    options = CommunicatorOptions(
        netloc=NetworkLocation("127.0.0.1", 0), events=EventOptions(ini=lambda peer: told[0].request_close())
    )
    with loopback.Server(options) as server:
        told.append(server)
        with loopback.Client(CommunicatorOptions(netloc=server.netloc)) as client, pytest.raises(Closed):
            client.get(timeout=LIMIT)


@pytest.mark.parametrize("then", ["raise", "close"])
def test_a_signal_just_before_wake_does_not_leave_the_loop_asleep(
    handle: Handle, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loopback.Server(CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))) as server:
        client = loopback.Client(CommunicatorOptions(netloc=server.netloc))
        client.put("here").result(LIMIT)
        wake = Baton.wake

        def interrupted(baton: Baton) -> None:
            monkeypatch.setattr(Baton, "wake", wake)
            signal.raise_signal(signal.SIGALRM)
            wake(baton)

        handle(raise_alarm if then == "raise" else client.request_close)
        began = time.monotonic()
        monkeypatch.setattr(Baton, "wake", interrupted)
        with contextlib.suppress(Alarm):
            client.put("interrupted")
        while Baton.wake is not wake:  # the loop was awake, so `wake` was not called
            with contextlib.suppress(Alarm):
                client.put("again")
        client.put("next").exception(LIMIT)
        if then == "raise":
            with pytest.raises(Closed, match="a signal handler has raised Alarm in the middle of a step"):
                client.get(timeout=LIMIT)
        client.close()
    assert time.monotonic() - began < 8.0, "only the loop's own timer, each 10 s, has woken it"


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("begun", [False, True], ids=["before", "after"])
def test_a_constructor_interrupted_at_start_leaves_nothing(
    begun: bool, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, starts = threading.Thread.start, itertools.count(1)

    def interrupted(thread: threading.Thread) -> None:
        is_loop = thread.name != "netq-log"  # that one is started by a loop's thread, where no signal handler runs
        last = is_loop and next(starts) == workers
        if begun or not last:
            start(thread)
        if last:
            raise Alarm

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    options = CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0), workers=workers)
    with pytest.raises(Alarm):
        netq.new(purpose=netq.Purpose.SERVER, options=options)
    monkeypatch.undo()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("netq")]
