"""What one hostile client among ten costs a federation: seconds, rounds, and honest clients that were blamed.

    python -m tests.attacks.insiders [--rounds N] [WAY ...]

Nine good clients train for a third of a second each; the tenth is hostile, in a process of its own. The first row has
ten good clients. "Blamed" counts the failures of good clients in the reports, and their suspensions. "Log" counts the
lines of the server, warnings and above. Memory is how far that of the server's process grew at most.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import logging
import multiprocessing
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import fl
import netq
from fl.envelope import Describe, Job, Leave, Offer, Permit
from fl.messages import MESSAGES, Reply, Task
from netq import CommunicatorOptions, ConnectionOptions, NetworkLocation
from netq.protocol.sender import Sender
from netq.utils.stream import Stream, layout
from tests.attacks.stalls import LogLines, Memory
from tests.fl.federation import grouped

TRAINING = 1 / 3  # seconds
DEADLINE = 1.0
GOOD = 9
LIMIT = 60.0  # seconds for what takes a moment
LONGEST = 150.0  # seconds of a case
FEW = 8  # messages of a flood that are on their way at once
HOSTILE = 666  # the id of the first hostile client, as a number

_RAW = replace(MESSAGES, dump=lambda message: message if isinstance(message, Stream) else MESSAGES.dump(message))
_spawn = multiprocessing.get_context("spawn")


def model(size: int) -> dict[str, Any]:
    """Return a model of `size` bytes."""
    return {"w": np.zeros(size // 4, np.float32)}


def steady(model: Mapping[str, Any], config: object) -> fl.Update:
    """Train for a third of a second."""
    time.sleep(TRAINING)
    return fl.Update({name: np.asarray(array) + 1 for name, array in model.items()}, 100, {"accuracy": 0.5})


def take_part(netloc: NetworkLocation, number: int) -> None:
    """Be a good client."""
    logging.disable()
    options = CommunicatorOptions(id=uuid.UUID(int=number), netloc=netloc, connection=ConnectionOptions(retry_max=0.2))
    fl.Client(steady).run(options)


# The hostile client.


class Hostile:
    """A client that puts what it likes, as it likes. It comes back when it is refused."""

    def __init__(self, netloc: NetworkLocation, size: int, number: int = HOSTILE) -> None:
        self.id = uuid.UUID(int=number)
        self.size = size  # bytes of the model
        self.netloc = netloc
        self.task: Task | None = None  # the last one

    @contextlib.contextmanager
    def session(self, **connection: Any) -> Iterator[netq.Communicator]:
        """Be connected."""
        settings = ConnectionOptions(retry_max=0.2, linger=0.0, **connection)
        options = CommunicatorOptions(self.id, self.netloc, settings, serialization=_RAW)
        with netq.new(purpose=netq.Purpose.CLIENT, options=options) as queue:
            try:
                yield queue
            finally:
                queue.close(0.0)

    def next(self, queue: netq.Communicator, timeout: float | None = None) -> Any:
        """Return the next message, and note a task. Raises TimeoutError, Closed."""
        message = queue.get(timeout=timeout).data
        if isinstance(message, Task):
            self.task = message
        return message

    def update(self, task: Task, **changes: Any) -> Reply:
        """Return a good update, or another one."""
        fields = {"model": {"w": np.ones(self.size // 4, np.float32)}, "num_examples": 100, **changes}
        return Reply(task.job, fl.Update(**fields))

    def tasks(self, **connection: Any) -> Iterator[tuple[netq.Communicator, Task]]:
        """Yield each task that comes, in any number of sessions."""
        while True:
            with self.session(**connection) as queue, contextlib.suppress(netq.Closed):
                while True:
                    message = self.next(queue)
                    if isinstance(message, Task):
                        yield queue, message

    def flood(self, make: Callable[[], Any], at_once: int = FEW) -> None:
        """Put as many as the server takes, and read tasks meanwhile."""
        while True:
            with self.session() as queue, contextlib.suppress(netq.Closed):
                waiting: list[Any] = []
                while True:
                    with contextlib.suppress(TimeoutError):
                        self.next(queue, timeout=0.0)
                    waiting = [each for each in waiting if not each.done()]
                    if len(waiting) >= at_once:
                        with contextlib.suppress(TimeoutError, netq.NetqError):
                            waiting[0].result(0.05)
                        continue
                    waiting.append(queue.put(make()))


class Trickle:
    """A relay whose way to the server may be slow. `rate`: bytes a second."""

    def __init__(self, upstream: NetworkLocation) -> None:
        self.rate = float("inf")
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.netloc = NetworkLocation(*self._listener.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, far = self._listener.accept()[0], socket.create_connection((self._upstream.host, self._upstream.port))
            for source, target, is_up in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pump, args=(source, target, is_up), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(int(min(65536, max(1, self.rate / 10))) if is_up else 65536):
                target.sendall(data)
                if is_up and self.rate < 1e9:
                    time.sleep(len(data) / self.rate)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def raw(text: bytes, buffers: int = 0) -> Stream:
    """Return a message of this text, and of empty buffers."""
    return Stream(layout([text], [memoryview(b"")] * buffers))


def shapes_of_one_hash(count: int) -> bytes:
    """Return references to one empty buffer, with shapes whose tuples have one hash (CPython's tuplehash, xxHash)."""
    prime1, prime2, prime5 = 11400714785074694791, 14029467366897019727, 2870177450012600261
    bits = (np.arange(2**19, dtype="u8")[:, None] >> np.arange(19, dtype="u8")) & np.uint64(1)
    hashes = np.full(2**19, prime5, "u8")

    def turned(values: Any, bits: int) -> Any:
        return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))

    for column in (np.zeros(2**19, "u8"), *bits.T):
        hashes = turned(hashes + column * np.uint64(prime2), 31) * np.uint64(prime1)
    with np.errstate(over="ignore"):
        wanted = turned(np.uint64(12345678901234567) * np.uint64(pow(prime1, -1, 2**64)), 33)
        last = (wanted - hashes) * np.uint64(pow(prime2, -1, 2**64))
    found = np.flatnonzero(last < 2**61 - 2)[:count]
    shapes = (",".join(map(str, (0, *map(int, bits[row]), int(last[row])))) for row in found)
    return b"[" + b",".join(b'{"$array":[0,"|u1",[%s]]}' % shape.encode() for shape in shapes) + b"]"


def silent(self: Hostile) -> None:
    """Answer no task."""
    for _ in self.tasks():
        pass


def new_session_each_round(self: Hostile) -> None:
    """Answer no task, and come back with a new session for each."""
    while True:
        with self.session() as queue, contextlib.suppress(netq.Closed, TimeoutError):
            self.next(queue, timeout=2 * DEADLINE)
            time.sleep(1.5 * DEADLINE)


def some_tasks(self: Hostile, pattern: Iterable[bool]) -> None:
    """Answer tasks, or not, in this pattern."""
    for (queue, task), answers in zip(self.tasks(), pattern, strict=False):
        if answers:
            queue.put(self.update(task))


def each_task_but(divisor: int) -> Iterator[bool]:
    """Yield False for each task whose number this divides."""
    return itertools.cycle([True] * (divisor - 1) + [False])


def whenever_waited_for() -> Iterator[bool]:
    """Yield False when rounds wait for the client: three times, and after each suspension (fl/server/standing.py)."""
    yield from (False, False, False)
    for owed in (8, 16, 32, *itertools.repeat(64)):
        yield from [True] * owed
        yield False


def offer_only(self: Hostile) -> None:
    """Offer the largest update, and never send it."""
    for queue, task in self.tasks():
        queue.put(Offer(task.job, max(self.size, task.unasked + 1)))


def begun(self: Hostile, seconds: float, *, answers: bool) -> None:
    """Begin messages that fill what the server has for all, a byte of each, and go on with none.

    seconds: after which it has a new session.
    """
    sender: Any = Sender
    ready, chunk = sender.ready.fget, sender.chunk
    sender.ready = property(lambda self: not (self.lane and self.number < self.next) and ready(self))
    sender.chunk = lambda self, most, grid=0: chunk(self, 1 if self.lane else most, 0)
    while True:
        with self.session() as queue, contextlib.suppress(netq.Closed):
            for lane in range(1, 15):
                queue.put(Stream([bytes(4 * self.size + 10**6)]), lane=lane)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                with contextlib.suppress(TimeoutError):
                    if isinstance(task := self.next(queue, timeout=0.02), Task):
                        queue.put(self.update(task) if answers else Reply(task.job, "no"))
            queue.close(0.0)


def drops_after_a_permit(self: Hostile, rate: float = 3000.0, *, sessions: int = 1) -> None:
    """Offer, and send the update at a rate as of drops. `sessions`: tasks in one."""
    upstream = self.netloc
    while True:
        relay = Trickle(upstream)
        self.netloc = relay.netloc
        for number, (queue, task) in zip(range(sessions), self.tasks(), strict=False):
            relay.rate = float("inf")
            queue.put(Offer(task.job, max(self.size, task.unasked + 1)))
            with contextlib.suppress(TimeoutError, netq.Closed):
                if isinstance(self.next(queue, timeout=DEADLINE), Permit) or number == 0:
                    relay.rate = rate
                    queue.put(self.update(task))
                    time.sleep(DEADLINE)


def drops_without_an_offer(self: Hostile) -> None:
    """Send four models without being asked, by drops."""
    relay = Trickle(self.netloc)
    self.netloc = relay.netloc
    with self.session() as queue:
        time.sleep(1.0)
        relay.rate = 3000.0
        queue.put(Stream([bytes(4 * self.size)]))
        with contextlib.suppress(netq.Closed):
            while True:
                self.next(queue)


def as_slow_as_allowed(self: Hostile) -> None:
    """Send each update in nine tenths of the deadline."""
    drops_after_a_permit(self, self.size / (0.9 * DEADLINE), sessions=10**6)


def tensors_without_elements(self: Hostile) -> None:
    """Reply with 60,000 tensors of no element."""
    content = b'{"type":"Update","model":{%s},"num_examples":1,"metrics":{},"extra":{}}'
    text = b'{"type":"Reply","job":[1,1,"train"],"content":%s}' % content
    tensors = b",".join(b'"%d":{"$array":[0,"<f4",[0]]}' % number for number in range(60_000))
    self.flood(lambda: raw(text % tensors, 1))


def junk_metrics(self: Hostile) -> None:
    """Report 1,000 metrics that no one else has, each as large as it may be."""
    for queue, task in self.tasks():
        names = [f"$\\frac{{{number}{'x' * 80}" for number in range(999)]
        queue.put(self.update(task, metrics={**dict.fromkeys(names, 1e308), "accuracy": 1.7e308}))


def offers_without_end(self: Hostile) -> None:
    """Repeat the offer of each task, and read little."""
    job = Offer(Job(1, 1, "train"), 2**30)
    self.flood(lambda: job if self.task is None else Offer(self.task.job, self.task.unasked + 1), 2000)


def replies_without_end(self: Hostile) -> None:
    """Answer the task before the present one, again and again."""
    job = Job(1, 1, "train")
    self.flood(lambda: Reply(job if self.task is None else self.task.job, "no"), 2000)


def connections(self: Hostile) -> None:
    """Begin sessions, and end them."""
    while True:
        with self.session():
            time.sleep(0.01)


def lanes(self: Hostile) -> None:
    """Put small messages on all lanes."""
    turn = itertools.count()
    while True:
        with self.session() as queue, contextlib.suppress(netq.Closed):
            while True:
                queue.put(Leave("x"), lane=next(turn) % 8).result(LIMIT)


def no_reading(self: Hostile) -> None:
    """Take no message, and stay connected."""
    with self.session(window=1, memory=2):
        time.sleep(LONGEST)


def damaged_updates(self: Hostile) -> None:
    """Send updates that are NaN, or of another shape, or too large, or claim most examples."""
    choice = random.Random(1)
    wrong: list[Callable[[], dict[str, Any]]] = [
        lambda: {"model": {"w": np.full(self.size // 4, np.nan, np.float32)}},
        lambda: {"model": {"w": np.ones(3, np.float32)}},
        lambda: {"model": {"v": np.ones(self.size // 4, np.float32)}},
        lambda: {"extra": {"x": np.ones(self.size // 4, np.float64)}},
    ]
    for queue, task in self.tasks():
        queue.put(self.update(task, **choice.choice(wrong)()))


WAYS: dict[str, Callable[[Hostile], None]] = {
    "no answer": silent,
    "no answer, a new session each round": new_session_each_round,
    "every second task": lambda self: some_tasks(self, each_task_but(2)),
    "three of four tasks": lambda self: some_tasks(self, each_task_but(4)),
    "eleven of twelve tasks": lambda self: some_tasks(self, each_task_but(12)),
    "no task that a round waits for": lambda self: some_tasks(self, whenever_waited_for()),
    "offers, and does not send": offer_only,
    "sends by drops after a permit": lambda self: drops_after_a_permit(self, sessions=10**6),
    "the same, a new session each round": drops_after_a_permit,
    "sends by drops without an offer": drops_without_an_offer,
    "sends in 0.9 of the deadline": as_slow_as_allowed,
    "begins messages, goes on with none": lambda self: begun(self, LIMIT, answers=True),
    "the same, fails, and begins anew": lambda self: begun(self, DEADLINE, answers=False),
    "4 MB of [[],[], …]": lambda self: self.flood(lambda: raw(b"[%s]" % b",".join([b"[]"] * 1_390_000))),
    "3.5 MB of {}": lambda self: self.flood(lambda: raw(b"{%s}" % b",".join(b'"%d":{}' % n for n in range(350_000)))),
    "60,000 tensors without elements": tensors_without_elements,
    "65,536 empty buffers": lambda self: self.flood(lambda: raw(b"[]", 65_536)),
    "24,000 shapes of one hash": lambda self: self.flood(functools.partial(raw, shapes_of_one_hash(24_000), 1)),
    "junk of 20 bytes": lambda self: self.flood(lambda: Stream([bytes(20)]), 2000),
    "Leave without end": lambda self: self.flood(lambda: Leave("x" * 500), 2000),
    "Offer without end": offers_without_end,
    "Reply without end": replies_without_end,
    "Describe without end": lambda self: self.flood(lambda: Describe("x" * 500), 2000),
    "small messages on all lanes": lanes,
    "1,000 metrics of its own": junk_metrics,
    "damaged updates": damaged_updates,
    "connects without end": connections,
    "takes no message": no_reading,
}


def attack(way: str, netloc: NetworkLocation, size: int, number: int) -> None:
    """Be hostile in this way, until the process is ended."""
    logging.disable()
    with contextlib.suppress(netq.Closed):
        WAYS[way](Hostile(netloc, size, number))


# The federation.


class Result(NamedTuple):
    """What a case showed."""

    seconds: float
    counted: int  # rounds
    accuracies: int  # reports with the metric that all good clients have
    blamed: int
    log: int
    memory: str
    end: str


def run(*ways: str, rounds: int, size: int, good: int = GOOD, **settings: Any) -> Result:
    """Run rounds with good clients, and a hostile one for each way."""
    log, reports, end = LogLines(), [], ""
    options = CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))
    settings = {"deadline": DEADLINE, "grace": 1.0, "void_pause": 0.1, "min_clients": good - 1, **settings}
    with fl.Server(model(size), options, **grouped(settings)) as server, contextlib.ExitStack() as stack:
        calls: list[Any] = [(take_part, (server.netloc, number)) for number in range(good)]
        calls += [(attack, (way, server.netloc, size, HOSTILE + number)) for number, way in enumerate(ways)]
        for function, arguments in calls:
            process = _spawn.Process(target=function, args=arguments)
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)
        until = time.monotonic() + LIMIT
        missing = {uuid.UUID(int=number) for number in (*range(good), *range(HOSTILE, HOSTILE + len(ways)))}
        while missing := missing - {*server.clients}:  # the hostile ones may come and go
            server._members.sessions_changed.wait(0.1)
            assert time.monotonic() < until
        begin = time.monotonic()
        with Memory() as memory:
            try:
                for report in server.rounds(rounds):
                    reports.append(report)
                    if time.monotonic() - begin > LONGEST:
                        end = f"after {LONGEST:g} s"
                        break
            except fl.FederationStalled:
                end = "FederationStalled"
        seconds = time.monotonic() - begin
        server.close(0.0)
    honest = [uuid.UUID(int=number) for number in range(good)]
    return Result(
        seconds,
        sum(len(report.clients) >= good for report in reports),
        sum("accuracy" in report.metrics for report in reports if report.clients),
        sum((peer in report.failures) + (peer in report.suspended) for report in reports for peer in honest),
        len(log.lines),
        str(memory),
        end,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--size", type=int, default=1_000_000, help="bytes of the model")
    parser.add_argument("--memory-limit", type=int, help="of the server")
    parser.add_argument("ways", nargs="*", metavar="WAY")
    options = parser.parse_args()
    settings = {"rounds": options.rounds, "size": options.size, "memory_limit": options.memory_limit}
    usual = min(run(good=GOOD + 1, **settings).seconds for _ in range(2))
    print(f"ten good clients: {usual:.1f} s for {options.rounds} rounds, the lower of two runs\n")
    print("| the tenth client | s | times as long | rounds of all | with their metric | blamed | log | memory | |")
    print(f"{'|---' * 9}|")
    for way in options.ways or WAYS:
        found = run(way, **settings)
        figures = (found.counted, found.accuracies, found.blamed, found.log, found.memory, found.end)
        ratio = found.seconds / usual
        print(f"| {way} | {found.seconds:.1f} | {ratio:.2f} | {' | '.join(map(str, figures))} |", flush=True)


if __name__ == "__main__":
    main()
