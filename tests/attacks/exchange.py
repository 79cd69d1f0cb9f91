"""What a client of an exchange notices while others take all they can: `python -m tests.attacks.exchange [ATTACK…]`.

    jobs     101,000 empty jobs for a queue without workers, by one client, which then goes
    ids      jobs from 30 clients, one after the other, each of which pushes all it can, and goes
    refusals a worker refuses 60 jobs with a reason of 10 MB each; their producer does not read
    calls    150,000 calls to a service that never answers, by one client, which then goes
    filters  16 clients with 500 filters a/+/a/… of 64 levels each, and 30 publications of other topics

For each: its seconds; by how many MiB the exchange's process has grown; the median and the longest call of an honest
client before, during and after it; and how many of its calls, jobs and subscriptions were refused.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import netq
import netq.exchange
from netq import CommunicatorOptions, ConnectionOptions, NetworkLocation, SerializationOptions
from netq.errors import NetqError
from netq.exchange import Client
from netq.exchange.envelope import Envelope, EnvelopeKind, Refusal
from netq.utils.stream import Stream

LIMIT = 60.0
_AT_ONCE = 1000  # messages of an attacker that are on their way


class Figures(NamedTuple):
    """What an attack has done."""

    seconds: float
    mib: float  # by which the exchange has grown, at most
    before: list[float]  # seconds of the calls of an honest client
    during: list[float]
    after: list[float]
    refused: int  # calls, jobs and subscriptions of honest clients
    taken: int  # requests of the attackers that were not refused


class Attacker:
    """A client of any bytes. It reads, unless it is deaf."""

    def __init__(self, port: int, *, deaf: bool = False) -> None:
        plain = SerializationOptions(Envelope.parse, lambda data: data)
        connection = ConnectionOptions(window=65536 if deaf else ConnectionOptions.window, linger=0.2)
        netloc = NetworkLocation("127.0.0.1", port)
        self.queue = netq.new(options=CommunicatorOptions(uuid.uuid4(), netloc, connection, plain))
        self.refused = self.sent = 0
        self._handled = threading.Event()
        self._end = -1  # the number of the last request
        self._last: Any = None
        if not deaf:
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()

    def ask(self, kind: EnvelopeKind, name: str, data: bytes = b"", detail: int = 0) -> None:
        """Send a request; wait if too much is on its way."""
        self.sent += 1
        future = self.queue.put(Envelope(kind, self.sent, name, detail=detail, data=Stream([data])).pack())
        if self.sent % _AT_ONCE == 0:
            if self._last is not None:
                self._last.result(LIMIT)
            self._last = future

    def finish(self) -> None:
        """Wait until the exchange has handled all."""
        self.ask(EnvelopeKind.UNSUBSCRIBE, "end")
        self._end = self.sent
        if not self._handled.wait(LIMIT):
            raise TimeoutError(f"no answer within {LIMIT:g} s")

    def close(self) -> None:
        """Say goodbye."""
        self.queue.close(LIMIT)

    def _read(self) -> None:
        with contextlib.suppress(netq.Closed):
            while True:
                answer = self.queue.get().data
                self.refused += answer.kind is EnvelopeKind.REFUSED
                if answer.number == self._end and answer.kind is EnvelopeKind.DONE and not answer.code:
                    self._handled.set()


class Honest:
    """A client that calls, pushes and subscribes all the time, and another one that serves it."""

    def __init__(self, port: int) -> None:
        options = [CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", port)) for _ in range(2)]
        self._server, self._client = map(Client, options)
        self._server.serve("double", lambda number: 2 * number).result(LIMIT)
        self._workers = threading.Thread(target=self._work, daemon=True)
        self._workers.start()
        self.times: list[float] = []
        self.refused = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self, seconds: float = 0.0) -> list[float]:
        """Return the times of the calls since the last time, after so many further seconds, and one call at least."""
        self._stop.wait(seconds)
        while not self.times and self._thread.is_alive():
            self._stop.wait(0.01)
        found, self.times = self.times, []
        return found

    def close(self) -> None:
        """End both."""
        self._stop.set()
        self._thread.join(LIMIT)
        self._client.close(LIMIT)
        self._server.close(LIMIT)
        self._workers.join(LIMIT)

    def _work(self) -> None:
        for job in self._server.jobs("honest", ahead=10):
            job.done()

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.wait(0.005):
                return
            begin = time.monotonic()
            self._try(lambda: self._client.call("double", 1))
            self.times.append(time.monotonic() - begin)
            self._try(lambda: self._client.push("honest", 1))
            filter = f"honest/{number}/+"
            self._try(lambda filter=filter: self._client.subscribe(filter))  # type: ignore[misc]
            self._try(lambda filter=filter: self._client.unsubscribe(filter))  # type: ignore[misc]

    def _try(self, ask: Callable[[], Any]) -> None:
        try:
            ask().result(LIMIT)
        except NetqError:
            self.refused += 1


def jobs(port: int, count: int = 101_000) -> Iterator[Attacker]:
    attacker = Attacker(port)
    for _ in range(count):
        attacker.ask(EnvelopeKind.PUSH, "junk")
    attacker.finish()
    yield attacker


def ids(port: int, count: int = 101_000, clients: int = 30) -> Iterator[Attacker]:
    for number in range(clients):
        attacker = Attacker(port)
        for _ in range(max(100, count >> number)):
            attacker.ask(EnvelopeKind.PUSH, "junk")
        attacker.finish()
        attacker.close()
        yield attacker


def refusals(port: int, count: int = 60, size: int = 10_000_000) -> Iterator[Attacker]:
    producer, worker = Attacker(port, deaf=True), Attacker(port, deaf=True)
    worker.ask(EnvelopeKind.WORK, "refused", detail=count)
    for _ in range(count):
        producer.ask(EnvelopeKind.PUSH, "refused")
    given, reason = 0, Stream([bytes(size)])
    while given < count:
        job = worker.queue.get(timeout=LIMIT).data
        if job.kind is EnvelopeKind.JOB:
            given += 1
            answer = Envelope(EnvelopeKind.REFUSED, job.number, code=Refusal.FAILED, data=reason)
            worker.queue.put(answer.pack(), lane=1).result(LIMIT)
    yield producer
    yield worker


def calls(port: int, count: int = 150_000) -> Iterator[Attacker]:
    server, caller = Attacker(port), Attacker(port)
    server.ask(EnvelopeKind.SERVE, "hang", detail=2**32 - 1)
    server.finish()
    for _ in range(count):
        caller.ask(EnvelopeKind.CALL, "hang")
    caller.finish()
    yield caller
    yield server


def filters(port: int, clients: int = 16, each: int = 500, topics: int = 30) -> Iterator[Attacker]:
    for client in range(clients):
        attacker = Attacker(port)
        for number in range(client * each, (client + 1) * each):
            chosen = f"{number:013b}".replace("0", "a").replace("1", "+")
            attacker.ask(EnvelopeKind.SUBSCRIBE, "/".join("a" * 33 + chosen + "a" * 18))
        attacker.finish()
        yield attacker
    publisher = Attacker(port)
    for number in range(topics):
        publisher.ask(EnvelopeKind.PUBLISH, "/".join(["a"] * 63 + [f"x{number}"]))
    publisher.finish()
    yield publisher


ATTACKS: dict[str, Callable[..., Iterator[Attacker]]] = {
    each.__name__: each for each in (jobs, ids, refusals, calls, filters)
}


def run(attack: str, sizes: dict[str, int] | None = None, pause: float = 1.0, **values: Any) -> Figures:
    """Run an attack on an exchange with these options, in a process of its own.

    pause: seconds that an honest client measures before and after it.
    """
    command = [sys.executable, "-m", "tests.attacks.exchange", "serve", json.dumps(values)]
    exchange = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert exchange.stdout is not None
    try:
        port = int(exchange.stdout.readline())
        honest = Honest(port)
        before = honest.take(pause)
        size = _mib(exchange.pid, "VmRSS")
        begin = time.monotonic()
        attackers = list(ATTACKS[attack](port, **(sizes or {})))
        during = honest.take(0.2)
        seconds = time.monotonic() - begin
        grown = _mib(exchange.pid, "VmHWM") - size
        taken = sum(attacker.sent - attacker.refused for attacker in attackers)
        for attacker in attackers:
            attacker.close()
        after = honest.take(pause)
        honest.close()
    finally:
        exchange.communicate()
    return Figures(seconds, grown, before, during, after, honest.refused, taken)


def serve(values: dict[str, Any]) -> None:
    """Run an exchange until the standard input ends."""
    options = CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 0))
    with netq.exchange.Exchange(options, **values) as exchange:
        print(exchange.netloc.port, flush=True)
        sys.stdin.read()


def _mib(process: int, field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def _shown(times: list[float]) -> str:
    return f"{statistics.median(times) * 1e3:.1f} ms, {max(times) * 1e3:.0f} ms" if times else "none"


def main() -> None:
    """Print the table."""
    print("| attack | seconds | MiB | a call before | during | after (median, longest) | taken | honest refused |")
    print("|---|---|---|---|---|---|---|---|")
    for attack in sys.argv[1:] or ATTACKS:
        found = run(attack)
        calls = " | ".join(map(_shown, (found.before, found.during, found.after)))
        row = f"| {attack} | {found.seconds:.1f} | {found.mib:.0f} | {calls} | {found.taken} | {found.refused} |"
        print(row, flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[2])) if sys.argv[1:2] == ["serve"] else main()
