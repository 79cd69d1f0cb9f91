"""The options of a communicator. Frozen dataclasses; each checks its values and names the option that is wrong."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from netq import proxy
from netq.errors import InvalidOption
from netq.utils.secret import Hidden
from netq.utils.stream import PickleSerializer, Stream
from netq.validate import expect, flag, is_function, is_whole, seconds, whole

MIB = 1024**2
UNLIMITED = 2**62  # bytes: more than any memory
PostQuantum = Literal["prefer", "require", "off"]


class Protocol(enum.StrEnum):
    """The transport. Each member is a string: you may pass `"tcp"` for `Protocol.TCP`."""

    TCP = "tcp"
    MQTT = "mqtt"
    GRPC = "grpc"
    SHM = "shm"


class Purpose(enum.StrEnum):
    """The side of a communicator: one server, many clients. Each member is a string, as those of Protocol are."""

    SERVER = "server"
    CLIENT = "client"


class NetworkLocation(NamedTuple):
    """The address of the server. With port 0 the system chooses the port: see `Communicator.netloc`."""

    host: str = "127.0.0.1"
    port: int = 51966


@dataclass(frozen=True)
class ConnectionOptions:
    """Sessions, links and flow control. Sizes are bytes, times are seconds.

    get_merge:         True: receive each message into one block, and arrays are views of it. False: keep large chunks
                       in blocks of their own.
    put_merge:         True: join the buffers of small messages before sending. False: pass each buffer to the system by
                       itself; only TCP without TLS can do that, all others raise InvalidOption.
    transport_size:    the largest chunk of a message in one frame.
    queue_size:        how many messages may wait for one peer. The future of one more fails with QueueFull.
    message_size:      the largest message that is received. The peer knows it, and sends no larger one.
    queue_bytes:       how many bytes may wait for one peer, besides the first message of each lane. The future of a
                       message that exceeds it fails with QueueFull. The default is no limit: the log says once that
                       more than 1 GiB waits for a peer.
    drop_oldest:       keep only the newest messages: if `queue_size` messages or `queue_bytes` of a lane wait, and no
                       byte of them has left, the future of the oldest fails with QueueFull, and the new message takes
                       its place.
    window:            unread bytes that a peer may have here, on each lane. A larger message comes alone.
    memory:            unread bytes that all peers together may have here, but at least half of it plus one message. The
                       first 256 KiB of every lane (netq/protocol/flow_control.py) are not counted.
    heartbeat, misses: a peer sends something at least every `heartbeat`. Its link is lost after `misses` times that
                       without a byte. If this process stands still for longer than a heartbeat, that begins anew.
    handshake_timeout: how long a new link may take for the handshake.
    takeover_grace:    how long after the loss of its link a client's id stays its own. Then another process with the id
                       gets it. Not with certificates of clients, which prove the id.
    max_sessions:      how many sessions a server has at most. A new client beyond that is refused, and tries again.
    max_sessions_per_address: how many of them may be of one address (of one /64 with IPv6). With MQTT, where the server
                       sees no addresses, it has no effect.
    session_timeout:   how long a session outlives its last link. Then it is over, and its messages fail with Closed.
    linger:            how long `close` waits for a peer that is not connected and has messages due.
    retry_min, retry_max: bounds of the random pause before a client tries again ("full jitter").
    """

    get_merge: bool = True
    put_merge: bool = True
    transport_size: int = 16 * MIB
    queue_size: int = 2**30
    message_size: int = 2**40
    queue_bytes: int = UNLIMITED
    drop_oldest: bool = False
    window: int = 64 * MIB
    memory: int = 1024 * MIB
    heartbeat: float = 10.0
    misses: int = 3
    handshake_timeout: float = 10.0
    takeover_grace: float = 3.0
    max_sessions: int = 16384
    max_sessions_per_address: int = 4096
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
        whole("ConnectionOptions.queue_bytes", self.queue_bytes, 1, UNLIMITED)
        whole("ConnectionOptions.message_size", self.message_size, 1, 2**62)
        whole("ConnectionOptions.window", self.window, 1, 2**62)
        whole("ConnectionOptions.memory", self.memory, 1, 2**62)
        whole("ConnectionOptions.misses", self.misses, 1, 1000)
        seconds("ConnectionOptions.heartbeat", self.heartbeat, 0.001, 3600.0)  # milliseconds on the wire
        seconds("ConnectionOptions.handshake_timeout", self.handshake_timeout, 0.001)
        seconds("ConnectionOptions.takeover_grace", self.takeover_grace, 0.0)
        whole("ConnectionOptions.max_sessions", self.max_sessions, 1, 2**62)
        whole("ConnectionOptions.max_sessions_per_address", self.max_sessions_per_address, 1, 2**62)
        seconds("ConnectionOptions.session_timeout", self.session_timeout, 0.0)
        seconds("ConnectionOptions.linger", self.linger, 0.0)
        seconds("ConnectionOptions.retry_min", self.retry_min, 0.001, 1e6)
        seconds("ConnectionOptions.retry_max", self.retry_max, 0.001, 1e6)
        longer = self.retry_max >= self.retry_min
        expect(longer, "ConnectionOptions.retry_max", self.retry_max, f"at least retry_min, {self.retry_min}")

    def with_queue_bytes(self, size: int) -> ConnectionOptions:
        """Return these options with this `queue_bytes`, unless they have one already."""
        return self if self.queue_bytes != UNLIMITED else replace(self, queue_bytes=size)


@dataclass(frozen=True)
class SerializationOptions:
    """How objects become bytes: `dump` for put, `load` for get. Both run in the thread that calls put or get.

    load: takes the Stream of a message, which reads like a file; returns the object for `get`.
    dump: takes the object that was put; returns bytes, another contiguous buffer, or a Stream. It is not copied.
    """

    load: Callable[[Stream], Any] = field(default_factory=lambda: PickleSerializer().load)
    dump: Callable[[Any], Any] = field(default_factory=lambda: PickleSerializer().dump)

    def __post_init__(self) -> None:
        for name in ("load", "dump"):
            value = getattr(self, name)
            hint = f"; pass its method: {name}=….{name}" if hasattr(value, name) else ""
            expect(is_function(value), f"SerializationOptions.{name}", value, f"a callable that is not async{hint}")


@dataclass(frozen=True)
class SecurityOptions:
    """TLS. The PEM files are read when a communicator is made; that raises SecurityError if they cannot be used.

    key:          the private key of a server, or of a client that has a certificate of its own.
    certificate:  the certificate chain of `key`. For a client without `authority`: the certificates that it trusts
                  (None: the system's).
    authority:    the certificates that this side trusts. With it a server refuses clients without a certificate, and a
                  client may have a `key` and a `certificate` of its own, which then names its id.
    post_quantum: "prefer": post-quantum key exchange, if both sides have the extra `security`. "require": end the
                  connection before any data is exchanged if it is not post-quantum. "off": the TLS of Python.
    revoked:      for a server: a text file with the serial numbers of certificates that it refuses, in hexadecimal, one
                  a line. It is read again whenever it changes.
    """

    key: Path | None = None
    certificate: Path | None = None
    authority: Path | None = None
    post_quantum: PostQuantum = "prefer"
    revoked: Path | None = None

    def __post_init__(self) -> None:
        known = self.post_quantum in get_args(PostQuantum)
        expect(known, "SecurityOptions.post_quantum", self.post_quantum, "'prefer', 'require' or 'off'")
        for name in ("key", "certificate", "authority", "revoked"):
            path = getattr(self, name)
            expect(isinstance(path, str | Path | None), f"SecurityOptions.{name}", path, "a path or None")
            if path is not None:
                object.__setattr__(self, name, Path(path))


@dataclass(frozen=True)
class SealOptions:
    """Seals all messages from end to end, through brokers and proxies that are not trusted. Both sides need it.

    The PEM files are read when a communicator is made; that raises SecurityError if they cannot be used.

    key:         the private key of this side: P-256, P-384, Ed25519 or ML-DSA.
    certificate: its certificate chain. A client's certificate names its id.
    authority:   the certificates that this side trusts: they signed that of the other side.
    revoked:     for a server: a text file with the serial numbers of certificates that it refuses, in hexadecimal, one
                 a line. It is read again whenever it changes.
    """

    key: Path
    certificate: Path
    authority: Path
    revoked: Path | None = None

    def __post_init__(self) -> None:
        for name in ("key", "certificate", "authority", "revoked"):
            path = getattr(self, name)
            right = isinstance(path, str | Path) or (name == "revoked" and path is None)
            expect(right, f"SealOptions.{name}", path, "a path or None" if name == "revoked" else "a path")
            if path is not None:
                object.__setattr__(self, name, Path(path))


@dataclass(frozen=True)
class MqttOptions:
    """How Protocol.MQTT uses its broker. `netloc` is the address of the broker.

    prefix:         the first part of all topics. Give a server and its clients the same prefix, and two servers on one
                    broker different prefixes: a new server takes its prefix over from an older one.
    user, password: the account at the broker. The text of the options, and of their asdict(), hides the password; a
                    pickle of them has it.
    packet_size:    the largest publication, in bytes without its header. A broker refuses publications above its limit.
    """

    prefix: str = "netq"
    user: str | None = None
    password: str | None = None
    packet_size: int = 256 * 1024

    def __post_init__(self) -> None:
        prefix, user, password = self.prefix, self.user, self.password
        characters = "1 to 128 characters, none of + # and NUL, first no $ or /"
        expect(_is_prefix(prefix), "MqttOptions.prefix", prefix, characters)
        expected = "a string of at most 65,535 bytes of UTF-8 without NUL, or None"
        expect(user is None or _is_mqtt_text(user), "MqttOptions.user", user, expected)
        if not (password is None or _is_mqtt_text(password)):  # its value is not to be seen
            raise InvalidOption(f"MqttOptions.password: a {type(password).__name__}; expected {expected}")
        if password is not None:
            object.__setattr__(self, "password", Hidden(password))
        expect(user is not None or password is None, "MqttOptions.user", user, "a user, as there is a password")
        whole("MqttOptions.packet_size", self.packet_size, 1024, 128 * MIB)


@dataclass(frozen=True)
class EventOptions:
    """Callbacks, called with the id of a peer when its session begins (`ini`) and when it is over (`fin`).

    They run in the loop's thread and must not wait. They may call `put`, which never waits, but not `get`, `close` or
    `statistics`. `fin` may come while messages of the session are unread.

    end:     for an end in the order of the messages. If it is not None, `get` calls `load(end)` behind the last message
             of each session, before the first one of the peer's next session, and returns the result as data of that
             peer.
    refused: called by a server that turns a connection away, with its address and the reason, for each refusal that the
             log has as a warning: repetitions are left out. Refusals of shared memory are in the log only.
    """

    ini: Callable[[uuid.UUID], object] | None = None
    fin: Callable[[uuid.UUID], object] | None = None
    end: Stream | None = None
    refused: Callable[[str, str], object] | None = None

    def __post_init__(self) -> None:
        for name in ("ini", "fin", "refused"):
            value = getattr(self, name)
            right = value is None or is_function(value)
            expect(right, f"EventOptions.{name}", value, "a callable that is no coroutine function, or None")
        expect(isinstance(self.end, Stream | None), "EventOptions.end", self.end, "a Stream, or None")


@dataclass(frozen=True)
class CommunicatorOptions:
    """All options of a communicator. Every instance has a random id of its own, unless you pass one.

    Each communicator therefore needs its own instance: `dataclasses.replace(options, id=uuid.uuid4())` makes another.

    workers: how many threads move bytes; the sessions are spread over them. One is enough in most cases. A second one
             helps when TLS or many busy peers fill a core.
    proxy:   through which a client reaches its server, or its broker: "http://HOST:PORT" for HTTP CONNECT, or
             "socks5://HOST:PORT", not with gRPC; USER:PASSWORD@ stands before the host, %-encoded. "environment": as
             https_proxy, all_proxy and no_proxy say (netq/proxy.py); "none": directly.
    """

    id: uuid.UUID = field(default_factory=uuid.uuid4)
    netloc: NetworkLocation = field(default_factory=NetworkLocation)
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    serialization: SerializationOptions = field(default_factory=SerializationOptions)
    security: SecurityOptions | None = None
    workers: int = 1
    mqtt: MqttOptions = field(default_factory=MqttOptions)
    events: EventOptions = field(default_factory=EventOptions)
    seal: SealOptions | None = None
    proxy: str = proxy.ENVIRONMENT

    def __post_init__(self) -> None:
        expect(isinstance(self.id, uuid.UUID), "CommunicatorOptions.id", self.id, "a uuid.UUID")
        place = 'a host and a port from 0 to 65535, as in ("127.0.0.1", 51966)'
        expect(_is_netloc(self.netloc), "CommunicatorOptions.netloc", self.netloc, place)
        object.__setattr__(self, "netloc", NetworkLocation(*self.netloc))
        whole("CommunicatorOptions.workers", self.workers, 1, 256)
        object.__setattr__(self, "proxy", proxy.check("CommunicatorOptions.proxy", self.proxy))
        kinds = {
            "connection": ConnectionOptions,
            "serialization": SerializationOptions,
            "security": SecurityOptions,
            "seal": SealOptions,
            "mqtt": MqttOptions,
            "events": EventOptions,
        }
        for name, kind in kinds.items():
            value = getattr(self, name)
            right = isinstance(value, kind) or (name in ("security", "seal") and value is None)
            expect(right, f"CommunicatorOptions.{name}", value, kind.__name__)


def check_put_merge(options: CommunicatorOptions, transport: str) -> None:
    """Raise InvalidOption for `put_merge=False` on a transport that always joins small buffers."""
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
    """Whether `value` is a legal string of MQTT (MQTT 5, section 1.5.4)."""
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
