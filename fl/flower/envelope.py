"""Reads a grid's messages without their arrays, for a process that only moves them. Needs neither Flower nor numpy.

An Ask and Files hold their bytes as they came. fl/flower/grid_messages.py has the messages, their fields, and the whole
of their checks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fl.tensors.json_format import JsonSerializer
from netq.errors import Unreadable
from netq.options import SerializationOptions
from netq.text import printable
from netq.utils.stream import Stream
from netq.validate import is_whole

VERSION = "netq-flower/1"
END = [VERSION, "end"]
REASON = 1000  # characters of a text; the rest is not sent
NAME = 100  # characters of an app's version, and of a figure's name

RAISED = 2  # Flower's ErrorCode.CLIENT_APP_RAISED_EXCEPTION
UNAVAILABLE = 3  # Flower's ErrorCode.MESSAGE_UNAVAILABLE

_MAX_NUMBER = 2**63 - 1


class Ask(NamedTuple):
    """A message to a node. `stream` is the whole of it."""

    job: tuple[int, int]  # the run and the batch
    app: str  # version of the server's app; "" if unknown
    title: str  # type and round, for the log
    stream: Stream

    @property
    def key(self) -> str:
        """The name of the job in a file."""
        return "{} {}".format(*self.job)


class Files(NamedTuple):
    """The files of the server's app, for which the node has asked. `stream` is the whole message."""

    version: str
    stream: Stream

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


class End(NamedTuple):
    """The run is over."""


def failure(batch: int | None, reason: str, code: int = RAISED) -> list[Any]:
    """Return the Reply to a message that has none. `batch`: None if the message could not be read."""
    return [VERSION, batch, code, reason[:REASON]]


def fetch(version: str) -> list[Any]:
    """Return the Fetch of a node that lacks an app."""
    return [VERSION, "fetch", version]


def other_version(version: str) -> list[Any]:
    """Return the App of a node whose app has another version than the server's."""
    return [VERSION, "app", version]


def leave(reason: str) -> list[Any]:
    """Return the Leave of a node that closes its session."""
    return [VERSION, "leave", reason[:REASON]]


def load(stream: Stream) -> Ask | Files | End:
    """Return the envelope of a grid's message. Raises Unreadable."""
    values = _PLAIN.load(stream)
    if type(values) is not list or len(values) < 2 or type(values[0]) is not str or values[0] != VERSION:
        raise Unreadable(f"the version of a message: expected {VERSION}; install the same netq")
    match values[1:]:
        case [batch, run, _, str(kind), str(group), _, _, app, records] if _are_numbers(batch, run) and is_name(app):
            return Ask((run, batch), app, _title(kind, group, records), stream)
        case ["files", version, _, _] if is_name(version):
            return Files(version, stream)
        case ["end"]:
            return End()
    raise Unreadable("a message of the grid is not valid: expected an Ask, Files or an End")


def is_name(value: Any) -> bool:
    """Return whether this is a text that fits in a line of the log, and cannot forge another."""
    return type(value) is str and len(value) <= NAME and value.isprintable()


def _are_numbers(*values: Any) -> bool:
    return all(is_whole(value, 0, _MAX_NUMBER) for value in values)


def _title(kind: str, group: str, records: Any) -> str:
    """Return a message's type and round. A legacy app has the round as group, FedAvg in the config."""
    number: Any = group
    if not group and type(records) is list:
        configs = [record[2] for record in records if type(record) is list and record[1:2] == ["config"]]
        pairs = [pair for config in configs if type(config) is list for pair in config]
        number = next((pair[1] for pair in pairs if type(pair) is list and pair[:1] == ["server-round"]), "")
    return printable(f"{kind} {number}".rstrip())


def _dump(message: Any) -> Stream:
    return message if isinstance(message, Stream) else _PLAIN.dump(message)


_PLAIN = JsonSerializer()

# What arrives is an Ask, Files or an End. What is put is one of the lists above, or a message's bytes.
ENVELOPES = SerializationOptions(load=load, dump=_dump)
