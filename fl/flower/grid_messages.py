"""The messages between a grid and its nodes, as lists of plain values and arrays.

    grid ──Ask──► nodes     [VERSION, batch, run, run_config, type, group, created, ttl, app, records]
    grid ◄─Reply─ node      [VERSION, batch, records, usage]  |  [VERSION, batch, code, reason]
    grid ◄──App── node      [VERSION, "app", version]: this node's app has another version than that of the Ask
    grid ◄─Fetch─ node      [VERSION, "fetch", version]: this node wants the files of the server's app
    grid ◄─Leave─ node      [VERSION, "leave", reason]: this node closes its session
    grid ──Files─► node     [VERSION, "files", version, files, signature]; files is None if the server delivers none
    grid ──End──► nodes     [VERSION, "end"]: the run is over

An Ask is the same for all nodes of a batch, so that it is serialised and put once. Both sides compute a message's id
from its batch and its node. If a node cannot read a message, the `batch` of its Reply is None. Messages are serialised
as fl's own are (fl/tensors/json_format.py). `read_ask` and `read_reply` check all fields, and
raise Unreadable. The messages without arrays are written by fl/flower/envelope.py. Pure.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from flwr.app import Error, Metadata, RecordDict

from fl.flower.envelope import NAME, REASON, VERSION, failure, is_name
from fl.flower.record_codec import check_value, decode, encode
from fl.flower.signed_app import SignedApp
from fl.tensors.serialization import expect, messages
from netq.options import SerializationOptions
from netq.text import printable
from netq.validate import is_number, is_whole

_SERIALIZER = messages()
MESSAGES = SerializationOptions(load=_SERIALIZER.load, dump=_SERIALIZER.dump)

_CONFIG = (bool, int, float, str)
_MAX_TIME = 2.0**63  # seconds
_USAGE = 10  # figures of what a reply has cost


class Ask(NamedTuple):
    """A message to a batch of nodes."""

    batch: int
    run: int
    run_config: Mapping[str, bool | int | float | str]
    message_type: str
    group_id: str
    created_at: float
    ttl: float
    app: str  # version of the server's app (AppFolder.version); "" if unknown
    content: RecordDict


class Reply(NamedTuple):
    """A node's reply to the message of a batch. `batch` is None if the node could not read the message.

    usage: what the reply has cost, by name (edge/usage.py); empty if that was not measured.
    """

    batch: int | None
    content: RecordDict | Error
    usage: Mapping[str, float] = {}


def node_id(peer: uuid.UUID) -> int:
    """Return a peer's node id: 63 bits, the same in each run, and never 0 or 1, which Flower uses itself."""
    return int.from_bytes(hashlib.sha256(peer.bytes).digest()[:8]) >> 1 | 2


def message_id(batch: int, node: int) -> str:
    """Return the id of the message of a batch to a node."""
    return f"{batch:016x}{node:016x}"


def write_ask(ask: Ask) -> list[Any]:
    """Return the plain values of an Ask, for `read_ask`."""
    return [VERSION, *ask[:-1], encode(ask.content)]


def write_reply(reply: Reply) -> list[Any]:
    """Return the plain values of a Reply, for `read_reply`."""
    if isinstance(reply.content, Error):
        return failure(reply.batch, reply.content.reason or "", reply.content.code)
    return [VERSION, reply.batch, encode(reply.content), dict(reply.usage)]


def read_ask(plain: Any, *, copy: bool) -> Ask:
    """Return the message of a grid. Raises Unreadable. For `copy` see fl.flower.record_codec.decode."""
    _check_version(plain)
    expect(len(plain) == 10, "a message of the grid", "ten fields")
    _, batch, run, run_config, message_type, group_id, created_at, ttl, app, content = plain
    expect(_is_number(batch) and _is_number(run), "the batch and the run of a message", "whole numbers of 63 bits")
    check_config(run_config)
    expect(type(group_id) is str, "the group of a message", "a text")
    expect(_is_time(created_at) and _is_time(ttl), "the time of a message", "seconds")
    expect(is_name(app), "the app's version in a message", f"{NAME} printable characters at most")
    _check_type(message_type)
    records = decode(content, copy=copy)
    return Ask(batch, run, run_config, message_type, group_id, created_at, ttl, app, records)


def read_text(plain: Any, kind: str) -> str | None:
    """Return the text in an "app", a "fetch" or a "leave", as `kind` says; None for another message.

    Raises Unreadable.
    """
    _check_version(plain)
    is_kind = len(plain) == 3 and type(plain[1]) is str and plain[1] == kind
    return printable(plain[2]) if is_kind and type(plain[2]) is str and len(plain[2]) <= REASON else None


def write_files(version: str, app: SignedApp | None) -> list[Any]:
    """Return the plain values of Files, for `read_files`."""
    return [VERSION, "files", version, None, b""] if app is None else [VERSION, "files", *app]


def read_files(plain: Any) -> tuple[str, SignedApp | None]:
    """Return the version and the app in Files. Raises Unreadable."""
    _check_version(plain)
    expect(len(plain) == 5, "an app", "five fields")
    version, files, signature = plain[2:]
    expect(is_name(version) and type(signature) is bytes, "an app", "a version, files and a signature")
    if files is None:
        return version, None
    right = type(files) is dict and all(type(name) is str and type(data) is bytes for name, data in files.items())
    expect(right, "the files of an app", "bytes by name")
    return version, SignedApp(version, files, signature)


def read_reply(plain: Any) -> Reply:
    """Return the message of a node, whose arrays are views of the message. Raises Unreadable."""
    _check_version(plain)
    expect(len(plain) == 4, "a reply", "four fields")
    batch, code, reason = plain[1:]
    known = _is_number(batch) or (batch is None and type(code) is int)
    expect(known, "the batch of a reply", "a whole number of 63 bits, or None for an error")
    if type(code) is list:
        return Reply(batch, decode(code, copy=False), _read_usage(reason))
    expect(is_whole(code, 0, 2**31 - 1), "the code of an error", "a whole number of 31 bits")
    expect(type(reason) is str and len(reason) <= REASON, "the reason of an error", f"{REASON} characters at most")
    return Reply(batch, Error(code, printable(reason)))


def _read_usage(plain: Any) -> dict[str, float]:
    right = type(plain) is dict and len(plain) <= _USAGE
    right = right and all(is_name(name) and _is_time(value) for name, value in plain.items())
    expect(right, "the usage in a reply", f"{_USAGE} finite numbers by name at most")
    return {name: float(value) for name, value in plain.items()}


def check_config(config: Any) -> None:
    """Raise Unreadable unless this is a config of Flower: single values by name."""
    expect(type(config) is dict, "a config", "a dict")
    for name, value in config.items():
        expect(type(name) is str and type(value) is not list, "a config", "single values by name")
        check_value(f"the config's {name!r}", value, _CONFIG)


def _check_version(plain: Any) -> None:
    expect(type(plain) is list and len(plain) >= 2, "a message", "a list that begins with its version")
    expect(
        type(plain[0]) is str and plain[0] == VERSION, "the version of a message", f"{VERSION}; install the same netq"
    )


def _check_type(message_type: Any) -> None:
    expect(type(message_type) is str, "the type of a message", "a text")
    try:
        Metadata(0, "", 0, 0, "", "", 0.0, 0.0, message_type)
    except ValueError as error:
        expect(False, "the type of a message", str(error))


def _is_number(value: Any) -> bool:
    return is_whole(value, 0, 2**63 - 1)


def _is_time(value: Any) -> bool:
    return is_number(value, -_MAX_TIME, _MAX_TIME)
