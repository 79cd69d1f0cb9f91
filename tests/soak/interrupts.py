"""python -m tests.soak.interrupts COUNT PROTOCOL [SEED]: real SIGINTs at random moments in put, get, result and close.

The main thread talks with a thread that sends back what comes, with Python's own handler of Ctrl-C. It catches each
KeyboardInterrupt, and calls again. A message whose `put` was interrupted may come or not, but not twice. Prints a line
of figures, and what was wrong; then the exit status is 1.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import itertools
import operator
import queue
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import netq
from netq import Closed, CommunicatorOptions, ConnectionOptions, NetworkLocation, Protocol, Purpose

ANY = NetworkLocation("127.0.0.1", 0)
LIMIT = 10.0  # seconds of a call; a longer one hangs
BATCHES = 40  # on one pair of communicators
MOST = {64: 50, 64 * 1024: 10, 1024 * 1024: 3}  # messages of a batch, by their bytes
SWITCH = 0.0001  # seconds after which another thread gets its turn: then signals come in short calls, too


class Signals:
    """Sends SIGINT to the main thread, at most one in each batch of calls, from a thread of its own."""

    def __init__(self, chance: random.Random) -> None:
        self.counts: Counter[str] = Counter()  # exceptions, by what they came out of
        self.elsewhere = 0  # of them, those that came just before or after the calls
        self.slowest = 0.0  # seconds of a batch of calls
        self._chance = chance
        self._usual: dict[str, float] = {}  # seconds that a batch of calls takes, by name
        self._repeated, self._since = "", 0.0  # the calls that were interrupted, and when they were made first
        self._orders = queue.SimpleQueue[list[float] | None]()  # the delay of each; who removes it decides
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._orders.put(None)
        self._thread.join()

    def during(self, name: str, into: list[Any], calls: Iterable[Any]) -> bool:
        """Make calls, which a signal may interrupt, and keep what they return; return whether one did.

        No code runs between a call and the next: what has been returned is kept, whenever a signal comes.
        """
        order = [self._chance.uniform(0, 1.5 * self._usual.get(name, 0.001))]
        faulthandler.dump_traceback_later(3 * LIMIT, exit=True)
        start = time.monotonic()
        if name != self._repeated:
            self._since = start
        if start - self._since > LIMIT:
            raise TimeoutError(f"{name} again and again")
        self._repeated = ""
        try:
            self._orders.put(order)
            into.extend(calls)
            try:
                order.pop()
            except IndexError:  # a signal has been sent, and comes
                for _ in range(1000):  # a signal just before one sleep ends the next
                    time.sleep(LIMIT / 1000)
                raise TimeoutError("a signal has not come") from None
        except KeyboardInterrupt as error:
            self._repeated = name
            self.counts[name] += 1
            self.elsewhere += not _is_of_netq(error)
            return True
        finally:
            seconds = time.monotonic() - start
            self.slowest = max(self.slowest, seconds)
        self._usual[name] = seconds if name not in self._usual else 0.8 * self._usual[name] + 0.2 * seconds
        return False

    def _send(self) -> None:
        main = threading.main_thread().ident or 0
        while (order := self._orders.get()) is not None:
            time.sleep(order[0] if order else 0)
            with contextlib.suppress(IndexError):
                order.pop()
                signal.pthread_kill(main, signal.SIGINT)


def _is_of_netq(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals["__name__"].startswith("netq."):
            return True
        trace = trace.tb_next
    return False


class Judge:
    """Counts what is wrong."""

    def __init__(self) -> None:
        self.messages = self.pairs = 0
        self.faults: Counter[str] = Counter()
        self.lines: list[str] = []

    def note(self, what: str, text: str) -> None:
        """Count a fault."""
        self.faults[what] += 1
        self.lines.append(f"{what}: {text}")

    def compare(self, came: Sequence[int], certain: Iterable[int], possible: set[int], where: str) -> None:
        """Look at the numbers that came at one side."""
        if missing := set(certain).difference(came):
            self.note("lost", f"{sorted(missing)} {where}")
        if len(set(came)) < len(came) or not possible.issuperset(came):
            self.note("twice", f"{came} {where}")
        if list(came) != sorted(came):
            self.note("out of order", f"{came} {where}")


class Pair:
    """The communicator of the main thread, and its peer."""

    def __init__(self, protocol: Protocol, purpose: Purpose, signals: Signals, judge: Judge) -> None:
        self.judge = judge
        self._signals = signals
        still = ConnectionOptions(heartbeat=3600.0)  # no heartbeat helps out
        server = netq.new(protocol, Purpose.SERVER, CommunicatorOptions(netloc=ANY, connection=still))
        client = netq.new(protocol, Purpose.CLIENT, CommunicatorOptions(netloc=server.netloc, connection=still))
        client.put("hello").result(LIMIT)
        server.get(timeout=LIMIT)
        self.main, self._peer = (client, server) if purpose is Purpose.CLIENT else (server, client)
        self._numbers = itertools.count()
        self._certain: list[int] = []  # what was put
        self._possible: set[int] = set()  # and what was put, perhaps
        self._heard: list[int] = []  # by the peer
        self._got: list[int] = []  # from the peer
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def put(self, size: int, count: int) -> list[netq.Delivery]:
        """Put messages; after a signal, those that remain."""
        futures: list[netq.Delivery] = []
        left = [next(self._numbers) for _ in range(count)]
        self._possible.update(left)
        while left:
            some: list[netq.Delivery] = []
            batch = [(number, bytes(size)) for number in left]
            interrupted = self._signals.during(f"put {size}", some, map(self.main.put, batch))
            self._certain += left[: len(some)]
            left = left[len(some) + interrupted :]  # what the interrupted call has put is not known
            futures += some
        self.judge.messages += count
        return futures

    def results(self, futures: list[netq.Delivery]) -> None:
        """Ask whether messages are delivered."""
        done: list[None] = []
        while len(done) < len(futures):
            self._signals.during("result", done, map(operator.methodcaller("result", LIMIT), futures[len(done) :]))

    def get(self) -> None:
        """Get what was put, and comes back."""
        while missing := len(set(self._certain).difference(self._got)):
            came: list[netq.Message] = []
            get = functools.partial(self.main.get, timeout=LIMIT)
            self._signals.during("get", came, itertools.starmap(get, itertools.repeat((), missing)))
            self._got += [message.data[0] for message in came]

    def finish(self) -> None:
        """Put the last messages, close, and judge."""
        left: list[int] = []
        certain = [*self._certain]
        for number in itertools.islice(self._numbers, 5):
            self.main.put((number, b""))
            self._certain.append(number)
            self._possible.add(number)
        while not left:
            self._signals.during("close", left, map(self.main.close, (LIMIT,)))
        self._peer.request_close()  # a server hears of no end
        self._thread.join(LIMIT)
        if left != [0]:
            self.judge.note("lost", f"{left} by close")
        self.judge.compare(self._heard, self._certain, self._possible, "on the way there")
        self.judge.compare(self._got, certain, set(self._heard), "on the way back")

    def drop(self) -> None:
        """Close both at once."""
        self.main.close(0)
        self._peer.close(0)
        self._thread.join(LIMIT)
        if self._thread.is_alive():
            self.judge.note("hanging", "the peer")
        self.judge.pairs += 1

    def _answer(self) -> None:
        with contextlib.suppress(Closed):
            while True:
                data = self._peer.get().data
                self._heard.append(data[0])
                self._peer.put(data).add_done_callback(_may_fail)
        self._peer.close(LIMIT)


def _may_fail(answer: object) -> None:
    """Look at an answer's future: one that comes after the other side's close is not delivered."""


def talk(pair: Pair, chance: random.Random) -> None:
    """Let signals interrupt a number of batches, and close."""
    for _ in range(BATCHES):
        size = chance.choice([*MOST])
        futures = pair.put(size, chance.randint(1, MOST[size]))
        if chance.random() < 0.5:
            pair.results(futures)
        if chance.random() < 0.5:
            pair.get()
    pair.get()
    pair.finish()


def main(count: int, protocol: Protocol, seed: int) -> int:
    """Send so many signals; return the exit status."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
    sys.setswitchinterval(SWITCH)
    gc.disable()  # Python drops an exception that comes out of a weakref's callback
    chance, judge, start = random.Random(seed), Judge(), time.monotonic()
    signals = Signals(chance)
    try:
        while sum(signals.counts.values()) < count:
            gc.collect()
            pair = Pair(protocol, chance.choice([*Purpose]), signals, judge)
            try:
                talk(pair, chance)
            except TimeoutError as error:
                judge.note("hanging", repr(error))
            except netq.NetqError as error:
                judge.note("ended", repr(error))
            finally:
                pair.drop()
    finally:
        signals.close()
        faulthandler.cancel_dump_traceback_later()
    if signals.slowest > LIMIT:
        judge.note("hanging", f"a batch of calls took {signals.slowest:.1f} s")
    kinds = ", ".join(f"{kind} {judge.faults[kind]}" for kind in ("lost", "twice", "out of order", "hanging", "ended"))
    where = ", ".join(f"{name} {times}" for name, times in sorted(signals.counts.items()))
    print(
        f"{protocol}, seed {seed}: {signals.counts.total()} interrupts ({where}; {signals.elsewhere} between calls), "
        f"{kinds}; {judge.messages} messages, {judge.pairs} pairs, slowest batch {signals.slowest * 1000:.0f} ms, "
        f"{time.monotonic() - start:.0f} s",
        *judge.lines[:20],
        sep="\n    ",
    )
    return 1 if judge.lines else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Protocol(sys.argv[2]), int((sys.argv[3:] or "0")[0])))
