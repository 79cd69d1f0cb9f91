"""What a server knows of one client, and the states of the task that the client has.

                  offer             room for it
    ASKED ─────────────────► OFFERED ───────────► PERMITTED        forget, from all of these: IDLE
      │ ▲                       │ ▲  second offer     │            ask, from all others:      ASKED
      │ └─ its session ends ────┘ └───────────────────┤
      │                                               │
      └──────────────── reply ────────────────────────┴──► ARRIVED ──► COUNTED, SKIPPED or FAILED

A small update arrives without an offer. A task that gets no reply in time is LATE, one that cannot get one FAILED. If
the strategy takes late updates, a late client keeps its task and its state: its reply may still be counted.

`TRANSITIONS` is this drawing as data. Owned by fl/server/members.py, which has one Member for each client: other
modules of the server keep no tables of clients, but look here.
"""

from __future__ import annotations

import enum
import math
import time
import uuid
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from fl.envelope import PURPOSES, Job, Purpose
from fl.properties import Properties, title

_OWED = 16  # unanswered tasks that are remembered of one client


class MemberState(enum.Enum):
    """What a client is doing, as far as the server knows."""

    IDLE = "it has had no task, or the server has forgotten it"
    ASKED = "it has a task"
    OFFERED = "its update is ready, and there is no room for it yet"
    PERMITTED = "it may send its update"
    ARRIVED = "its reply is here, and the round has not taken it"
    COUNTED = "its last reply counts"
    SKIPPED = "it had nothing for its last task"
    FAILED = "its last task has no good answer"
    LATE = "its last task had no answer in time"


class MemberEvent(enum.Enum):
    """What happens to a client's task."""

    ASK = enum.auto()
    OFFER = enum.auto()
    PERMIT = enum.auto()
    REPLY = enum.auto()
    COUNT = enum.auto()
    SKIP = enum.auto()
    FAIL = enum.auto()
    EXPIRE = enum.auto()
    FORGET = enum.auto()
    END = enum.auto()  # of the session; offers and permits end with it


_AT_WORK = (MemberState.ASKED, MemberState.OFFERED, MemberState.PERMITTED)
_BUSY = (*_AT_WORK, MemberState.ARRIVED)
_FREE = tuple(state for state in MemberState if state not in _BUSY)
TRANSITIONS: Mapping[MemberEvent, Mapping[MemberState, MemberState]] = {
    MemberEvent.ASK: dict.fromkeys(_FREE, MemberState.ASKED),
    MemberEvent.OFFER: dict.fromkeys((MemberState.ASKED, MemberState.PERMITTED), MemberState.OFFERED),
    MemberEvent.PERMIT: {MemberState.OFFERED: MemberState.PERMITTED},
    MemberEvent.REPLY: dict.fromkeys(_AT_WORK, MemberState.ARRIVED),
    MemberEvent.COUNT: {MemberState.ARRIVED: MemberState.COUNTED},
    MemberEvent.SKIP: {MemberState.ARRIVED: MemberState.SKIPPED},
    MemberEvent.FAIL: dict.fromkeys(_BUSY, MemberState.FAILED),
    MemberEvent.EXPIRE: dict.fromkeys(_AT_WORK, MemberState.LATE),
    MemberEvent.FORGET: dict.fromkeys(_BUSY, MemberState.IDLE) | {state: state for state in _FREE},
    MemberEvent.END: {state: state for state in MemberState} | dict.fromkeys(_AT_WORK, MemberState.ASKED),
}


@dataclass
class MemberSession:
    """What a client has said and done in its present session."""

    properties: Properties | None = None  # what it says of itself; None: it has not
    version: str = ""  # of its netq; empty: it has not said
    ahead: float | None = None  # seconds by which its clock was ahead of the server's; None: it has not said
    check: float = 0.0  # seconds that the training of its check took, before it joined; 0: it has made none
    is_visitor: bool = False  # it only looks, and gets no task
    is_relay: bool = False  # it answers for clients of its own
    waits_for_description: bool = False  # it is a relay, and has not been told what tasks are like
    wants_final: bool = False  # it wants the last model
    is_leaving: bool = False  # it has said that it leaves
    is_told: bool = False  # the server has told it that the federation is over
    is_held: bool = False  # its message was paused, and waits for its admission
    is_wrong: bool = False  # it had begun to send more than it may


@dataclass
class Asked:
    """The present task of a client."""

    job: Job
    until: float  # when its time limit ends, by time.monotonic()
    is_first: bool  # this server's first task for the client
    attempt: tuple[Any, Any] = (None, None)  # under masks: session and number of the vectors that fit; else of None
    has_offered_again: bool = False  # in this session


@dataclass
class Owed:
    """A task that a client has not answered. What it was allowed to send holds, however late it comes."""

    job: Job
    since: float  # when it was given, by time.monotonic()
    allowed: int  # bytes that the reply may have


@dataclass
class Place:
    """A client's update that waits for room, or has it (fl/server/admission.py)."""

    size: int  # bytes
    is_admitted: bool = False
    since: float | None = None  # when it was admitted first, until it arrives


@dataclass
class Rate:
    """How much a client had sent when its rate was measured last (fl/server/admission.py)."""

    look: int  # the number of the measurement
    sent: int  # bytes
    since: float


@dataclass
class TaskRecord:
    """How a client has done its tasks of one purpose (fl/server/standing.py)."""

    missed: int = 0  # a bit for each of its last regular tasks, 1 for one without a good answer; the lowest: the last
    seconds: float | None = None  # how long its last answer took; None: it has never answered
    owed: int = 0  # good answers until rounds wait for it again; 0: it is not suspended
    debt: int = 0  # how many it owed at first, the last time
    pause: int = 0  # rounds between its last task, which it has not answered, and the next; 0: none
    due: int = 0  # the first turn in which it gets a task

    @property
    def misses(self) -> int:
        """Tasks without a good answer, among its last ones."""
        return self.missed.bit_count()


@dataclass(eq=False)
class Member:
    """One client. `since`: when its session began, by time.monotonic().

    A member that has gone is kept while it has missed tasks, or there is something to show of it.
    """

    id: uuid.UUID
    name: str = ""  # for people: of its certificate, or what it says; empty: it has none
    state: MemberState = MemberState.IDLE
    since: float = -math.inf
    changed: float = 0.0  # when its state changed last, in seconds since 1970; 0: never
    reason: str = ""  # why its last task failed or was skipped
    left: str = ""  # why it has left, or only looks, since it last joined
    updates: int = 0  # of it that counted
    failures: int = 0  # tasks of it that failed
    session: MemberSession = field(default_factory=MemberSession)
    task: Asked | None = None  # None: it is not busy
    place: Place | None = None
    measured: Rate | None = None
    slow: int = 0  # updates in time, until it is no longer known as slow
    owed: deque[Owed] = field(default_factory=lambda: deque(maxlen=_OWED))  # tasks without a reply, the oldest first
    seconds: float = math.inf  # that its last reply took
    replied: tuple[Job, int] | None = None  # the last job that it has replied to, and how often
    warned_stale: int = 0  # the `ask` in which the log was told of a stale reply
    records: dict[Purpose, TaskRecord] = field(default_factory=lambda: {purpose: TaskRecord() for purpose in PURPOSES})
    final: Future[None] | None = None  # the delivery of the last model
    is_counted: bool = False  # in the last round that counted
    is_dominant: bool = False  # it had more than half of the examples of the last round

    def __str__(self) -> str:
        return title(self.id, self.name)

    def remembered(self) -> Member:
        """Return what is remembered of this client when it has gone."""
        kept = ("id", "name", "changed", "reason", "left", "updates", "failures", "records")
        return Member(**{name: getattr(self, name) for name in kept})

    def on(self, event: MemberEvent) -> None:
        """Change the state. A free member has no task."""
        before, self.state = self.state, TRANSITIONS[event][self.state]
        if self.state is not before:
            self.changed = time.time()
        if self.state in _FREE:
            self.task = None

    def has(self, job: Job) -> bool:
        """Return whether this is its present task."""
        return self.task is not None and self.task.job == job

    def replies(self, job: Job) -> int:
        """Return how many replies it has sent to a job, if that is the last one that it has replied to."""
        return self.replied[1] if self.replied is not None and self.replied[0] == job else 0

    @property
    def allowed(self) -> int:
        """The bytes that any reply which it owes may have."""
        return max((each.allowed for each in self.owed), default=0)

    @property
    def has_missed(self) -> bool:
        """Whether it has had no good answer to some of its last tasks."""
        return any(record.missed for record in self.records.values())

    def settle(self, job: Job, now: float) -> Owed | None:
        """Note that it owes no reply to a job any more. Return what it owed."""
        for each in self.owed:
            if each.job == job:
                self.owed.remove(each)
                self.seconds = now - max(each.since, self.since)  # with a new session it has begun again
                return each
        return None

    def end_session(self) -> None:
        """Forget what it has said and offered in its session."""
        self.session = MemberSession()
        self.on(MemberEvent.END)
        self.changed = time.time()
        if self.task is not None:
            self.task.has_offered_again = False
