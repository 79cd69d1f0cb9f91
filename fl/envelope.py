"""Reads fl's messages without their arrays, for a process that only moves models. Needs no numpy.

A Task holds its bytes as they came. fl/messages.py has the messages, their fields, and
the whole of their checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from fl.tensors.json_format import JsonSerializer
from netq.errors import Unreadable
from netq.options import SerializationOptions
from netq.utils.stream import Stream
from netq.validate import is_number, is_whole

Purpose = Literal["train", "evaluate"]
PURPOSES = get_args(Purpose)
Job = tuple[int, int, Purpose]  # the run, the round, and the purpose of a task

RESERVED = {  # names in the config of a client's functions that no server and no device may use for a value
    "round": "the number of the round",
    "state": "what a client's functions keep between rounds",
}
_MAX_NUMBER = 2**63 - 1


class Task(NamedTuple):
    """A server asks for training or evaluation. `stream` is the whole message, with the model."""

    job: Job
    unasked: int  # bytes that the reply may have without an Offer and a Permit
    counted: int  # updates of this client that the server has counted with this model
    answered: int  # replies of this client to this job that the server had when it sent the task
    deadline: float  # seconds for which the server waits
    stream: Stream

    @property
    def key(self) -> str:
        """The name in a file of the reply that this task wants."""
        return "{} {} {} {}".format(*self.job, self.counted)

    @property
    def title(self) -> str:
        """Round and purpose, for the log."""
        return f"round {self.job[1]}: {self.job[2]}"


class Finished(NamedTuple):
    """The reply to a task, as bytes. `size`: bytes of its arrays; 0 if it has none."""

    job: Any  # of the task
    message: Stream
    size: int


class Permit(NamedTuple):
    """A server allows a client to send the reply that it has offered."""

    job: Job


class End(NamedTuple):
    """A server ends its federation after this round. `final`: whether a Final follows."""

    round: int
    final: bool


class Final(NamedTuple):
    """The last model. `stream` is the whole message."""

    stream: Stream


def offer(job: Job, size: int) -> dict[str, Any]:
    """Return the Offer of a reply."""
    return {"type": "Offer", "job": job, "size": size}


def failure(job: Job, reason: str) -> dict[str, Any]:
    """Return the Reply to a task that failed."""
    return {"type": "Reply", "job": job, "content": reason}


def introduction(properties: Mapping[str, Any], final: bool) -> dict[str, Any]:
    """Return the Introduction of a client. `final`: whether it wants the last model."""
    return {"type": "Introduction", "properties": dict(properties), "final": final}


def leave(reason: str) -> dict[str, Any]:
    """Return the Leave of a client that closes its session."""
    return {"type": "Leave", "reason": reason}


def _load(stream: Stream) -> Task | Permit | End | Final:
    values = _PLAIN.load(stream)
    match values:
        case {
            "type": "Task",
            "job": job,
            "unasked": unasked,
            "counted": counted,
            "answered": answered,
            "deadline": limit,
        }:
            numbers = _number("unasked", unasked), _number("counted", counted), _number("answered", answered)
            return Task(_job(job), *numbers, _seconds("deadline", limit), stream)
        case {"type": "Permit", "job": job}:
            return Permit(_job(job))
        case {"type": "End", "round": number, **others}:
            return End(_number("round", number), _flag("final", others.get("final", False)))
        case {"type": "Final"}:
            return Final(stream)
    raise Unreadable("a message is not valid: expected a Task, a Permit, an End or a Final")


def _job(value: Any) -> Job:
    if type(value) is not list or len(value) != 3 or type(value[2]) is not str or value[2] not in PURPOSES:
        raise Unreadable(f"a message is not valid: job: expected a run, a round, and {' or '.join(PURPOSES)}")
    purpose: Purpose = value[2]  # type: ignore[assignment]  # it is one of them
    return _number("run", value[0]), _number("round", value[1]), purpose


def _flag(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise Unreadable(f"a message is not valid: {name}: expected true or false")
    return value


def _number(name: str, value: Any) -> int:
    if not is_whole(value, 0, _MAX_NUMBER):
        raise Unreadable(f"a message is not valid: {name}: expected a whole number below 2**63")
    return int(value)


def _seconds(name: str, value: Any) -> float:
    if not is_number(value, 0):
        raise Unreadable(f"a message is not valid: {name}: expected seconds")
    return float(value)


def _dump(message: Any) -> Stream:
    return message if isinstance(message, Stream) else _PLAIN.dump(message)


_PLAIN = JsonSerializer()

# What arrives is a Task, a Permit, an End or a Final. What is put is an `introduction`, an `offer`, a `failure`, a
# `leave`, or a message's bytes.
ENVELOPES = SerializationOptions(load=_load, dump=_dump)
