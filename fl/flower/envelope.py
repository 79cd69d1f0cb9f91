"""The messages without records between a grid and its nodes, and the envelopes of those with records.

For a process that only moves messages: needs neither Flower nor numpy. It reads an envelope, an Ask or Files with the
bytes as they came. fl/flower/messages.py reads all of it. Leave and End are fl's own (fl/envelope.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from fl import envelope
from fl.checks import expect
from fl.envelope import MAX_NUMBER, End, check_number, values
from fl.tensors.json_format import JsonSerializer
from netq.errors import Unreadable
from netq.options import SerializationOptions
from netq.text import printable
from netq.utils.stream import Stream
from netq.validate import is_whole

VERSION = "netq-flower/3"
REASON = 1000  # characters of a text; the rest is not sent
NAME = 100  # characters of an app's version, and of a figure's name

RAISED = 2  # Flower's ErrorCode.CLIENT_APP_RAISED_EXCEPTION
UNAVAILABLE = 3  # Flower's ErrorCode.MESSAGE_UNAVAILABLE


@dataclass(frozen=True)
class Failure:
    """A node has no reply to a message. `batch`: None if it could not read the message."""

    batch: int | None
    reason: str
    code: int = RAISED
    protocol: str = VERSION

    def __post_init__(self) -> None:
        if self.batch is not None:
            check_number("the batch of a reply", self.batch)
        expect(is_whole(self.code, 0, 2**31 - 1), "the code of an error", self.code, "a whole number of 31 bits")
        expect(isinstance(self.reason, str), "the reason of an error", self.reason, "a text")
        object.__setattr__(self, "reason", printable(self.reason[:REASON]))


@dataclass(frozen=True)
class Fetch:
    """A node asks for the files of this version of the server's app."""

    app: str
    protocol: str = VERSION

    def __post_init__(self) -> None:
        _check_name(self.app)


@dataclass(frozen=True)
class OtherApp:
    """A node's app has this version, and not that of the Ask."""

    app: str
    protocol: str = VERSION

    def __post_init__(self) -> None:
        _check_name(self.app)


class Ask(NamedTuple):
    """The envelope of a message to a node. `stream` is the whole of it."""

    job: tuple[int, int]  # the run and the batch
    app: str  # version of the server's app; "" if unknown
    title: str  # type and round, for the log
    stream: Stream
    values: Any = None  # as of fl.envelope.Task
    unasked: int = MAX_NUMBER  # as of fl.envelope.Task, and so are the next two: a node never waits with its reply
    answered: int = MAX_NUMBER
    deadline: float = math.inf
    is_secure: bool = False  # as of fl.envelope.Task
    is_step: bool = False  # as of fl.envelope.Task

    @property
    def key(self) -> str:
        """The name of the job in a file."""
        return "{} {}".format(*self.job)


class Files(NamedTuple):
    """The envelope of the files of the server's app, for which the node has asked. `stream` is the whole message."""

    version: str
    stream: Stream
    values: Any = None  # as of fl.envelope.Task
    is_secure: bool = False
    is_step: bool = False

    @property
    def job(self) -> None:
        """There is no reply."""

    @property
    def key(self) -> str:
        """There is no reply to keep."""
        return ""

    @property
    def title(self) -> str:
        """What this is, for the log."""
        return f"the app {self.version}"


def read(found: Any, stream: Stream) -> Ask | Files | End:
    """Make the envelope of a message with these values. Raises Unreadable."""
    match found:
        case {"type": "End"}:
            return End(0)  # a run has no rounds that the grid could count
        case {"protocol": str(protocol)} if protocol != VERSION:
            raise Unreadable(f"the version of a message: expected {VERSION}; install the same netq")
        case {"type": "Ask", "protocol": str(), "batch": batch, "run": run, "app": app, "title": title}:
            if all(is_whole(each, 0, MAX_NUMBER) for each in (batch, run)) and is_name(app) and is_name(title):
                secure = found.get("secure")
                is_step = type(secure) is dict and "step" in secure
                return Ask((run, batch), app, title, stream, is_secure=bool(secure), is_step=is_step)
        case {"type": "Files", "protocol": str(), "version": version} if is_name(version):
            return Files(version, stream)
    raise Unreadable("a message of the grid is not valid: expected an Ask, Files or an End")


def is_name(value: Any) -> bool:
    """Return whether this is a text that fits in a line of the log, and cannot forge another."""
    return type(value) is str and len(value) <= NAME and value.isprintable()


def _check_name(app: object) -> None:
    expect(is_name(app), "the app's version in a message", app, f"{NAME} printable characters at most")


def _dump(message: Any) -> Stream:
    if isinstance(message, envelope.Failure):
        message = Failure(message.job[1], message.reason)
    return message if isinstance(message, Stream) else _PLAIN.dump(values(message))


_PLAIN = JsonSerializer()

# What arrives is an Ask, Files or an End. What is put is a Failure, Fetch, OtherApp or Leave, or a message's bytes.
ENVELOPES = SerializationOptions(load=lambda stream: read(_PLAIN.load(stream), stream), dump=_dump)
