"""The messages without tensors, and the envelopes of those with tensors. Needs no numpy.

A process that only moves models reads an envelope: a Task or a Final with the bytes as they came. fl/messages.py reads
all of it. Both make the other messages from here, whose constructors check every field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, get_args

from fl.checks import expect
from fl.errors import InvalidUpdate
from fl.properties import Properties, checked, checked_name
from fl.tensors.json_format import JsonSerializer
from netq.errors import InvalidOption, Unreadable
from netq.options import SerializationOptions
from netq.text import printable
from netq.utils.stream import Stream
from netq.validate import is_number, is_whole

Purpose = Literal["train", "evaluate", "statistics", "secure"]  # the last: a step of secure aggregation
PURPOSES: tuple[Purpose, ...] = ("train", "evaluate")  # of tasks that a round has

RESERVED = {  # names in the config of a client's functions that no server and no device may use for a value
    "round": "the number of the round",
    "state": "what a client's functions keep between rounds",
}
MAX_TIME = 2**40  # seconds; also of a date, since 1970
MAX_NUMBER = 2**63 - 1  # of a run, a round or a size: a signed 64-bit integer


@dataclass(frozen=True)
class Job:
    """Identifies a task. `run` is the server's random number: a server that is started again has another one."""

    run: int
    round: int
    purpose: Purpose

    def __post_init__(self) -> None:
        for name in ("run", "round"):
            check_number(name, getattr(self, name))
        known = isinstance(self.purpose, str) and self.purpose in get_args(Purpose)
        expect(known, "purpose", self.purpose, " or ".join(get_args(Purpose)))


@dataclass(frozen=True)
class Offer:
    """Announces the size of a reply. The client sends the reply when it has a Permit."""

    job: Job
    size: int  # bytes

    def __post_init__(self) -> None:
        check_number("size", self.size)


@dataclass(frozen=True)
class Permit:
    """Allows a client to send the reply that it has offered."""

    job: Job


@dataclass(frozen=True)
class End:
    """Ends the federation of the server that sends it.

    round: its last round, 0 if there was none.
    final: whether a Final follows, on the lane of tasks: this message passes a task that is being sent.
    """

    round: int
    final: bool = False

    def __post_init__(self) -> None:
        check_number("round", self.round)
        expect(type(self.final) is bool, "final", self.final, "True or False")


@dataclass(frozen=True)
class Introduction:
    """Says what the client is like.

    properties: plain values by name, for the server's and the strategy's choice.
    final:      whether the client wants the last model.
    name:       for people; empty: it has none.
    version:    of its netq; empty: it does not say.
    time:       of its clock, in seconds since 1970; 0: it does not say.
    check:      seconds that the training of its check took, before it joined; 0: it has made none.
    relay:      whether it answers for clients of its own. The server answers with a Description, if it has a way to the
                federation's server itself.
    """

    properties: Properties
    final: bool = False
    name: str = ""
    version: str = ""
    time: float = 0.0
    check: float = 0.0
    relay: bool = False

    def __post_init__(self) -> None:
        try:
            checked(self.properties, "properties")
            checked_name(self.name, "name")
            checked_name(self.version, "version")
            expect(type(self.final) is bool, "final", self.final, "True or False")
            expect(is_number(self.time, 0, MAX_TIME), "time", self.time, "seconds since 1970")
            expect(is_number(self.check, 0, MAX_TIME), "check", self.check, "seconds")
            expect(type(self.relay) is bool, "relay", self.relay, "True or False")
        except InvalidOption as error:
            raise InvalidUpdate(str(error)) from None


@dataclass(frozen=True)
class Leave:
    """Announces that the client closes its session: it is not fit for tasks now."""

    reason: str

    def __post_init__(self) -> None:
        expect(isinstance(self.reason, str), "reason", self.reason, "a text")
        object.__setattr__(self, "reason", printable(self.reason))


@dataclass(frozen=True)
class Describe:
    """Asks what tasks are like. The client gets none until its session ends. `reason`: for the server's log."""

    reason: str

    def __post_init__(self) -> None:
        expect(isinstance(self.reason, str), "reason", self.reason, "a text")
        object.__setattr__(self, "reason", printable(self.reason))


class Task(NamedTuple):
    """The envelope of a server's Task. `stream` is the whole message, with the model.

    values: those of the whole message, if this process has loaded the arrays too; None: `stream` is still to be loaded.
    """

    job: Job
    unasked: int  # bytes that the reply may have without an Offer and a Permit
    counted: int  # updates of this client that the server has counted with this model
    answered: int  # replies of this client to this job that the server had when it sent the task
    deadline: float  # seconds for which the server waits
    stream: Stream
    values: Any = None
    is_secure: bool = False  # it is a step of secure aggregation, or asks for a vector under masks

    @property
    def key(self) -> str:
        """The name in a file of the reply that this task wants."""
        return f"{self.job.run} {self.job.round} {self.job.purpose} {self.counted}"

    @property
    def is_step(self) -> bool:
        """Whether it is a step of secure aggregation, which is nothing for the client's functions."""
        return self.job.purpose == "secure"

    @property
    def title(self) -> str:
        """Round and purpose, for the log."""
        return f"round {self.job.round}: {self.job.purpose}"


class Described(NamedTuple):
    """The envelope of a Description. `stream` is the whole message."""

    stream: Stream


class Finished(NamedTuple):
    """The reply to a task, as bytes. `size`: bytes of its arrays; 0 if it has none."""

    job: Any  # of the task
    message: Stream
    size: int


class Final(NamedTuple):
    """The last model. `stream` is the whole message."""

    stream: Stream


@dataclass(frozen=True)
class Failure:
    """The Reply to a task that failed. The serialisation of a node of Flower makes Flower's of it."""

    job: Any  # as of Finished
    reason: str


def values(message: Any) -> dict[str, Any]:
    """Return the fields of a message by name, and its type."""
    found = {each.name: getattr(message, each.name) for each in fields(message)}
    if "job" in found:
        found["job"] = [message.job.run, message.job.round, message.job.purpose]
    return {"type": type(message).__name__, **found}


def read(found: Any, stream: Stream) -> Task | Permit | End | Final | Described:
    """Make the envelope of a message with these values. Raises Unreadable."""
    kind = found.get("type") if type(found) is dict else None
    try:
        if kind == "Task":
            for name in ("unasked", "counted", "answered"):
                check_number(name, found[name])
            deadline = found["deadline"]
            expect(is_number(deadline, 0), "deadline", deadline, "seconds")
            job, unasked = Job(*found["job"]), found["unasked"]
            numbers = unasked, found["counted"], found["answered"], float(deadline)
            return Task(job, *numbers, stream, is_secure=bool(found.get("secure")))
        if kind == "Permit":
            return Permit(Job(*found["job"]))
        if kind == "End":
            return End(found["round"], found.get("final", False))
        if kind == "Final":
            return Final(stream)
        if kind == "Description":
            return Described(stream)
    except KeyError as error:
        raise Unreadable(f"a message is not valid: {kind}: expected a field {error}") from None
    except (InvalidUpdate, TypeError) as error:
        raise Unreadable(f"a message is not valid: {printable(str(error))}") from error
    raise Unreadable("a message is not valid: expected a Task, a Permit, an End, a Final or a Description")


def _dump(message: Any) -> Stream:
    if isinstance(message, Stream):
        return message
    if isinstance(message, Failure):
        job = values(message)["job"]
        return _PLAIN.dump({"type": "Reply", "job": job, "content": message.reason})
    return _PLAIN.dump(values(message))


def check_number(name: str, value: object) -> None:
    """Raise InvalidUpdate unless this is a whole number of 63 bits."""
    expect(is_whole(value, 0, MAX_NUMBER), name, value, "a whole number below 2**63")


_PLAIN = JsonSerializer()

# What arrives is a Task, a Permit, an End, a Final or a Description. What is put is one of the other messages, or the
# bytes of one.
ENVELOPES = SerializationOptions(load=lambda stream: read(_PLAIN.load(stream), stream), dump=_dump)


def with_values(
    load: Callable[[Stream], Any], envelopes: SerializationOptions, read: Callable[[Any, Stream], Any]
) -> SerializationOptions:
    """Return the serialisation of envelopes that have their `values`, so that these are parsed once.

    load: returns all values of a message, with its arrays. read: makes the envelope of a message with these values.
    """

    def load_envelope(stream: Stream) -> Any:
        try:
            found = load(stream)
        except Unreadable:  # of the arrays, perhaps: then the server gets the reason as the reply to this task
            return envelopes.load(stream)
        message = read(found, stream)
        return message._replace(values=found) if hasattr(message, "values") else message

    return SerializationOptions(load=load_envelope, dump=envelopes.dump)
