"""What happened to each message of a run, as lines of a file; and the checker, which finds what must not happen.

Pure. Lines are written by tests/soak/recorder.py while the run goes on, and read again when it is over. The checker
knows nothing of netq: only the words of its README, each message once, in order, and no future left alone.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple


class What(enum.StrEnum):
    """What may happen to a message."""

    PUT = "put"
    ACKED = "acked"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DELIVERED = "delivered"


class Key(NamedTuple):
    """Which message: `life` counts the restarts of the sender, `number` the messages of one lane of it."""

    client: int
    life: int
    way: str  # "up" to the server, "down" to the client
    lane: int
    number: int


Lane = tuple[int, int, str, int]  # a key without its number


class Event(NamedTuple):
    """One line. `note`: why it failed; or what is wrong with what was delivered."""

    time: float
    what: What
    key: Key
    size: int = 0
    note: str = ""

    def line(self) -> str:
        """Return it as JSON."""
        return json.dumps(
            {"time": round(self.time, 4), "what": self.what} | self.key._asdict() | {"size": self.size} | self._noted()
        )

    def _noted(self) -> dict[str, str]:
        return {"note": self.note} if self.note else {}


def read(lines: Iterable[str]) -> Iterator[Event]:
    """Return the events; lines that tell of no message are left out."""
    for line in lines:
        record = json.loads(line)
        if record["what"] in _WHATS:
            key = Key(*[record[field] for field in Key._fields])
            yield Event(record["time"], What(record["what"]), key, record["size"], record.get("note", ""))


class Wrong(enum.StrEnum):
    """What must not happen."""

    LOST = "lost"  # acknowledged, never delivered
    DUPLICATED = "duplicated"
    DISORDERED = "out of order"
    HANGING = "hanging"  # a future that is never done
    RESURRECTED = "cancelled, yet delivered"
    INVENTED = "never put"
    DAMAGED = "damaged"
    DONE_TWICE = "done twice"


@dataclass(frozen=True)
class Violation:
    """A promise that was not kept, to which message, and what is known of it."""

    wrong: Wrong
    key: Key
    story: str

    def __str__(self) -> str:
        fields = " ".join(f"{name} {value}" for name, value in self.key._asdict().items())
        return f"{self.wrong}: {fields}: {self.story}"


def check(events: Iterable[Event]) -> list[Violation]:
    """Return what is wrong with a history that is at its end."""
    checker = _Checker()
    for event in events:
        checker.take(event)
    return checker.violations + list(checker.conclude())


class _Message:
    """What is known of a message so far."""

    __slots__ = ("delivered", "key", "put", "settled", "size", "told")

    def __init__(self, put: Event) -> None:
        self.key = put.key
        self.size = put.size
        self.put = put.time
        self.settled: What | None = None
        self.delivered = 0
        self.told = f"{put.size} bytes, put {put.time:.3f}"

    def tell(self, event: Event) -> None:
        note = f" ({event.note})" if event.note else ""
        self.told += f", {event.what} {event.time:.3f}{note}"


class _Checker:
    """Forgets what has come to a good end, so that a history of any length can be checked."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._messages: dict[Key, _Message] = {}
        self._put: dict[Lane, int] = {}  # the last number of each lane
        self._delivered: dict[Lane, int] = {}  # and the highest that was delivered

    def take(self, event: Event) -> None:
        lane = event.key[:-1]
        message = self._messages.get(event.key)
        if event.what is What.PUT:
            self._messages[event.key] = _Message(event)
            self._put[lane] = event.key.number
        elif message is None:
            self._strange(event, known=event.key.number <= self._put.get(lane, 0))
        else:
            message.tell(event)
            if event.what is What.DELIVERED:
                self._deliver(message, event, lane)
            else:
                self._settle(message, event)
            if message.settled is What.ACKED and message.delivered == 1:
                del self._messages[event.key]

    def conclude(self) -> Iterator[Violation]:
        """What can be said only when nothing more can come."""
        for key, message in self._messages.items():
            if message.settled is None:
                yield Violation(Wrong.HANGING, key, message.told)
            elif message.settled is What.ACKED and not message.delivered:
                yield Violation(Wrong.LOST, key, message.told)
            elif message.settled is What.CANCELLED and message.delivered:
                yield Violation(Wrong.RESURRECTED, key, message.told)

    def _strange(self, event: Event, *, known: bool) -> None:
        """Of a message that has come to its good end before, or never was."""
        again = Wrong.DUPLICATED if event.what is What.DELIVERED else Wrong.DONE_TWICE
        story = f"{event.what} {event.time:.3f}" + (", long after it was acknowledged and delivered" if known else "")
        self._blame(again if known else Wrong.INVENTED, event.key, story)

    def _settle(self, message: _Message, event: Event) -> None:
        if message.settled is not None:
            self._blame(Wrong.DONE_TWICE, event.key, message.told)
        message.settled = event.what

    def _deliver(self, message: _Message, event: Event, lane: Lane) -> None:
        message.delivered += 1
        if message.delivered > 1:
            self._blame(Wrong.DUPLICATED, event.key, message.told)
        elif event.key.number < self._delivered.get(lane, 0):
            self._blame(Wrong.DISORDERED, event.key, message.told)
        self._delivered[lane] = max(event.key.number, self._delivered.get(lane, 0))
        if event.note or event.size != message.size:
            self._blame(Wrong.DAMAGED, event.key, f"{message.told}, {event.size} bytes")

    def _blame(self, wrong: Wrong, key: Key, story: str) -> None:
        self.violations.append(Violation(wrong, key, story))


_WHATS = frozenset(What)
