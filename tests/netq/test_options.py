"""Every option: its default, the values that it accepts, and the error for all others."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import uuid
from pathlib import Path
from typing import Any

import pytest

from netq.errors import InvalidOption
from netq.options import (
    CommunicatorOptions,
    ConnectionOptions,
    EventOptions,
    MqttOptions,
    NetworkLocation,
    SecurityOptions,
    SerializationOptions,
)
from netq.utils.stream import BytesSerializer, Stream

CLASSES = (
    ConnectionOptions,
    SerializationOptions,
    SecurityOptions,
    MqttOptions,
    EventOptions,
    CommunicatorOptions,
)

WHOLE = {  # the lowest and the highest
    "transport_size": (1, 2**32 - 1),
    "queue_size": (1, 2**63),
    "queue_bytes": (1, 2**62),
    "max_sessions": (1, 2**62),
    "max_sessions_per_address": (1, 2**62),
    "message_size": (1, 2**62),
    "window": (1, 2**62),
    "memory": (1, 2**62),
    "misses": (1, 1000),
}
SECONDS = {  # the least and the most, and the next that are refused
    "heartbeat": (0.001, 3600.0, 0.0009, 3601),  # it is milliseconds on the wire
    "handshake_timeout": (0.001, math.inf, 0, None),
    "session_timeout": (0, math.inf, -0.001, None),
    "linger": (0, math.inf, -0.001, None),
    "retry_min": (0.001, 1e6, 0.0, math.inf),
    "retry_max": (0.001, 1e6, 0.0, math.inf),
}


def refused(kind: type, name: str, value: Any) -> None:
    """The error names class, option, value, and what was expected."""
    with pytest.raises(InvalidOption) as caught:
        kind(**{name: value})
    shown = f"a {type(value).__name__}" if name == "password" else repr(value)
    head = f"{kind.__name__}.{name}: {shown}; expected "
    assert str(caught.value).startswith(head)
    assert len(str(caught.value)) > len(head)


def test_defaults() -> None:
    assert dataclasses.asdict(ConnectionOptions()) == {
        "get_merge": True,
        "put_merge": True,
        "transport_size": 16 * 1024**2,
        "queue_size": 2**30,
        "queue_bytes": 2**62,
        "max_sessions": 16384,
        "max_sessions_per_address": 4096,
        "message_size": 2**40,
        "drop_oldest": False,
        "window": 64 * 1024**2,
        "memory": 1024**3,
        "heartbeat": 10.0,
        "misses": 3,
        "handshake_timeout": 10.0,
        "takeover_grace": 3.0,
        "session_timeout": 3600.0,
        "linger": 10.0,
        "retry_min": 0.1,
        "retry_max": 30.0,
    }
    options = CommunicatorOptions()
    assert options.netloc == NetworkLocation() == ("127.0.0.1", 51966)
    assert options.connection == ConnectionOptions()
    assert options.security is None
    assert options.mqtt == MqttOptions("netq", None, None, 256 * 1024)
    assert options.workers == 1
    assert options.events == EventOptions(None, None)
    assert SecurityOptions() == SecurityOptions(None, None)


def test_every_instance_has_its_own_id() -> None:
    ids = {CommunicatorOptions().id for _ in range(100)}
    assert len(ids) == 100
    assert all(id.version == 4 for id in ids)
    assert CommunicatorOptions(id=uuid.UUID(int=1)).id == uuid.UUID(int=1)
    options = CommunicatorOptions()
    assert dataclasses.replace(options, workers=2).id == options.id


@pytest.mark.parametrize("kind", CLASSES)
def test_options_are_frozen(kind: Any) -> None:
    options = kind()
    for field in dataclasses.fields(options):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(options, field.name, getattr(options, field.name))


@pytest.mark.parametrize("kind", CLASSES)
def test_every_option_refuses_illegal_values(kind: Any) -> None:
    for field in dataclasses.fields(kind):
        refused(kind, field.name, object())
        refused(kind, field.name, -1)


@pytest.mark.parametrize("kind", CLASSES[:-1])
def test_every_option_is_documented(kind: Any) -> None:
    assert [field.name for field in dataclasses.fields(kind) if field.name not in kind.__doc__] == []


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers(name: str) -> None:
    low, high = WHOLE[name]
    for right in (low, high):
        assert getattr(ConnectionOptions(**{name: right}), name) == right  # type: ignore[arg-type]
    for wrong in (low - 1, high + 1, float(low), True, None, "1"):
        refused(ConnectionOptions, name, wrong)


@pytest.mark.parametrize("name", SECONDS)
def test_seconds(name: str) -> None:
    least, most, below, above = SECONDS[name]
    for right in (least, 1, 0.5, most):
        options = ConnectionOptions(**{"retry_min": 1e-3, "retry_max": 1e6} | {name: right})  # type: ignore[arg-type]
        assert getattr(options, name) == right
    for wrong in (below, above, -1, math.nan, -math.inf, True, None, "1"):
        refused(ConnectionOptions, name, wrong)


def test_retry_max_is_at_least_retry_min() -> None:
    assert ConnectionOptions(retry_min=5, retry_max=5).retry_max == 5
    with pytest.raises(InvalidOption, match=r"ConnectionOptions\.retry_max: 4; expected at least retry_min, 5"):
        ConnectionOptions(retry_min=5, retry_max=4)


@pytest.mark.parametrize("name", ["get_merge", "put_merge"])
def test_boolean_options(name: str) -> None:
    assert getattr(ConnectionOptions(**{name: False}), name) is False
    for wrong in (1, 0, None, "yes"):
        refused(ConnectionOptions, name, wrong)


def test_serialization_defaults_to_pickle() -> None:
    options = SerializationOptions()
    message = bytes(options.dump({"a": 1}))
    assert options.load(Stream([message])) == {"a": 1}
    plain = SerializationOptions(load=BytesSerializer().load, dump=BytesSerializer().dump)
    assert plain.load(BytesSerializer().dump(b"abc")) == b"abc"
    for name in ("load", "dump"):
        refused(SerializationOptions, name, None)
        refused(SerializationOptions, name, "pickle")


@pytest.mark.parametrize("name", ["key", "certificate", "authority", "revoked"])
def test_files(name: str, tmp_path: Path) -> None:
    file = tmp_path / "file.pem"  # not there: the communicator says so (SecurityError), when it reads the file
    for given in (file, str(file)):
        options: dict[str, Any] = {name: given}
        assert getattr(SecurityOptions(**options), name) == file
    refused(SecurityOptions, name, b"file.pem")


def test_post_quantum() -> None:
    assert SecurityOptions().post_quantum == "prefer"
    for value in (True, None, "required", "", 1):
        refused(SecurityOptions, "post_quantum", value)


@pytest.mark.parametrize("prefix", ["", "$SYS", "/farm", "a+b", "a#", "a\0b", "a\nb", "x" * 129, b"farm", None])
def test_refused_prefixes(prefix: Any) -> None:
    refused(MqttOptions, "prefix", prefix)


@pytest.mark.parametrize("prefix", ["netq", "farm/north", "été", "x" * 128, "a b", "a$"])
def test_accepted_prefixes(prefix: str) -> None:
    assert MqttOptions(prefix).prefix == prefix


def test_password_needs_user_and_is_hidden() -> None:
    with pytest.raises(InvalidOption, match=r"MqttOptions\.user: None; expected a user, as there is a password"):
        MqttOptions(password="secret")
    with pytest.raises(InvalidOption) as caught:
        MqttOptions(user="board", password=b"secret")  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)
    options = CommunicatorOptions(mqtt=MqttOptions(user="board", password="secret"))
    for shown in (options, dataclasses.asdict(options), copy.deepcopy(options), options.mqtt.password):
        assert "secret" not in repr(shown)
    assert pickle.loads(pickle.dumps(options.mqtt)).password == "secret"


TEXTS = ["\udc80", "a\0b", "x" * 65_536, "é" * 32_768, 7]


@pytest.mark.parametrize("text", TEXTS)
def test_refused_users_and_passwords(text: Any) -> None:
    refused(MqttOptions, "user", text)
    with pytest.raises(InvalidOption, match=r"MqttOptions\.password: a (str|int); expected") as caught:
        MqttOptions(user="board", password=text)
    assert repr(text) not in str(caught.value)


def test_accepted_users_and_passwords() -> None:
    assert MqttOptions(user="é" * 32_767, password="").password == ""


@pytest.mark.parametrize("size", [1023, 128 * 1024**2 + 1, 1024.0, True, None])
def test_refused_packet_sizes(size: Any) -> None:
    refused(MqttOptions, "packet_size", size)


@pytest.mark.parametrize("name", ["ini", "fin"])
def test_events(name: str) -> None:
    async def event(peer: uuid.UUID) -> None:
        """Nobody would await it."""

    values: dict[str, Any] = {name: print}
    assert getattr(EventOptions(**values), name) is print
    refused(EventOptions, name, "print")
    refused(EventOptions, name, event)


def test_end_of_sessions_is_a_stream_or_none() -> None:
    assert EventOptions().end is None
    refused(EventOptions, "end", b"end")


@pytest.mark.parametrize(
    "netloc",
    [
        "127.0.0.1:80",
        ("127.0.0.1",),
        ("127.0.0.1", 80, 0),
        ["127.0.0.1", 80],
        ("", 80),
        (None, 80),
        ("localhost", "80"),
        ("localhost", 80.0),
        ("localhost", True),
        ("localhost", -1),
        ("localhost", 65536),
    ],
)
def test_refused_netlocs(netloc: Any) -> None:
    refused(CommunicatorOptions, "netloc", netloc)


@pytest.mark.parametrize("netloc", [("localhost", 0), ("::1", 65535), NetworkLocation("example.org", 1)])
def test_plain_tuple_is_a_netloc(netloc: Any) -> None:
    options = CommunicatorOptions(netloc=netloc)
    assert type(options.netloc) is NetworkLocation
    assert options.netloc == netloc


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("id", "7f0c5e0a-6f0e-4c0e-9d6b-0d3c1f2a4b5c"),
        ("id", None),
        ("connection", None),
        ("connection", {}),
        ("serialization", None),
        ("serialization", EventOptions()),
        ("security", "key.pem"),
        ("mqtt", "netq"),
        ("mqtt", None),
        ("events", None),
        ("events", print),
        ("workers", 0),
        ("workers", 257),
        ("workers", 1.0),
        ("workers", True),
    ],
)
def test_refused_communicator_options(name: str, wrong: Any) -> None:
    refused(CommunicatorOptions, name, wrong)


def test_accepted_communicator_options() -> None:
    for workers in (1, 256):
        assert CommunicatorOptions(workers=workers).workers == workers
    assert CommunicatorOptions(security=SecurityOptions()).security == SecurityOptions()
