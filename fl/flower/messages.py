"""The messages between a grid and its nodes. Frozen data; each message checks its fields when it is made.

    grid ──Ask──► nodes      a message of the ServerApp to a batch of nodes
    grid ◄─Reply─ node       the ClientApp's reply
    grid ◄Secured node       under secure aggregation: the reply under masks, or the answer to a step, of which no app
                             knows
    grid ◄Failure node       the reason why there is none
    grid ◄─Fetch─ node       the node wants the files of the server's app
    grid ──Files─► node      the files, or none if the server delivers none
    grid ◄OtherApp node      the node's app has another version than that of the Ask
    grid ◄─Leave─ node       the node closes its session, and why (fl/envelope.py)
    grid ──End──► nodes      the run is over (fl/envelope.py)

They travel as fl's own messages do (fl/messages.py): as a JSON object with the type and the fields by name. An Ask is
the same for all nodes of a batch, so that it is serialised and put once. Both sides compute a message's id from its
batch and its node. The messages without records are in fl/flower/envelope.py. Pure.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, TypeAlias

from flwr.app import Metadata, RecordDict

from fl.envelope import MAX_NUMBER, Leave, values, with_values
from fl.errors import InvalidUpdate
from fl.flower import envelope
from fl.flower.envelope import NAME, VERSION, Failure, Fetch, OtherApp, is_name
from fl.flower.masked import Secured
from fl.flower.record_codec import check_value, decode, encode
from fl.flower.signed_app import SignedApp
from fl.messages import build
from fl.tensors.serialization import expect, messages
from netq.errors import Unreadable
from netq.options import SerializationOptions
from netq.text import printable
from netq.utils.stream import Stream
from netq.validate import is_number, is_whole

_CONFIG = (bool, int, float, str)
_MAX_TIME = 2.0**63  # seconds
_USAGE = 10  # figures of what a reply has cost


@dataclass(frozen=True)
class Ask:
    """A message to a batch of nodes. Raises Unreadable.

    secure: as of fl.messages.Task: the terms of a round under masks, or a step that the node answers by itself.
    """

    batch: int
    run: int
    run_config: Mapping[str, bool | int | float | str]
    message_type: str
    group_id: str
    created_at: float
    ttl: float
    app: str  # version of the server's app (AppFolder.version); "" if unknown
    content: RecordDict
    title: str = ""  # type and round, for the log
    secure: Mapping[str, Any] = field(default_factory=dict)
    protocol: str = VERSION

    def __post_init__(self) -> None:
        expect(_is_number(self.batch) and _is_number(self.run), "the batch and the run of a message", _NUMBERS)
        check_config(self.run_config)
        expect(type(self.message_type) is str, "the type of a message", "a text")
        expect(type(self.group_id) is str, "the group of a message", "a text")
        expect(_is_time(self.created_at) and _is_time(self.ttl), "the time of a message", "seconds")
        expect(is_name(self.app), "the app's version in a message", f"{NAME} printable characters at most")
        expect(type(self.secure) is dict, "the terms of a message", "a dict")
        try:
            Metadata(0, "", 0, 0, "", "", 0.0, 0.0, self.message_type)
        except ValueError as error:
            expect(False, "the type of a message", str(error))


@dataclass(frozen=True)
class Reply:
    """A node's reply to the message of a batch. Raises Unreadable.

    usage: what the reply has cost, by name (edge/usage.py); empty if that was not measured.
    """

    batch: int
    content: RecordDict
    usage: Mapping[str, float] = field(default_factory=dict)
    protocol: str = VERSION

    def __post_init__(self) -> None:
        expect(_is_number(self.batch), "the batch of a reply", "a whole number of 63 bits")
        right = type(self.usage) is dict and len(self.usage) <= _USAGE
        right = right and all(is_name(name) and _is_time(value) for name, value in self.usage.items())
        expect(right, "the usage in a reply", f"{_USAGE} finite numbers by name at most")


@dataclass(frozen=True)
class Files:
    """The files of the server's app, by name, and their signature. `files`: None if the server delivers none.

    Raises Unreadable.
    """

    version: str
    files: Mapping[str, bytes] | None
    signature: bytes
    protocol: str = VERSION

    def __post_init__(self) -> None:
        expect(is_name(self.version) and type(self.signature) is bytes, "an app", "a version, files and a signature")
        right = self.files is None or (
            type(self.files) is dict
            and all(type(name) is str and type(each) is bytes for name, each in self.files.items())
        )
        expect(right, "the files of an app", "bytes by name")

    @property
    def app(self) -> SignedApp | None:
        """The app; None if the server delivers none."""
        return None if self.files is None else SignedApp(self.version, dict(self.files), self.signature)


Message: TypeAlias = Ask | Reply | Secured | Failure | Fetch | Files | OtherApp | Leave

_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Ask, Reply, Secured, Failure, Fetch, Files, OtherApp, Leave)}
_NUMBERS = "whole numbers of 63 bits"
_SERIALIZER = messages()


def node_id(peer: uuid.UUID) -> int:
    """Return a peer's node id: 63 bits, the same in each run, and never 0 or 1, which Flower uses itself."""
    return int.from_bytes(hashlib.sha256(peer.bytes).digest()[:8]) >> 1 | 2


def message_id(batch: int, node: int) -> str:
    """Return the id of the message of a batch to a node."""
    return f"{batch:016x}{node:016x}"


def read(plain: Any, *, copy: bool = False) -> Message:
    """Make a message from the plain values of a peer. Raises Unreadable. For `copy` see fl.flower.record_codec.decode.

    Without `copy` its arrays are views of the message.
    """
    expect(type(plain) is dict and type(plain.get("type")) is str, "a message", "an object with a type")
    expect(plain["type"] in _KINDS, "the type of a message", f"one of {', '.join(_KINDS)}")
    kind = _KINDS[plain["type"]]
    found = {name: value for name, value in plain.items() if name != "type"}
    if kind is not Leave:
        expect(found.get("protocol") == VERSION, "the version of a message", f"{VERSION}; install the same netq")
    if kind in (Ask, Reply):
        found["content"] = decode(found.get("content"), copy=copy)
    if kind is Secured:  # fl's own reader checks it, with a job that says nothing
        answer = {"type": "Reply", "job": [0, 0, "secure"], "content": found.get("content")}
        found["content"] = getattr(build(answer), "content", None)
    try:
        message: Message = kind(**found)
    except (InvalidUpdate, TypeError) as error:
        raise Unreadable(f"a message is not valid: {printable(str(error))}") from error
    return message


def _dump(message: Any) -> Stream:
    if isinstance(message, (Ask, Reply)):
        return _SERIALIZER.dump({**values(message), "content": encode(message.content)})
    if isinstance(message, Secured):
        return _SERIALIZER.dump(message.plain())
    return _SERIALIZER.dump(values(message) if is_dataclass(message) else message)


# What arrives are plain values, for `read`. What is put is a message.
MESSAGES = SerializationOptions(load=_SERIALIZER.load, dump=_dump)
# Of a node that runs its app in the process that moves its messages.
WITH_VALUES = with_values(_SERIALIZER.load, envelope.ENVELOPES, envelope.read)


def title_of(message_type: str, group: str, content: RecordDict) -> str:
    """Return a message's type and round. A legacy app has the round as group, FedAvg in the config."""
    number = group or next(
        (each["server-round"] for each in content.config_records.values() if "server-round" in each), ""
    )
    return printable(f"{message_type} {number}".rstrip())[:NAME]


def check_config(config: Any) -> None:
    """Raise Unreadable unless this is a config of Flower: single values by name."""
    expect(type(config) is dict, "a config", "a dict")
    for name, value in config.items():
        expect(type(name) is str and type(value) is not list, "a config", "single values by name")
        check_value(f"the config's {name!r}", value, _CONFIG)


def _is_number(value: Any) -> bool:
    return is_whole(value, 0, MAX_NUMBER)


def _is_time(value: Any) -> bool:
    return is_number(value, -_MAX_TIME, _MAX_TIME)
