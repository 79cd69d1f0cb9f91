"""What the nemesis will do, all of it known before a run begins. Pure: the same seed gives the same faults.

Called by tests/soak/run.py, which hands the steps to tests/soak/nemesis.py. Never does anything itself.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

HEARTBEAT, MISSES = 0.5, 3  # what the communicators of a run are told: a silent link is lost after their product
RATE = 2.0  # faults a second
QUIET = 1.0  # seconds before the first fault


class Kind(enum.StrEnum):
    """A fault, by the name that history and table give it."""

    CUT = "cut"
    CUT_AFTER = "cut after"  # bytes
    RESET = "reset"
    RESET_AFTER = "reset after"  # bytes
    HOLE = "black hole"  # after so many bytes; shorter than the heartbeat's patience
    LONG_HOLE = "long black hole"
    DELAY = "delay"  # latency, jitter
    SLICE = "slicing"  # bytes at once
    SLOW = "bandwidth"  # bytes a second
    REFUSE = "refusing"
    SLOW_CLOSE = "slow close"  # seconds
    CANCEL = "cancelling"
    STOP = "stop"  # of a client's loop: it neither hears nor speaks
    CLIENT = "client restart"
    SERVER = "server restart"
    BROKER = "broker restart"  # kill -9, and what it had is gone


LOCAL = frozenset({Kind.CANCEL, Kind.STOP, Kind.CLIENT, Kind.SERVER})  # where nothing is between the two ends
PROXIED = frozenset(Kind) - {Kind.BROKER}
BROKERED = frozenset(Kind)


@dataclass(frozen=True)
class Fault:
    """What happens, when, to whom, how strongly and for how long."""

    time: float  # seconds from the beginning of the run
    kind: Kind
    client: int  # from 1 on; 0 is the server, or what all have in common
    amounts: tuple[float, ...] = ()
    seconds: float = 0.0  # 0: it is done in an instant

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
class _Way:
    """How a kind of fault is drawn, how often of a full bag, and how far two of it are apart at least."""

    often: int
    draw: Draw = lambda _: ()
    seconds: Range = (0.0, 0.0)
    apart: float = 0.0  # seconds


def _bytes(low: int, high: int) -> Draw:
    """Sizes of all orders of magnitude alike."""
    return lambda rng: (float(round(math.exp(rng.uniform(math.log(low), math.log(high))))),)


def _delay(rng: random.Random) -> tuple[float, ...]:
    latency = rng.uniform(0.005, 0.3)
    return latency, rng.uniform(0.0, latency)


_PATIENCE = HEARTBEAT * MISSES
_WAYS = {
    Kind.CUT: _Way(3),
    Kind.CUT_AFTER: _Way(3, _bytes(1, 1_000_000)),
    Kind.RESET: _Way(2),
    Kind.RESET_AFTER: _Way(3, _bytes(1, 1_000_000)),
    Kind.HOLE: _Way(2, _bytes(1, 20_000), (0.1, 0.9 * _PATIENCE)),
    Kind.LONG_HOLE: _Way(2, _bytes(1, 20_000), (1.2 * _PATIENCE, 3 * _PATIENCE)),
    Kind.DELAY: _Way(2, _delay, (1.0, 4.0)),
    Kind.SLICE: _Way(2, _bytes(1, 1000), (0.5, 2.0)),
    Kind.SLOW: _Way(2, _bytes(10_000, 1_000_000), (1.0, 4.0)),
    Kind.REFUSE: _Way(1, seconds=(0.2, 3.0)),
    Kind.SLOW_CLOSE: _Way(1, lambda rng: (rng.uniform(0.1, 1.0),), (1.0, 4.0)),
    Kind.CANCEL: _Way(4),
    Kind.STOP: _Way(2, seconds=(0.1, 3 * _PATIENCE)),
    Kind.CLIENT: _Way(3),
    Kind.SERVER: _Way(1),
    Kind.BROKER: _Way(1, apart=20.0),
}

_SILENCES, _LATER = 4, 0.1  # before a restart of the server, and by how many seconds
_SAME = {Kind.LONG_HOLE: Kind.HOLE}  # the end of one would be the end of the other
_COMMON = (Kind.SERVER, Kind.BROKER)


def schedule(
    seed: int, seconds: float, clients: int, rate: float = RATE, kinds: Collection[Kind] = PROXIED
) -> list[Fault]:
    """Return the faults of a run, of these kinds, in order of time.

    No two of one kind are on one client at once; different kinds may be. Each kind comes before any comes more often
    than its share, so that a short run too has nearly all of them.
    """
    rng = random.Random(seed)
    bag = _bag(rng, kinds)
    silence = Kind.LONG_HOLE if Kind.LONG_HOLE in kinds else Kind.STOP
    busy: dict[tuple[Kind, int], float] = {}
    faults = []
    time = QUIET + rng.expovariate(rate)
    while time < seconds:
        for fault in _together(rng, time, next(bag), silence, clients):
            place = _SAME.get(fault.kind, fault.kind), fault.client
            if busy.get(place, 0.0) <= fault.time < seconds:
                busy[place] = fault.time + max(fault.seconds, _WAYS[fault.kind].apart)
                faults.append(fault)
        time += rng.expovariate(rate)
    return sorted(faults, key=lambda fault: fault.time)


def steps(faults: list[Fault]) -> list[Step]:
    """Return the beginnings and the ends of faults, in order of time."""
    begins = [Step(fault.time, fault, True) for fault in faults]
    ends = [Step(fault.time + fault.seconds, fault, False) for fault in faults if fault.seconds]
    return sorted(begins + ends, key=lambda step: step.time)


def _bag(rng: random.Random, kinds: Collection[Kind]) -> Iterator[Kind]:
    """Draw kinds without putting them back, until none is left; then from a full bag again."""
    first = [kind for kind in Kind if kind in kinds]
    rng.shuffle(first)
    yield from first
    while True:
        bag = [kind for kind, way in _WAYS.items() if kind in kinds for _ in range(way.often)]
        rng.shuffle(bag)
        yield from bag


def _together(rng: random.Random, time: float, kind: Kind, silence: Kind, clients: int) -> Iterator[Fault]:
    """A fault; and before a restart of the server some do not hear it: what it acknowledges last is lost on them."""
    if kind is not Kind.SERVER:
        yield _fault(rng, time, kind, clients)
        return
    for _ in range(_SILENCES):
        yield _fault(rng, time, silence, clients)
    yield _fault(rng, time + _LATER, kind, clients)


def _fault(rng: random.Random, time: float, kind: Kind, clients: int) -> Fault:
    way = _WAYS[kind]
    client = 0 if kind in _COMMON else rng.randint(1, clients)
    return Fault(time, kind, client, way.draw(rng), rng.uniform(*way.seconds))
