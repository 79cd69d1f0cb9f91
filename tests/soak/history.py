"""The history of a run: what record to each message, as lines of a file; and the checker, which finds violations.

Pure. tests/soak/recorder.py writes the lines during the run, and they are read after it. The checker uses nothing of
netq but the promises of its README: each message once, in order, and every future is done in the end.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple


class What(enum.StrEnum):
    """Events of a message."""

    PUT = "put"
    ACKED = "acked"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DELIVERED = "delivered"


class Key(NamedTuple):
    """Identifies a message: `life` counts the restarts of its sender, `number` the messages of a lane in that life."""

    client: int
    life: int
    way: str  # "up" to the server, "down" to the client
    lane: int
    number: int


Lane = tuple[int, int, str, int]  # a key without its number


class Event(NamedTuple):
    """One line. `note` is the reason of a failure, or what is wrong with the delivered data."""

    time: float
    what: What
    key: Key
    size: int = 0
    note: str = ""

    def line(self) -> str:
        """Return the line as JSON."""
        return json.dumps(
            {"time": round(self.time, 4), "what": self.what} | self.key._asdict() | {"size": self.size} | self._noted()
        )

    def _noted(self) -> dict[str, str]:
        return {"note": self.note} if self.note else {}


def read(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events of messages; other lines are skipped."""
    for line in lines:
        record = json.loads(line)
        if record["what"] in _WHATS:
            key = Key(*[record[field] for field in Key._fields])
            yield Event(record["time"], What(record["what"]), key, record["size"], record.get("note", ""))


class Wrong(enum.StrEnum):
    """Kinds of violations."""

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
    """A violation, its message, and the events of that message."""

    wrong: Wrong
    key: Key
    story: str

    def __str__(self) -> str:
        fields = " ".join(f"{name} {value}" for name, value in self.key._asdict().items())
        return f"{self.wrong}: {fields}: {self.story}"


def check(events: Iterable[Event]) -> list[Violation]:
    """Return the violations in a complete history."""
    checker = _Checker()
    for event in events:
        checker.take(event)
    return checker.violations + list(checker.finish())


class _Message:
    """The state of a message so far."""

    __slots__ = ("delivered", "key", "put", "settled", "size", "story")

    def __init__(self, put: Event) -> None:
        self.key = put.key
        self.size = put.size
        self.put = put.time
        self.settled: What | None = None
        self.delivered = 0
        self.story = f"{put.size} bytes, put {put.time:.3f}"

    def append(self, event: Event) -> None:
        note = f" ({event.note})" if event.note else ""
        self.story += f", {event.what} {event.time:.3f}{note}"


class _Checker:
    """Checks a history of any length, as it forgets messages that have ended without a violation."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._messages: dict[Key, _Message] = {}
        self._put: dict[Lane, int] = {}  # the last number of each lane
        self._delivered: dict[Lane, int] = {}  # the highest delivered number of each lane

    def take(self, event: Event) -> None:
        lane = event.key[:-1]
        message = self._messages.get(event.key)
        if event.what is What.PUT:
            self._messages[event.key] = _Message(event)
            self._put[lane] = event.key.number
        elif message is None:
            self._unexpected(event, known=event.key.number <= self._put.get(lane, 0))
        else:
            message.append(event)
            if event.what is What.DELIVERED:
                self._deliver(message, event, lane)
            else:
                self._settle(message, event)
            if message.settled is What.ACKED and message.delivered == 1:
                del self._messages[event.key]

    def finish(self) -> Iterator[Violation]:
        """Yield the violations that are certain only at the end of the history."""
        for key, message in self._messages.items():
            if message.settled is None:
                yield Violation(Wrong.HANGING, key, message.story)
            elif message.settled is What.ACKED and not message.delivered:
                yield Violation(Wrong.LOST, key, message.story)
            elif message.settled is What.CANCELLED and message.delivered:
                yield Violation(Wrong.RESURRECTED, key, message.story)

    def _unexpected(self, event: Event, *, known: bool) -> None:
        """Handle an event of a message that has ended already, or was never put."""
        again = Wrong.DUPLICATED if event.what is What.DELIVERED else Wrong.DONE_TWICE
        story = f"{event.what} {event.time:.3f}" + (", long after it was acknowledged and delivered" if known else "")
        self._violation(again if known else Wrong.INVENTED, event.key, story)

    def _settle(self, message: _Message, event: Event) -> None:
        if message.settled is not None:
            self._violation(Wrong.DONE_TWICE, event.key, message.story)
        message.settled = event.what

    def _deliver(self, message: _Message, event: Event, lane: Lane) -> None:
        message.delivered += 1
        if message.delivered > 1:
            self._violation(Wrong.DUPLICATED, event.key, message.story)
        elif event.key.number < self._delivered.get(lane, 0):
            self._violation(Wrong.DISORDERED, event.key, message.story)
        self._delivered[lane] = max(event.key.number, self._delivered.get(lane, 0))
        if event.note or event.size != message.size:
            self._violation(Wrong.DAMAGED, event.key, f"{message.story}, {event.size} bytes")

    def _violation(self, wrong: Wrong, key: Key, story: str) -> None:
        self.violations.append(Violation(wrong, key, story))


_WHATS = frozenset(What)
