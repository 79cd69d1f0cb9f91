"""The faults of a run, which are decided before it begins. Pure: the same seed gives the same faults.

Called by tests/soak/run.py, which passes the steps to tests/soak/nemesis.py. Nothing here has an effect by itself.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

HEARTBEAT, MISSES = 0.5, 3  # options of the communicators: a silent link is lost after the product of both
RATE = 2.0  # faults per second
QUIET = 1.0  # seconds before the first fault


class Kind(enum.StrEnum):
    """Kinds of faults; the values are their names in history and table."""

    CUT = "cut"
    CUT_AFTER = "cut after"  # bytes
    RESET = "reset"
    RESET_AFTER = "reset after"  # bytes
    HOLE = "black hole"  # after a count of bytes; shorter than the heartbeat allows
    LONG_HOLE = "long black hole"
    DELAY = "delay"  # latency, jitter
    SLICE = "slicing"  # bytes at once
    SLOW = "bandwidth"  # bytes per second
    REFUSE = "refusing"
    SLOW_CLOSE = "slow close"  # seconds
    CANCEL = "cancelling"
    STOP = "stop"  # block a client's loop, which then neither receives nor sends
    CLIENT = "client restart"
    SERVER = "server restart"
    BROKER = "broker restart"  # SIGKILL: its queues are lost


LOCAL = frozenset({Kind.CANCEL, Kind.STOP, Kind.CLIENT, Kind.SERVER})  # no network between the two ends
PROXIED = frozenset(Kind) - {Kind.BROKER}
BROKERED = frozenset(Kind)


@dataclass(frozen=True)
class Fault:
    """A fault: its time, its kind, its client, its amounts and its duration."""

    time: float  # seconds from the beginning of the run
    kind: Kind
    client: int  # from 1 on; 0: the server, or the broker
    amounts: tuple[float, ...] = ()
    seconds: float = 0.0  # 0: an instant

    def __str__(self) -> str:
        whom = f" of client {self.client}" if self.client else ""
        amounts = "".join(f" {amount:g}" for amount in self.amounts)
        return f"{self.kind}{amounts}{whom}" + (f" for {self.seconds:.2f} s" if self.seconds else "")


@dataclass(frozen=True)
class Step:
    """The beginning or the end of a fault."""

    time: float
    fault: Fault
    begins: bool


Draw = Callable[[random.Random], tuple[float, ...]]
Range = tuple[float, float]


@dataclass(frozen=True)
class _Profile:
    """How a kind of fault is drawn: its weight in a full bag, its amounts, its duration, and the minimum distance."""

    weight: int
    draw: Draw = lambda _: ()
    seconds: Range = (0.0, 0.0)
    min_distance: float = 0.0  # seconds


def _bytes(low: int, high: int) -> Draw:
    """Draw a size with a uniform logarithm."""
    return lambda rng: (float(round(math.exp(rng.uniform(math.log(low), math.log(high))))),)


def _delay(rng: random.Random) -> tuple[float, ...]:
    latency = rng.uniform(0.005, 0.3)
    return latency, rng.uniform(0.0, latency)


_SILENCE_LIMIT = HEARTBEAT * MISSES
_PROFILES = {
    Kind.CUT: _Profile(3),
    Kind.CUT_AFTER: _Profile(3, _bytes(1, 1_000_000)),
    Kind.RESET: _Profile(2),
    Kind.RESET_AFTER: _Profile(3, _bytes(1, 1_000_000)),
    Kind.HOLE: _Profile(2, _bytes(1, 20_000), (0.1, 0.9 * _SILENCE_LIMIT)),
    Kind.LONG_HOLE: _Profile(2, _bytes(1, 20_000), (1.2 * _SILENCE_LIMIT, 3 * _SILENCE_LIMIT)),
    Kind.DELAY: _Profile(2, _delay, (1.0, 4.0)),
    Kind.SLICE: _Profile(2, _bytes(1, 1000), (0.5, 2.0)),
    Kind.SLOW: _Profile(2, _bytes(10_000, 1_000_000), (1.0, 4.0)),
    Kind.REFUSE: _Profile(1, seconds=(0.2, 3.0)),
    Kind.SLOW_CLOSE: _Profile(1, lambda rng: (rng.uniform(0.1, 1.0),), (1.0, 4.0)),
    Kind.CANCEL: _Profile(4),
    Kind.STOP: _Profile(2, seconds=(0.1, 3 * _SILENCE_LIMIT)),
    Kind.CLIENT: _Profile(3),
    Kind.SERVER: _Profile(1),
    Kind.BROKER: _Profile(1, min_distance=20.0),
}

_SILENT_CLIENTS, _DELAY = 4, 0.1  # clients silenced before a restart of the server, and seconds between both
_SHARED_END = {Kind.LONG_HOLE: Kind.HOLE}  # the end of one ends the other, too
_COMMON = (Kind.SERVER, Kind.BROKER)


def schedule(
    seed: int, seconds: float, clients: int, rate: float = RATE, kinds: Collection[Kind] = PROXIED
) -> list[Fault]:
    """Return the faults of a run, of these kinds, in order of time.

    No two of one kind are on one client at once; different kinds may be. Each kind comes before any comes more weight
    than its share, so that a short run too has nearly all of them.
    """
    rng = random.Random(seed)
    bag = _bag(rng, kinds)
    silence = Kind.LONG_HOLE if Kind.LONG_HOLE in kinds else Kind.STOP
    busy: dict[tuple[Kind, int], float] = {}
    faults = []
    time = QUIET + rng.expovariate(rate)
    while time < seconds:
        for fault in _with_silences(rng, time, next(bag), silence, clients):
            place = _SHARED_END.get(fault.kind, fault.kind), fault.client
            if busy.get(place, 0.0) <= fault.time < seconds:
                busy[place] = fault.time + max(fault.seconds, _PROFILES[fault.kind].min_distance)
                faults.append(fault)
        time += rng.expovariate(rate)
    return sorted(faults, key=lambda fault: fault.time)


def steps(faults: list[Fault]) -> list[Step]:
    """Return the beginnings and the ends of faults, in order of time."""
    begins = [Step(fault.time, fault, True) for fault in faults]
    ends = [Step(fault.time + fault.seconds, fault, False) for fault in faults if fault.seconds]
    return sorted(begins + ends, key=lambda step: step.time)


def _bag(rng: random.Random, kinds: Collection[Kind]) -> Iterator[Kind]:
    """Yield kinds: each one once, then from bags with each kind by its weight."""
    first = [kind for kind in Kind if kind in kinds]
    rng.shuffle(first)
    yield from first
    while True:
        bag = [kind for kind, way in _PROFILES.items() if kind in kinds for _ in range(way.weight)]
        rng.shuffle(bag)
        yield from bag


def _with_silences(rng: random.Random, time: float, kind: Kind, silence: Kind, clients: int) -> Iterator[Fault]:
    """Yield a fault. Before a restart of the server, some clients are silenced, so that its last ACKs do not arrive."""
    if kind is not Kind.SERVER:
        yield _fault(rng, time, kind, clients)
        return
    for _ in range(_SILENT_CLIENTS):
        yield _fault(rng, time, silence, clients)
    yield _fault(rng, time + _DELAY, kind, clients)


def _fault(rng: random.Random, time: float, kind: Kind, clients: int) -> Fault:
    way = _PROFILES[kind]
    client = 0 if kind in _COMMON else rng.randint(1, clients)
    return Fault(time, kind, client, way.draw(rng), rng.uniform(*way.seconds))
