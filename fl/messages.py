"""Messages between the server and its clients. Frozen data; each message checks its fields when it is made.

    server ──Task──► client        train, or evaluate, this model
    server ◄─Offer── client        the reply is ready, and too large to send without a permit
    server ─Permit─► client        there is room for the reply
    server ◄─Reply── client        an Update (train), a Report (evaluate), an Answered (statistics), a Skip, or the
                                   reason of a failure; of a relay a Subtotal; under secure aggregation a Masked, and
                                   an Answered to a step
    server ◄Introduction client    the client's properties, at the begin of a session
    server ◄─Leave── client        the client closes its session, and why
    server ◄Describe─ client       a client that wants no task, but to know what tasks are like
    server Description► client     the answer
    server ───End──► client        the federation is over
    server ──Final─► client        its last model, for a client that wants it

A message travels as JSON and the memory of its arrays (fl/tensors/json_format.py). The JSON is an object with the type
and the fields by name: {"type": "Offer", "job": [1, 3, "train"], "size": 1000}. docs/reference/fl-messages.md specifies
them for other languages. `build` makes the objects, and their constructors check every field.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fl import envelope, metrics
from fl.checks import MODEL_IS, expect
from fl.compression.packed import Packed, is_shape
from fl.envelope import (
    MAX_NUMBER,
    MAX_TIME,
    Describe,
    End,
    Introduction,
    Job,
    Leave,
    Offer,
    Permit,
    check_number,
    values,
)
from fl.subtotal import Subtotal
from fl.tensors import serialization as tensors
from fl.tensors.json_format import MAX_BUFFERS, MAX_TEXT, JsonSerializer
from fl.tensors.roles import ROLES, Roles, are_roles
from fl.tensors.spec import Model, nbytes, plain
from fl.tensors.storage import Passed
from netq.errors import Unreadable
from netq.options import SerializationOptions
from netq.text import printable
from netq.validate import is_number

_MAX_EXAMPLES = 2**53  # up to which a float64 holds every whole number


@dataclass(frozen=True)
class Update:
    """A trained model. Raises InvalidUpdate.

    metrics: means over the `num_examples` of the training data. Values beyond a float32 become its largest one. The
             server leaves NaN and infinity out of the mean of the clients, and counts them. A value may also be a list
             or an array of numbers, and an fl.Sum of either.
    extra:   further arrays or tensors by name, which some strategies need (fl.ControlVariate).
    """

    model: dict[str, Any]  # a strategy gets a Mapping, which may unpack each tensor on access
    num_examples: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays and tensors."""
        return nbytes(self.model) + nbytes(self.extra) + 8 * metrics.elements(self.metrics)

    def __post_init__(self) -> None:
        for name in ("model", "extra"):
            value = getattr(self, name)
            expect(isinstance(value, dict), name, value, MODEL_IS)
            object.__setattr__(self, name, plain(value))  # a state_dict is an OrderedDict, which is not sent
        object.__setattr__(self, "num_examples", _checked_examples(self.num_examples))
        object.__setattr__(self, "metrics", metrics.checked(self.metrics))


@dataclass(frozen=True)
class Report:
    """The evaluation of a model. `metrics` are means over `num_examples`. Raises InvalidUpdate."""

    num_examples: int
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_examples", _checked_examples(self.num_examples))
        object.__setattr__(self, "metrics", metrics.checked(self.metrics))


@dataclass(eq=False)
class Skip(Exception):
    """A client has nothing for this task, and that is no failure. Return it, or raise it. Raises InvalidUpdate.

    An Update or Report of 0 examples is the same. The round does not wait for the client further.
    """

    reason: str

    def __post_init__(self) -> None:
        expect(isinstance(self.reason, str), "reason", self.reason, "a text")
        self.reason = printable(self.reason)
        super().__init__(self.reason)


@dataclass(frozen=True)
class Masked:
    """An update, a report or statistics under masks: the server learns the sum of all only (fl/secure).

    Raises InvalidUpdate.

    session: of the keys, and `number` of the masked round in it: a vector counts in this attempt of a round only.
    vector:  its words, in bytes.
    packets: shares of the client's secrets, sealed for each keeper.
    shares:  hashes of these, and `secrets` of the secrets.
    """

    session: str
    number: int
    vector: NDArray[np.uint8]
    packets: bytes = b""
    shares: bytes = b""
    secrets: bytes = b""
    num_examples: ClassVar[int] = 1  # what each client counts as: how many examples it has is in the sum
    metrics: ClassVar[Mapping[str, Any]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all that is sent."""
        return int(self.vector.nbytes) + len(self.packets) + len(self.shares) + len(self.secrets)

    def __post_init__(self) -> None:
        expect(type(self.session) is str, "session", self.session, "a text")
        check_number("number", self.number)
        right = isinstance(self.vector, np.ndarray) and self.vector.dtype == np.uint8 and self.vector.ndim == 1
        expect(right, "vector", self.vector, "an array of bytes")
        for name in ("packets", "shares", "secrets"):
            expect(type(getattr(self, name)) is bytes, name, getattr(self, name), "bytes")


@dataclass(frozen=True)
class Task:
    """Asks a client to train or to evaluate a model.

    unasked:     bytes that the reply may have without an Offer and a Permit.
    deltas:      whether the update is to be the difference from this model (fl.tensors.model.difference).
    compression: how the update's tensors are to be packed: the fields of an fl.Compression by name; empty: not at all.
                 A packed tensor is always a difference.
    counted:     updates of this client that the server has counted with this model, if the strategy takes several: a
                 client that has such an update stored is asked for another one.
    answered:    replies of this client to this job that the server had when it sent this task. A client that has sent
                 more need not do the task again: they will count. Without it the client does each task.
    deadline:    seconds for which the server waits for the reply.
    roles:       of the tensors that are not trained, by name (fl/tensors/roles.py); of the local ones, too, which the
                 model does not have. Only trained tensors are packed, or sent as differences.
    folding:     what the sums of the server's strategy depend on (Strategy.folding): relays fold so. Empty: not said.
    excluded:    ids of clients that relays leave out: in a round before, more than one had an update of them.
    secure:      of secure aggregation: the terms of the round (fl/secure/terms.py), or a step that the client is to
                 answer (fl/secure/participant.py), if and only if the purpose is "secure". Empty: updates are sent as
                 they are.
    """

    job: Job
    model: Model
    config: Mapping[str, Any]
    unasked: int = MAX_NUMBER
    deltas: bool = False
    compression: Mapping[str, Any] = field(default_factory=dict)
    counted: int = 0
    answered: int = MAX_NUMBER
    deadline: float = math.inf
    roles: Roles = field(default_factory=dict)
    folding: Mapping[str, Any] = field(default_factory=dict)
    excluded: Sequence[str] = ()
    secure: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expect(isinstance(self.model, Mapping), "model", self.model, MODEL_IS)
        check_number("unasked", self.unasked)
        check_number("counted", self.counted)
        check_number("answered", self.answered)
        expect(is_number(self.deadline, 0), "deadline", self.deadline, "seconds")
        expect(isinstance(self.folding, dict), "folding", self.folding, "a dict")
        expect(isinstance(self.secure, dict), "secure", self.secure, "a dict")
        right = ("step" in self.secure) == (self.job.purpose == "secure")
        expect(right, "secure", self.secure, 'a step for the purpose "secure", and for no other one')
        _check_ids("excluded", self.excluded)
        object.__setattr__(self, "excluded", tuple(self.excluded))
        _check_roles(self.roles)


@dataclass(frozen=True)
class Answered:
    """What a client answers to a step of secure aggregation, or to a question for statistics: plain values by name."""

    values: Mapping[str, Any]

    def __post_init__(self) -> None:
        expect(isinstance(self.values, dict), "values", self.values, "a dict")


@dataclass(frozen=True)
class Reply:
    """The result of a task. A text is the reason why the client could not do the task."""

    job: Job
    content: Content | Secured | Subtotal | str

    def __post_init__(self) -> None:
        known = isinstance(self.content, (*_CONTENTS.values(), str))
        expect(known, "content", self.content, "an Update, a Report or a Skip")
        if isinstance(self.content, str):
            object.__setattr__(self, "content", printable(self.content))


@dataclass(frozen=True)
class Final:
    """The last model of a federation."""

    model: Model


@dataclass(frozen=True)
class Description:
    """A Task without its arrays.

    round:   the number of the next round, or of the one that is under way.
    tensors: of the model: shape, dtype, and whether it is a torch.Tensor, by name.
    time:    of the server, in seconds since 1970.
    relays:  whether the client that asks may be a relay.
    name:    what the server calls it; empty: only by its id.
    path:    the relays between it and the server, by the ids that they have as clients; the nearest first.

    The other fields are those of Task.
    """

    round: int
    tensors: Mapping[str, tuple[tuple[int, ...], str, bool]]
    config: Mapping[str, Any]
    deltas: bool
    compression: Mapping[str, Any]
    roles: Roles
    time: float
    folding: Mapping[str, Any] = field(default_factory=dict)
    relays: bool = False
    name: str = ""
    path: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_number("round", self.round)
        expect(isinstance(self.folding, dict), "folding", self.folding, "a dict")
        expect(type(self.relays) is bool, "relays", self.relays, "True or False")
        expect(type(self.name) is str, "name", self.name, "a text")
        _check_ids("path", self.path)
        object.__setattr__(self, "path", tuple(self.path))
        expect(is_number(self.time, 0, MAX_TIME), "time", self.time, "seconds since 1970")
        _check_roles(self.roles)
        expect(isinstance(self.tensors, dict), "tensors", self.tensors, "a dict")
        for name, value in self.tensors.items():
            right = type(name) is str and type(value) is tuple and len(value) == 3
            right = right and is_shape(value[0]) and type(value[1]) is str and type(value[2]) is bool
            expect(right, "a tensor", value, "its shape, its dtype, and whether it is one of torch")


Content: TypeAlias = Update | Report | Skip
Secured: TypeAlias = Masked | Answered  # contents of secure aggregation
Measured = TypeVar("Measured", Update | Subtotal, Report | Subtotal, Masked)
Changed = TypeVar("Changed", bound=Task | Update | Report | Subtotal)
Message: TypeAlias = Task | Offer | Permit | Reply | Introduction | Leave | Describe | Description | End | Final

_WITHOUT_JOB = (Introduction, Leave, Describe, Description, End, Final)
_MESSAGES: dict[str, type[Message]] = {kind.__name__: kind for kind in (Task, Offer, Permit, Reply, *_WITHOUT_JOB)}
_CONTENTS: dict[str, type[Content | Secured | Subtotal]] = {
    kind.__name__: kind for kind in (Update, Report, Skip, Subtotal, Masked, Answered)
}
_OURS = (*_MESSAGES.values(), *_CONTENTS.values())


def build(values: Any) -> Message:
    """Make a message from the plain values of a peer. Raises Unreadable unless they describe a valid message."""
    try:
        kind, found = _split("a message", values, _MESSAGES)
        if kind not in _WITHOUT_JOB:
            found["job"] = Job(*found.get("job", ()))
        if kind is Reply and type(content := found.get("content")) is dict:
            found["content"] = _build_content(content)
        if kind is Description and type(tensors := found.get("tensors")) is dict:
            found["tensors"] = {name: (tuple(shape), *others) for name, (shape, *others) in tensors.items()}
        message: Message = kind(**found)
        return message
    except Exception as error:  # values that a peer chose may raise anything
        raise Unreadable(f"a message is not valid: {printable(str(error))}") from error


def _build_content(values: Any) -> Content | Secured | Subtotal:
    kind, found = _split("content", values, _CONTENTS)
    if type(given := found.get("metrics")) is dict:
        found["metrics"] = {name: _build_metric(value) for name, value in given.items()}
    if kind is Subtotal:
        return Subtotal.of(found)
    if kind is Update and type(model := found.get("model")) is dict:
        found["model"] = {name: _build_tensor(tensor) for name, tensor in model.items()}
    content: Content | Secured = kind(**found)
    return content if isinstance(content, Masked | Answered) else counted(content)


def _build_metric(value: Any) -> Any:
    return metrics.Sum(value["sum"]) if type(value) is dict and list(value) == ["sum"] else value


def _build_tensor(tensor: Any) -> Any:
    if type(tensor) is not dict:
        return tensor
    values: list[Any] = [tuple(value) if type(value) is list else value for value in tensor["packed"]]
    return Packed(*values)


def _split(name: str, values: Any, kinds: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the class that the type names, and the other fields."""
    right = type(values) is dict and type(values.get("type")) is str and values["type"] in kinds
    expect(right, name, values, f"an object whose type is {' or '.join(kinds)}")
    return kinds[values["type"]], {name: value for name, value in values.items() if name != "type"}


def _plain(obj: Any) -> Any:
    """Return what stands for an object in a message: the fields of ours, or the identifier of an array or tensor."""
    if isinstance(obj, Packed):
        return {"packed": [getattr(obj, each.name) for each in fields(obj)]}
    if isinstance(obj, metrics.Sum):
        return {"sum": obj.value}
    if isinstance(obj, Passed):
        return obj.identifier
    if isinstance(obj, Subtotal):
        return obj.plain()
    return values(obj) if isinstance(obj, _OURS) else tensors.dump_plain(obj)


def serialization(text: int = MAX_TEXT, buffers: int = MAX_BUFFERS) -> SerializationOptions:
    """Return the serialisation of messages. Those with more bytes of text, or more buffers, are not loaded."""
    serializer = JsonSerializer(_plain, tensors.load, text, buffers)
    return SerializationOptions(load=lambda stream: build(serializer.load(stream)), dump=serializer.dump)


MESSAGES = serialization()
PASSED = JsonSerializer(_plain, Passed)  # the same, and each tensor arrives as it came
# Of a client that trains in the process that moves its messages.
WITH_VALUES = envelope.with_values(tensors.messages().load, envelope.ENVELOPES, envelope.read)


def counted(content: Content) -> Content:
    """Return a Skip for what has no examples, and would have no weight."""
    return content if isinstance(content, Skip) or content.num_examples else Skip("it has no examples")


def with_fields(message: Changed, **others: object) -> Changed:
    """Return a Task, Update or Report with other values of some fields. None is checked again."""
    found = object.__new__(type(message))
    vars(found).update(vars(message), **others)
    return found


def _check_ids(name: str, ids: object) -> None:
    right = isinstance(ids, list | tuple) and all(type(each) is str for each in ids)
    expect(right, name, ids, "a list of ids")


def _check_roles(roles: object) -> None:
    expect(are_roles(roles), "roles", roles, f"a dict of {', '.join(ROLES)} by name")


def _checked_examples(number: Any) -> int:
    whole = isinstance(number, numbers.Integral) and not isinstance(number, bool)
    expect(whole and 0 <= number <= _MAX_EXAMPLES, "num_examples", number, "a whole number, 0 to 2**53")
    return int(number)
