"""What a communicator can be told. Frozen; each class checks itself and names the option that is wrong."""

from __future__ import annotations

import enum
import inspect
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from netq.errors import InvalidOption
from netq.utils.stream import PickleSerializer, Stream
from netq.validate import expect, flag, is_whole, seconds, whole

MIB = 1024**2


class Protocol(enum.StrEnum):
    """What carries the bytes. Each member is a string: `"tcp"` does for `Protocol.TCP`."""

    TCP = "tcp"
    MQTT = "mqtt"
    GRPC = "grpc"
    SHM = "shm"


class Purpose(enum.StrEnum):
    """One server, many clients. Each member is a string, as those of Protocol are."""

    SERVER = "server"
    CLIENT = "client"


class NetworkLocation(NamedTuple):
    """Where the server listens. Port 0 lets the system choose one: see `Communicator.netloc`."""

    host: str = "127.0.0.1"
    port: int = 51966


@dataclass(frozen=True)
class ConnectionOptions:
    """How messages travel. Sizes are bytes, times are seconds.

    get_merge:         reassemble a message in one block (arrays become views of it); if not, large chunks apart.
    put_merge:         join the buffers of small messages before sending; if not, hand each to the system by itself:
                       only TCP without TLS can, all else refuses False with InvalidOption.
    transport_size:    the largest chunk of a message in one frame.
    queue_size:        messages that may wait for one peer; one more gets QueueFull in its future.
    message_size:      the largest message taken; the peer is told, and does not send a larger one.
    drop_oldest:       for those who want only the newest: when `queue_size` messages of a lane wait that have not begun
                       to travel, the oldest gets QueueFull in its future, and the new one takes its place.
    window:            bytes that a peer may have here, unread, on each lane; a larger message comes alone.
    memory:            bytes that all peers together may have here, unread; but half of it and one message at least.
                       Every lane's first 256 KiB (see netq/protocol/flow_control.py) come beside it.
    heartbeat, misses: a peer says something at least every `heartbeat`; silent for `misses` times that, it is lost.
    handshake_timeout: a link that has not said who it is by then is cut.
    session_timeout:   how long a session outlives its last link; then it is over, and what it held fails with Closed.
    linger:            how long `close` waits for a peer that is not connected and has messages due.
    retry_min, retry_max: bounds of the random pause before a client tries again ("full jitter").
    """

    get_merge: bool = True
    put_merge: bool = True
    transport_size: int = 16 * MIB
    queue_size: int = 2**30
    message_size: int = 2**40
    drop_oldest: bool = False
    window: int = 64 * MIB
    memory: int = 1024 * MIB
    heartbeat: float = 10.0
    misses: int = 3
    handshake_timeout: float = 10.0
    session_timeout: float = 3600.0
    linger: float = 10.0
    retry_min: float = 0.1
    retry_max: float = 30.0

    def __post_init__(self) -> None:
        flag("ConnectionOptions.get_merge", self.get_merge)
        flag("ConnectionOptions.put_merge", self.put_merge)
        flag("ConnectionOptions.drop_oldest", self.drop_oldest)
        whole("ConnectionOptions.transport_size", self.transport_size, 1, 2**32 - 1)
        whole("ConnectionOptions.queue_size", self.queue_size, 1, 2**63)
        whole("ConnectionOptions.message_size", self.message_size, 1, 2**62)
        whole("ConnectionOptions.window", self.window, 1, 2**62)
        whole("ConnectionOptions.memory", self.memory, 1, 2**62)
        whole("ConnectionOptions.misses", self.misses, 1, 1000)
        seconds("ConnectionOptions.heartbeat", self.heartbeat, 0.001, 3600.0)  # milliseconds on the wire
        seconds("ConnectionOptions.handshake_timeout", self.handshake_timeout, 0.001)
        seconds("ConnectionOptions.session_timeout", self.session_timeout, 0.0)
        seconds("ConnectionOptions.linger", self.linger, 0.0)
        seconds("ConnectionOptions.retry_min", self.retry_min, 0.001, 1e6)
        seconds("ConnectionOptions.retry_max", self.retry_max, 0.001, 1e6)
        longer = self.retry_max >= self.retry_min
        expect(longer, "ConnectionOptions.retry_max", self.retry_max, f"at least retry_min, {self.retry_min}")


@dataclass(frozen=True)
class SerializationOptions:
    """How objects become bytes: `dump` for put, `load` for get. Called in the caller's thread.

    load: given the Stream of a message (it reads like a file); returns what `get` returns.
    dump: given what was put; returns bytes, another contiguous buffer, or a Stream. It is not copied.
    """

    load: Callable[[Stream], Any] = field(default_factory=lambda: PickleSerializer().load)
    dump: Callable[[Any], Any] = field(default_factory=lambda: PickleSerializer().dump)

    def __post_init__(self) -> None:
        expect(callable(self.load), "SerializationOptions.load", self.load, "a callable")
        expect(callable(self.dump), "SerializationOptions.dump", self.dump, "a callable")


@dataclass(frozen=True)
class SecurityOptions:
    """TLS. PEM files, read when a communicator is made: what cannot be used raises SecurityError there.

    key:         a server's private key; None for a client.
    certificate: a server's certificate chain; for a client the certificates it trusts (None: the system's).
    """

    key: Path | None = None
    certificate: Path | None = None

    def __post_init__(self) -> None:
        for name in ("key", "certificate"):
            path = getattr(self, name)
            expect(isinstance(path, str | Path | None), f"SecurityOptions.{name}", path, "a path or None")
            if path is not None:
                object.__setattr__(self, name, Path(path))


@dataclass(frozen=True)
class MqttOptions:
    """How a broker is used, by Protocol.MQTT; `netloc` is the broker's.

    prefix:         what all topics begin with. A server and its clients have the same, and two servers on one broker
                    different ones: a server that comes takes a prefix over.
    user, password: by which the broker knows us.
    packet_size:    the largest publication in bytes, without its header; brokers refuse what is above their own limit.
    """

    prefix: str = "netq"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    packet_size: int = 256 * 1024

    def __post_init__(self) -> None:
        prefix, user, password = self.prefix, self.user, self.password
        characters = "1 to 128 characters, none of + # and NUL, first no $ or /"
        expect(_is_prefix(prefix), "MqttOptions.prefix", prefix, characters)
        expected = "a string of at most 65,535 bytes of UTF-8 without NUL, or None"
        expect(user is None or _is_mqtt_text(user), "MqttOptions.user", user, expected)
        if not (password is None or _is_mqtt_text(password)):  # its value is not to be seen
            raise InvalidOption(f"MqttOptions.password: a {type(password).__name__}; expected {expected}")
        expect(user is not None or password is None, "MqttOptions.user", user, "a user, as there is a password")
        whole("MqttOptions.packet_size", self.packet_size, 1024, 128 * MIB)


@dataclass(frozen=True)
class EventOptions:
    """Called with a peer's id when its session begins (`ini`) and when it is over (`fin`).

    In the loop's thread: they must not wait. `put` never does, so it may be called; `get`, `close` and `statistics`
    may not.
    """

    ini: Callable[[uuid.UUID], object] | None = None
    fin: Callable[[uuid.UUID], object] | None = None

    def __post_init__(self) -> None:
        for name in ("ini", "fin"):
            value = getattr(self, name)
            right = value is None or (callable(value) and not inspect.iscoroutinefunction(value))
            expect(right, f"EventOptions.{name}", value, "a callable that is no coroutine function, or None")


@dataclass(frozen=True)
class CommunicatorOptions:
    """All that a communicator can be told. Every instance has a random id of its own, unless given one.

    So each communicator needs its own: `dataclasses.replace(options, id=uuid.uuid4())` makes another.

    workers: threads that move bytes; sessions are spread over them. One is enough for most: a second pays when
             TLS or many busy peers fill a core.
    """

    id: uuid.UUID = field(default_factory=uuid.uuid4)
    netloc: NetworkLocation = field(default_factory=NetworkLocation)
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    serialization: SerializationOptions = field(default_factory=SerializationOptions)
    security: SecurityOptions | None = None
    workers: int = 1
    mqtt: MqttOptions = field(default_factory=MqttOptions)
    events: EventOptions = field(default_factory=EventOptions)

    def __post_init__(self) -> None:
        expect(isinstance(self.id, uuid.UUID), "CommunicatorOptions.id", self.id, "a uuid.UUID")
        place = 'a host and a port from 0 to 65535, as in ("127.0.0.1", 51966)'
        expect(_is_netloc(self.netloc), "CommunicatorOptions.netloc", self.netloc, place)
        object.__setattr__(self, "netloc", NetworkLocation(*self.netloc))
        whole("CommunicatorOptions.workers", self.workers, 1, 256)
        kinds = (ConnectionOptions, SerializationOptions, SecurityOptions, MqttOptions, EventOptions)
        for name, kind in zip(("connection", "serialization", "security", "mqtt", "events"), kinds, strict=True):
            value = getattr(self, name)
            right = isinstance(value, kind) or (name == "security" and value is None)
            expect(right, f"CommunicatorOptions.{name}", value, kind.__name__)


def check_put_merge(options: CommunicatorOptions, transport: str) -> None:
    """Raise InvalidOption if a transport that joins small buffers in any case is asked not to."""
    if not options.connection.put_merge:
        raise InvalidOption(
            f"ConnectionOptions.put_merge: False; {transport} joins small buffers in any case, only TCP without TLS "
            "can send each by itself; expected True"
        )


def _is_prefix(value: object) -> bool:
    if not isinstance(value, str) or not 1 <= len(value) <= 128 or value[0] in "$/":
        return False
    return value.isprintable() and not any(character in value for character in "+#")


def _is_mqtt_text(value: object) -> bool:
    """Whether it may be a string of MQTT (MQTT 5, 1.5.4)."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        return len(value.encode()) <= 65535
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _is_netloc(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    host, port = value
    return isinstance(host, str) and host != "" and is_whole(port, 0, 65535)
