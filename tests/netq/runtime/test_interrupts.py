"""Signals at each moment: what a handler may do, and where its exception comes out.

Tried at each moment at which CPython lets a handler in: as a function begins, as a loop goes round, and when a call has
returned. A tracing function counts these moments in the main thread, in netq and in whatever netq calls, and at the
n-th the interpreter is told that a signal has come; n goes up from 1 until the operation is through.

A handler behind `netq.outside_steps` raises where that changes nothing: after it, more is sent to and fro, and nothing
may be lost, twice or out of order, no future may stay open, and no thread may hang. Any other handler that raises in
the middle of a step ends the communicator: then nothing may hang either, and each call says why.
"""

from __future__ import annotations

import contextlib
import ctypes
import dis
import functools
import gc
import itertools
import os
import queue
import random
import signal
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

import pytest

import netq
from netq import Closed, CommunicatorOptions, ConnectionOptions, NetworkLocation, Purpose, SecurityOptions, polling
from netq.io import interrupts
from netq.runtime.delivery import Delivery, gather
from netq.security import certificates
from netq.testing import loopback

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_garbage", "python_codec")]

SIGNAL = signal.SIGUSR1  # SIGALRM is pytest-timeout's
LIMIT = 10.0  # seconds; never reached
LATE = 3.0  # seconds for what takes milliseconds: a thread that continues later was woken by chance
THROUGH = 10  # moments, at which an operation was not interrupted: then there are no more
MOST = 700  # of one operation: a thread that waits for long loops
SAMPLE = 4  # a step: each moment is tried with one error or setting, each fourth with the others
RANDOM = 60  # interrupts at random moments, by real signals
MIB = 2**20
FOLDER = str(Path(netq.__file__).parent) + os.sep
SOON: dict[str, Any] = {"retry_min": 0.001, "retry_max": 0.002, "heartbeat": 3600.0}  # no heartbeat helps out
MOMENTS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}  # instructions behind which handlers are let in

_tell = ctypes.PYFUNCTYPE(None, ctypes.c_int, ctypes.py_object)(("PyErr_SetInterruptEx", ctypes.pythonapi))
Record = Callable[[str, object], None]


class Interrupt(BaseException):
    """What a handler raises."""


class Alarm(Exception):
    """What another does."""


class TimeIsUp(TimeoutError):
    """What many do. It looks like an error of a socket."""


@functools.cache
def moments(code: CodeType) -> frozenset[int]:
    """Where a handler may be let in. A jump back that depends is one only if it is taken."""
    return frozenset(
        each.offset
        for each in dis.get_instructions(code)
        if each.opname in MOMENTS or "JUMP_BACKWARD_IF" in each.opname
    )


class Tripwire:
    """A tracing function: has a signal come at the n-th moment, then lets the handler do something.

    put_off: not in the middle of a step, but soon after it. The signal is told by reading an attribute: that is no
    call, so the handler is let in by what is traced, not here.
    """

    _signal = property(functools.partial(_tell, SIGNAL))

    def __init__(self, n: int, do: Callable[[], object], *, put_off: bool = False) -> None:
        self.handled = self.raised = self.told = False
        self._put_off = put_off
        self.where = ""
        self._left = n
        self._do = do
        self._caller: FrameType | None = None  # whose call was the last moment

    @interrupts.interruptible
    def run(self, act: Callable[[], object]) -> BaseException | None:
        """Do something with the wire across it; return what comes out of it."""
        signal.signal(SIGNAL, netq.outside_steps(self._handle) if self._put_off else self._handle)
        before = sys.gettrace()
        try:
            sys.settrace(self)
            try:
                act()
            finally:
                sys.settrace(before)
            self._wait()
        except pytest.fail.Exception:  # of pytest-timeout, which says it once
            raise
        except BaseException as error:
            return error
        return None

    @interrupts.interruptible
    def _wait(self) -> None:
        """Wait for a signal that is put off. A function of its own: a jump back at the end of a `try` passes it by.

        Not in a loop that only spins: the thread that sends the signal again would get the interpreter after 5 ms. Nor
        with an Event: its wait is Python code, which releases a lock that it has not if the handler raises there.
        """
        until = time.monotonic() + LIMIT
        never = threading.Lock()
        never.acquire()
        while self.told and not self.handled and time.monotonic() < until:
            never.acquire(timeout=0.001)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is Tripwire.__call__.__code__:
            self._left, self.told = 1, False  # a jump back that was not taken: at the next moment, then
            return
        sys.settrace(None)
        self.handled = True
        self._do()

    def __call__(self, frame: FrameType, event: str, argument: object) -> Tripwire | None:
        """Be told of a call, and of each bytecode in it."""
        caller, self._caller = self._caller, None
        if event == "call":
            back = frame.f_back
            if not frame.f_code.co_filename.startswith(FOLDER) and (back is None or back.f_trace is not self):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if back is not None and back is caller:
                return self  # the moment of the call, which has been counted
        elif event == "opcode" and frame.f_lasti in moments(frame.f_code):
            self._caller = frame
        else:
            return self
        self._left -= 1
        if self._left:
            return self
        self.told = True
        self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        return self._signal or self


@pytest.fixture(autouse=True)
def handler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the handler back. Collect no garbage meanwhile: an exception in a finaliser is not seen.

    What this module does is a step: a message that `get` has returned is noted before the handler raises. Of the
    signals that are looked through for handlers there are two: the rounds of that loop are alike, and were 500 moments.
    """
    monkeypatch.setattr(interrupts, "_SIGNALS", (signal.SIGINT, SIGNAL))
    monkeypatch.setattr(interrupts, "_STEPS", interrupts._STEPS | {__name__})
    before = signal.getsignal(SIGNAL)
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    signal.signal(SIGNAL, before)


class Total:
    """What has been counted, and what was wrong."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.slowest = 0.0  # seconds, to go on

    def note(self, what: str, text: str) -> None:
        """Count a fault."""
        self.counts[what] += 1
        self.faults.append(f"{what}: {text}")

    def add(self, other: Total) -> None:
        """Count what another has counted."""
        self.counts += other.counts
        self.faults += other.faults
        self.slowest = max(self.slowest, other.slowest)

    def report(self, name: str, record: Record) -> None:
        """Say how it was, and fail if it was not as it should be."""
        kinds = ("lost", "twice", "out of order", "hanging", "late", "swallowed", "turned")
        text = ", ".join(f"{kind} {self.counts[kind]}" for kind in kinds)
        messages = f"{self.counts['messages']} messages, slowest {self.slowest * 1000:.0f} ms"
        text = f"{self.counts['interrupts']} interrupts: {text}; {messages}"
        record("figures", text)
        print(f"\n{name}: {text}", *self.faults, sep="\n    ")
        assert not self.faults


class Talk(Total):
    """A communicator of the main thread, and its peers, which send back what comes, each in a thread of its own.

    A message is the number of a stream and its own. `in_line`: there is a waiter all the time, so that the main
    thread does too, instead of polling.
    """

    def __init__(
        self,
        purpose: Purpose = Purpose.CLIENT,
        peers: int = 1,
        *,
        files: certificates.Files | None = None,
        in_line: bool = False,
        protocol: netq.Protocol = netq.Protocol.TCP,
        **connection: Any,
    ) -> None:
        super().__init__()
        self.futures: dict[tuple[int, int], Delivery] = {}  # of what has been put
        self._numbers = itertools.count()
        self._begun: set[tuple[int, int]] = set()  # what has been put, or perhaps
        self._heard: defaultdict[uuid.UUID, list[tuple[int, int]]] = defaultdict(list)  # by each peer
        self._got: defaultdict[uuid.UUID, list[tuple[int, int]]] = defaultdict(list)  # from each peer
        self._security = {
            Purpose.SERVER: files and SecurityOptions(files.key, files.certificate),
            Purpose.CLIENT: files and SecurityOptions(certificate=files.authority),
        }
        self._protocol = protocol
        self._options = ConnectionOptions(**SOON | connection)
        server = self._new(Purpose.SERVER, NetworkLocation("127.0.0.1", 0))
        clients = [self._new(Purpose.CLIENT, server.netloc) for _ in range(peers)]
        self.main, self.peers = (server, clients) if purpose is Purpose.SERVER else (clients[0], [server])
        self._all = [*clients, server]
        for client in clients:
            future = client.put("hello")
            server.get(client.id, timeout=LIMIT)
            future.result(LIMIT)
        self._threads = [threading.Thread(target=self._answer, args=(peer,)) for peer in self.peers]
        self._threads += [threading.Thread(target=self._wait_for_nobody)] * in_line
        for thread in self._threads:
            thread.start()
        with contextlib.suppress(TimeoutError):
            self.main.get(timeout=0.05 * in_line)  # meanwhile it has come

    def _new(self, purpose: Purpose, netloc: NetworkLocation) -> netq.Communicator:
        options = CommunicatorOptions(netloc=netloc, connection=self._options, security=self._security[purpose])
        return netq.new(self._protocol, purpose, options)

    def _answer(self, peer: netq.Communicator) -> None:
        with contextlib.suppress(Closed):
            while True:
                stream, number, *_ = peer.get().data
                self._heard[peer.id].append((stream, number))
                peer.put((stream, number))

    def _wait_for_nobody(self) -> None:
        with contextlib.suppress(Closed):
            self.main.get(uuid.uuid4())

    def put(self, data: object = None, stream: int = 0) -> Delivery:
        """Put to all."""
        message = stream, next(self._numbers)
        self._begun.add(message)
        self.counts["messages"] += 1
        self.futures[message] = future = self.main.put((*message, data))
        return future

    def get(self, timeout: float = LIMIT) -> None:
        """Get from anybody."""
        peer, message = self.main.get(timeout=timeout)
        self._got[peer].append(message)

    @property
    def came(self) -> int:
        """How many messages have come."""
        return sum(figures.messages_in for figures in self.main.statistics().values())

    def go_on(self, where: str = "") -> None:
        """Send more to and fro, and look what has become of all."""
        start = time.monotonic()
        try:
            for stream in (0, 1):
                self.put(stream=stream)
            lasts = [*self.futures][-2:]
            while not all(set(lasts).issubset(self._got[peer.id]) for peer in self.peers):
                self.get()
            for future in self.futures.values():
                future.exception(LIMIT)
        except TimeoutError:
            self.note("hanging", where)
            raise
        seconds = time.monotonic() - start
        self.slowest = max(self.slowest, seconds)
        if seconds > LATE:
            self.note("late", f"by {seconds:.1f} s {where}")
        self.judge(where)

    def judge(self, where: str, spare: int = 0, *, closed: bool = False) -> None:
        """Compare what was put with what was heard, and that with what was got; begin a new account.

        spare: messages that were not taken.
        """
        failed = {message for message, future in self.futures.items() if future.exception(0)}
        for peer in self.peers:
            heard, got = self._heard.pop(peer.id, []), self._got.pop(peer.id, [])
            for messages in (heard, got):
                if len(set(messages)) < len(messages) or not self._begun.issuperset(messages):
                    self.note("twice", f"{messages} {where}")
                if sorted(messages, key=lambda message: message[0]) != sorted(messages):
                    self.note("out of order", f"{messages} {where}")
            if missing := set(self.futures).difference(heard) - (failed if closed else set()):
                self.note("lost", f"{missing} {where}")
            missing = set(heard).difference(got)
            if len(missing) > spare:
                self.note("lost", f"{missing}, on the way back, {where}")
            spare -= min(len(missing), spare)
        if failed and not closed:
            self.note("lost", f"{failed}, that failed, {where}")
        self._begun.clear()
        self.futures.clear()

    def tried(
        self,
        n: int,
        operation: Operation,
        do: Callable[[], object],
        *expected: type[BaseException],
        put_off: bool = False,
    ) -> Tripwire:
        """Let a handler interrupt an operation at the n-th moment; only what is expected may come out of it."""
        act = operation(self)
        wire = Tripwire(n, do, put_off=put_off)
        error = wire.run(act)
        self.counts["interrupts"] += wire.handled
        if error is not None and type(error) not in expected:
            self.note("turned", f"into {error!r} {wire.where}")
        wire.raised = error is not None
        return wire

    def close(self, where: str = "") -> None:
        """Close all, the clients first."""
        left = 0
        for communicator in self._all:
            start = time.monotonic()
            count = communicator.close(LIMIT)
            left += count if communicator is self.main else 0  # what others put back may fail when this has closed
            if time.monotonic() - start > LATE:
                self.note("late", f"close {where}")
        refused = [part for future in self.futures.values() for part in future.futures if part.exception(0)]
        if left > len(refused):  # `judge` says whether those may have been refused
            self.note("lost", f"{left - len(refused)} by close {where}")
        for thread in self._threads:
            thread.join(LIMIT)

    def drop(self, where: str) -> None:
        """Close all at once. What is not delivered fails."""
        start = time.monotonic()
        for communicator in (self.main, *self.peers):
            communicator.close(0)
        if time.monotonic() - start > LATE:
            self.note("late", f"close {where}")
        for thread in self._threads:
            thread.join(LIMIT)
            if thread.is_alive():
                self.note("hanging", f"a thread {where}")
        for future in self.futures.values():
            if not future.done():
                self.note("hanging", f"a future {where}")


Operation: TypeAlias = Callable[[Talk], Callable[[], object]]  # prepares, and returns what is to be interrupted


def put(talk: Talk) -> Callable[[], object]:
    return talk.put


def put_behind_others(talk: Talk) -> Callable[[], object]:
    for _ in range(8):
        talk.put()
    return talk.put


def put_many(talk: Talk) -> Callable[[], object]:
    return lambda: [talk.put() for _ in range(3)]


def put_large(talk: Talk) -> Callable[[], object]:
    return lambda: talk.put(bytes(MIB))


def result(talk: Talk) -> Callable[[], object]:
    future = talk.put()
    return lambda: future.result(LIMIT)


def result_of_several(talk: Talk) -> Callable[[], object]:
    futures = [talk.put() for _ in range(3)]
    return lambda: [future.exception(LIMIT) for future in futures]


def get(talk: Talk) -> Callable[[], object]:
    before = talk.came
    talk.put()
    while talk.came == before:
        pass
    return talk.get


def get_and_wait(talk: Talk) -> Callable[[], object]:
    talk.put()
    return talk.get


def get_in_vain(talk: Talk) -> Callable[[], object]:
    def act() -> None:
        try:
            talk.get(timeout=0.002)
        except TimeoutError as error:
            if type(error) is not TimeoutError:  # but the handler's
                raise

    return act


def poll(talk: Talk) -> Callable[[], object]:
    talk.put()
    return lambda: polling.poll([talk.main], LIMIT)


def poll_in_vain(talk: Talk) -> Callable[[], object]:
    return lambda: polling.poll([talk.main], 0.002)


OPERATIONS: dict[str, Operation] = {
    operation.__name__: operation
    for operation in (
        *(put, put_behind_others, put_many, put_large),
        *(result, result_of_several, get, get_and_wait, get_in_vain),
        *(poll, poll_in_vain),
    )
}
ERRORS: dict[str, type[BaseException]] = {error.__name__: error for error in (Interrupt, Alarm, TimeIsUp)}
MADE: dict[str, Callable[[certificates.Files], Talk]] = {
    "client": lambda files: Talk(),
    "in line": lambda files: Talk(in_line=True),
    "narrow": lambda files: Talk(window=1),
    "TLS": lambda files: Talk(files=files),
    "server": lambda files: Talk(Purpose.SERVER, 2),
    "shm": lambda files: Talk(protocol=netq.Protocol.SHM),
}


def until_through(interrupt: Callable[[int], bool], step: int = 1) -> None:
    """Interrupt at each `step`-th moment, until that is behind the last: which may be another one each time."""
    through = 0
    for n in range(1, MOST, step):
        through = 0 if interrupt(n) else through + 1
        if through * step >= THROUGH:
            return


def interrupt_all(talk: Talk, name: str, error: type[BaseException], step: int) -> None:
    """Interrupt an operation at each `step`-th moment."""

    def fail() -> None:
        raise error

    def interrupt(n: int) -> bool:
        wire = talk.tried(n, OPERATIONS[name], fail, error, put_off=True)
        if wire.told and not wire.raised:
            talk.note("swallowed", wire.where)
        talk.go_on(wire.where)
        return wire.told

    until_through(interrupt, step)


def attempt(talk: Talk, name: str, record: Record, what: Callable[[], object]) -> None:
    """Do it, close, and report, whatever comes of it."""
    try:
        with contextlib.suppress(TimeoutError):  # it has been noted
            what()
        talk.close()
    finally:
        talk.report(name, record)


def step_of(name: str) -> int:
    """Return the step for the table that has each moment: an operation that repeats another's passes few new ones."""
    return SAMPLE if name in ("put_many", "result_of_several") else 1


AT_EACH_MOMENT = [
    *((name, "client", "Interrupt", step_of(name)) for name in OPERATIONS),
    *(
        (name, "client", "TimeIsUp", SAMPLE)
        for name in ("put_large", "result", "get_and_wait", "get_in_vain", "poll_in_vain")
    ),
    ("get", "narrow", "Interrupt", 1),
    ("get_in_vain", "in line", "Interrupt", 1),
    *((name, "shm", "Interrupt", SAMPLE) for name in ("put_large", "result", "get_and_wait")),
]


@pytest.mark.parametrize(("name", "made", "error", "step"), AT_EACH_MOMENT)
def test_an_exception_at_each_moment(
    name: str, made: str, error: str, step: int, files: certificates.Files, record_property: Record
) -> None:
    talk = MADE[made](files)
    attempt(talk, f"{name}, {made}, {error}", record_property, lambda: interrupt_all(talk, name, ERRORS[error], step))


def test_a_close_that_is_interrupted_is_carried_on_by_the_next(record_property: Record) -> None:
    total = Total()

    def fail() -> None:
        raise Interrupt

    def interrupt(n: int) -> bool:
        talk = Talk()
        for _ in range(3):
            talk.put()
        wire = talk.tried(n, lambda talk: lambda: talk.main.close(LIMIT), fail, Interrupt, put_off=True)
        talk.close(wire.where)
        talk.judge(wire.where, spare=3, closed=True)  # what came back is not taken
        total.add(talk)
        return wire.told

    until_through(interrupt)
    total.report("close", record_property)


@pytest.mark.parametrize("looked", [False, True], ids=["", "after futures.wait"])
def test_a_cancel_that_is_interrupted_happens_or_not_but_not_by_halves(looked: bool, record_property: Record) -> None:
    total = Total()
    client = loopback.Client(
        CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 1), connection=ConnectionOptions(**SOON))
    )

    def fail() -> None:
        raise Interrupt

    def interrupt(n: int) -> bool:
        parts = [client.put(number) for number in range(2)]
        whole, called = gather(client._baton, parts), queue.SimpleQueue[Any]()
        if looked:
            futures.wait([whole, *parts], 0)
        for future in (whole, *parts):
            future.add_done_callback(called.put)
        wire = Tripwire(n, fail, put_off=True)
        wire.run(whole.cancel)
        total.counts["interrupts"] += wire.handled
        for _ in range(3):  # turns of the loop: what was deferred has run
            client._endpoint.home.ask(bool)
        if any(part.withdrawn and not part.cancelled() for part in parts):
            total.note("hanging", f"a part {wire.where}")
        if not whole.cancel() or not whole.cancelled():  # carries on
            total.note("hanging", f"the whole {wire.where}")
        try:
            if {called.get(timeout=LIMIT) for _ in range(3)} != {whole, *parts}:
                total.note("twice", f"a callback {wire.where}")
        except queue.Empty:
            total.note("lost", f"a callback {wire.where}")
        if any(part.recall for part in parts):
            total.note("lost", f"a recall {wire.where}")
        if not called.empty():
            total.note("twice", f"a callback {wire.where}")
        return wire.told

    until_through(interrupt)
    client.close(0)
    total.report("cancel", record_property)


STEPS_NOT_PUT_OFF = {"get": 1, "put_large": 11}  # the first has few moments, the other goes round and round


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_exception_that_is_not_put_off_changes_nothing_or_ends_the_communicator(
    name: str, record_property: Record
) -> None:
    total, broken = Total(), 0

    def fail() -> None:
        raise TimeIsUp

    def interrupt(n: int) -> bool:
        nonlocal broken
        talk = Talk()
        wire = talk.tried(n, OPERATIONS[name], fail, TimeIsUp)
        try:
            talk.go_on(wire.where)
        except Closed as error:
            broken += 1
            if "a signal handler has raised TimeIsUp in the middle of a step" not in str(error):
                talk.note("turned", f"into {error} {wire.where}")
        talk.drop(wire.where)
        total.add(talk)
        return wire.handled

    until_through(interrupt, STEPS_NOT_PUT_OFF.get(name, SAMPLE))
    total.report(f"{name}, not put off, {broken} ended", record_property)
    assert broken or name == "put_behind_others"  # which leaves the step to others


# What a handler may do instead.


@pytest.mark.parametrize(("made", "each"), [("client", True), ("in line", False)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_handler_may_put_at_any_moment(
    name: str, made: str, each: bool, files: certificates.Files, record_property: Record
) -> None:
    talk = MADE[made](files)
    step = step_of(name) if each else SAMPLE

    def interrupt(n: int) -> bool:
        wire = talk.tried(n, OPERATIONS[name], lambda: talk.put(stream=1))
        talk.go_on(wire.where)
        return wire.handled

    attempt(talk, f"{name}, {made}, put", record_property, lambda: until_through(interrupt, step))


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_handler_may_request_a_close_at_any_moment(name: str, record_property: Record) -> None:
    """Messages put before are delivered, and waiting threads get Closed."""
    total = Total()

    def interrupt(n: int) -> bool:
        talk = Talk()
        before = [talk.put() for _ in range(3)]
        wire = talk.tried(n, OPERATIONS[name], talk.main.request_close, Closed, TimeoutError)
        talk.close(wire.where)
        for future in before:
            if error := future.exception(0):
                talk.note("lost", f"{error!r} {wire.where}")
        talk.judge(wire.where, spare=sys.maxsize, closed=True)
        total.add(talk)
        return wire.handled

    until_through(interrupt, 7)
    total.report(f"{name}, request_close", record_property)


@pytest.mark.parametrize(("made", "each"), [("client", False), ("in line", True)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_handler_that_waits_at_any_moment_is_served_or_refused(
    name: str, made: str, each: bool, files: certificates.Files, record_property: Record
) -> None:
    """But never waits for the thread that it interrupts, nor for one that waits for that thread."""
    talk = MADE[made](files)
    told: Counter[str] = Counter()
    step = step_of(name) if each else SAMPLE

    def wait() -> None:
        future = talk.put(stream=1)  # the answer arrives, and a thread of netq wants to tell those in line
        for each in (lambda: future.result(LATE), talk.main.statistics, lambda: get_from_nobody(talk)):
            try:
                each()
                told["served"] += 1
            except RuntimeError as error:
                told["refused" if "signal handler" in str(error) else "other"] += 1
            except TimeoutError:
                talk.note("hanging", "result() in a handler")

    def interrupt(n: int) -> bool:
        wire = talk.tried(n, OPERATIONS[name], wait)
        talk.go_on(wire.where)
        return wire.handled

    attempt(talk, f"{name}, {made}, waits", record_property, lambda: until_through(interrupt, step))
    assert told["other"] == 0
    assert told["served"] + told["refused"] == 3 * talk.counts["interrupts"]


def get_from_nobody(talk: Talk) -> None:
    with contextlib.suppress(TimeoutError):
        talk.main.get(uuid.uuid4(), timeout=0.0)


# Real signals.


@contextlib.contextmanager
def signals(seconds: float) -> Iterator[None]:
    """Send a signal to this thread again and again, at random moments."""
    over, chance, thread = threading.Event(), random.Random(0), threading.get_ident()

    def send() -> None:
        while not over.wait(chance.uniform(0, 2 * seconds)):
            signal.pthread_kill(thread, SIGNAL)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join(LIMIT)


@pytest.mark.parametrize("made", MADE)
def test_an_exception_at_random_moments(made: str, files: certificates.Files, record_property: Record) -> None:
    talk = MADE[made](files)
    armed = False

    def fail(number: int, frame: FrameType | None) -> None:
        nonlocal armed
        if armed:
            armed = False
            talk.counts["interrupts"] += 1
            raise Interrupt

    @interrupts.interruptible
    def interrupt() -> None:
        nonlocal armed
        with contextlib.suppress(Interrupt):
            armed = True
            for _ in range(10):
                talk.put()
                talk.get()
            armed = False

    def interrupt_all() -> None:
        signal.signal(SIGNAL, netq.outside_steps(fail))
        with signals(0.002):
            while talk.counts["interrupts"] < RANDOM:
                interrupt()
                talk.go_on()

    attempt(talk, f"random, {made}", record_property, interrupt_all)
