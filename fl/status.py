"""Where each client of a federation stands: what `Server.members` returns, and pages and commands show. Pure."""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass, field

from fl.properties import Properties, short_title, title

CLOCK = 60.0  # seconds by which a client's clock may differ: a warning says so. The way of its message counts, too


class Stage(enum.Enum):
    """Where a client stands."""

    CONNECTED = "connected"  # it has said nothing of itself
    READY = "ready"  # it has joined, and waits for a task; see `check`
    TRAINING = "training"
    EVALUATING = "evaluating"
    WAITING = "waiting"  # its update is ready, and the server has no room for it yet
    SENDING = "sending"  # the server has admitted its update
    DONE = "done"  # the server has its answer
    SKIPPED = "skipped"  # it had nothing for its last task
    FAILED = "failed"  # its last task has no good answer
    LATE = "late"  # its last task had no answer in time
    VISITOR = "visitor"  # it only looks, as `edge check` does, or tries a training out before it joins
    LEAVING = "leaving"  # it has said that it is not fit for tasks now
    LOST = "no connection"  # its session waits for it
    GONE = "gone"


@dataclass(frozen=True)
class ClientStatus:
    """A client, as its server sees it now. Times are in seconds since 1970."""

    id: uuid.UUID
    name: str  # of its certificate, or what it calls itself; empty: it has none
    stage: Stage
    reason: str = ""  # why it failed, skipped, or is away; printable
    since: float | None = None  # when its stage began; None: not known
    suspended: bool = False  # its last tasks had no good answer: rounds do not wait for it
    address: str = ""
    version: str = ""  # of its netq; empty: it has not said
    ahead: float | None = None  # seconds by which its clock is ahead of the server's; None: it has not said
    check: float = 0.0  # seconds that the training of its check took, before it joined; 0: it has made none
    certificate_end: float | None = None  # None: it has shown no certificate
    absent: float = 0.0  # seconds without a connection
    bytes_in: int = 0  # of its messages in this session
    bytes_out: int = 0
    updates: int = 0  # that counted
    failures: int = 0  # tasks of it that failed
    seconds: float | None = None  # that its last answer took; None: it has given none
    properties: Properties = field(default_factory=dict)

    def __str__(self) -> str:
        return title(self.id, self.name)

    @property
    def short(self) -> str:
        """Its name, or the begin of its id."""
        return short_title(self.id, self.name)


@dataclass(frozen=True)
class Refusal:
    """A connection that the server has turned away."""

    time: float  # in seconds since 1970
    address: str
    reason: str  # printable
