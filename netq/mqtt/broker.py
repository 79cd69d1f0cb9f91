"""One connection to the broker: paho-mqtt, driven by our loop. The only module that knows paho.

Owned by a transport (netq/mqtt/server.py, client.py), in the first loop; never waits, never tries again. paho's
callbacks only note what came: what is to be done about it is done after paho has returned, as it holds a lock then.
"""

from __future__ import annotations

import enum
import math
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from netq.dial import Dialer
from netq.errors import SecurityError
from netq.loop import Loop
from netq.memory import keep_packets
from netq.mqtt.channel import Channel
from netq.options import CommunicatorOptions
from netq.pipe import hasten, over
from netq.security.tls import client_side
from netq.selector import READ, WRITE
from netq.timers import Timer

try:
    import paho.mqtt.client as paho
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode
    from paho.mqtt.subscribeoptions import SubscribeOptions
except ImportError as error:
    why = f"Protocol.MQTT needs paho-mqtt ({error}): pip install 'paho-mqtt>=2.1,<3'"
    raise ImportError(why, name="paho") from error

_READS = 32  # packets before the others have their turn
_TAKEN_OVER = 0x8E
_REFUSING = 0x80  # reason codes from here on are failures
_BAD_LOGIN = (0x86, 0x87)
_SHOWN = 64  # characters of a user's name
_FRAME = 1024  # bytes that a topic, a header and MQTT's own may add to a publication


class User(Protocol):
    """Who is told what the broker says. Each but `up` may end the connection."""

    def up(self, size: int) -> None:
        """The broker has accepted us; it takes publications of so many bytes, topic and all."""

    def down(self, error: Exception) -> None:
        """The connection is lost, or could not be made."""

    def received(self, topic: str, payload: bytes | bytearray) -> None:
        """A publication came."""

    def drained(self) -> None:
        """All that was published has been taken by the system."""


class _State(enum.Enum):
    IDLE = enum.auto()
    DIALING = enum.auto()
    GREETING = enum.auto()  # CONNECT is on its way
    UP = enum.auto()
    PARTING = enum.auto()


class _Client(paho.Client):
    """paho's client, on a socket that is connected already."""

    channel: Channel

    def _create_socket(self) -> Channel:  # what paho calls for a new connection
        return self.channel


class Broker:
    """The broker at options.netloc."""

    def __init__(self, loop: Loop, options: CommunicatorOptions, user: User) -> None:
        keep_packets()
        if options.security is not None and options.security.key is not None:
            raise SecurityError(
                f"SecurityOptions.key: {options.security.key}; with MQTT, TLS is the broker's, and so is the key: "
                "leave out `key`, and give as `certificate` the authority that signed the broker's certificate"
            )
        self._loop = loop
        self._options = options
        self._id = ""
        self._user = user
        self._tls = None if options.security is None else client_side(options.security, options.netloc.host)
        self._dialer = self._new_dialer()
        self._state = _State.IDLE
        self._client: _Client | None = None
        self._channel: Channel | None = None
        self._will: tuple[str, bytes] | None = None
        self._watched = 0
        self._timer: Timer | None = None
        self._deadline = math.inf  # of the broker's answer
        self._came: deque[Callable[[], None]] = deque()  # noted by callbacks, to be done when paho is done
        self._subscribing: dict[int, Callable[[bool], object]] = {}  # by message id

    @property
    def idle(self) -> bool:
        """Whether there is no connection, and none under way."""
        return self._state is _State.IDLE

    @property
    def connected(self) -> bool:
        """Whether the broker has accepted us."""
        return self._state is _State.UP

    @property
    def ready(self) -> bool:
        """Whether to publish now: the system has taken all there was."""
        client, channel = self._client, self._channel
        if self._state is not _State.UP or client is None or channel is None:
            return False
        return not client.want_write() and not channel.blocked

    # For the transport.

    def open(self, id: str, will: tuple[str, bytes] | None = None) -> None:
        """Connect as `id`; the broker publishes the will, topic and payload, if we are gone without a word."""
        self._id, self._will = id, will
        self._state = _State.DIALING
        self._dialer.dial()

    def close(self) -> None:
        """Say goodbye, so that the will is not published; `down` is not called any more."""
        self._dialer.close()
        if self._state is _State.UP and self._client is not None:
            self._state = _State.PARTING
            self._client.disconnect()
            self._write()
        elif self._state is not _State.PARTING:
            self._let_go()

    def drop(self) -> None:
        """Hang up, to connect again; `down` is not called."""
        self._let_go()

    def publish(self, topic: str, payload: bytes) -> None:
        """Send with QoS 0, now or as soon as the socket takes it."""
        assert self._client is not None
        self._client.publish(topic, payload)
        self._write()

    def subscribe(self, topics: list[str], done: Callable[[bool], object]) -> None:
        """Ask for publications from now on; `done` says whether the broker grants all of them."""
        assert self._client is not None
        how = SubscribeOptions(qos=0, noLocal=True, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        _, message = self._client.subscribe([(topic, how) for topic in topics])
        if message is not None:
            self._subscribing[message] = done
        self._write()

    def unsubscribe(self, topic: str) -> None:
        """Ask for no more of them."""
        if self._client is not None and self._state is _State.UP:
            self._client.unsubscribe(topic)
            self._write()

    # Connecting.

    def _new_dialer(self) -> Dialer:
        timeout = self._options.connection.handshake_timeout
        return Dialer(self._loop, self._options.netloc, timeout, self._dialed, self._lost)

    def _dialed(self, sock: socket.socket) -> None:
        try:
            self._greet(sock)
        except Exception as error:  # of the socket, of TLS, or of paho: none of them may end the loop
            kind = type(error).__name__  # no more: it may hold the password
            self._lost(error if isinstance(error, OSError) else ConnectionError(f"no CONNECT can be made ({kind})"))
            sock.close()

    def _greet(self, sock: socket.socket) -> None:
        hasten(sock)
        self._channel = Channel(over(sock, self._tls))
        self._client = client = self._new_client()
        client.channel = self._channel
        self._state = _State.GREETING
        self._deadline = time.monotonic() + self._options.connection.handshake_timeout
        client.reconnect()
        self._tick()
        self._write()

    def _new_client(self) -> _Client:
        options, patience = self._options, self._options.connection.heartbeat * self._options.connection.misses
        version = paho.CallbackAPIVersion.VERSION2  # type: ignore[attr-defined]
        client = _Client(version, self._id, protocol=paho.MQTTv5, reconnect_on_failure=False)
        if self._will is not None:
            client.will_set(*self._will)
        if options.mqtt.user is not None:
            client.username_pw_set(options.mqtt.user, options.mqtt.password)
        limits = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        limits.MaximumPacketSize = options.mqtt.packet_size + _FRAME
        keepalive = min(math.ceil(patience), 65535)
        client.connect_async(*options.netloc, keepalive=keepalive, clean_start=True, properties=limits)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_subscribe = self._on_subscribe
        client.on_socket_register_write = lambda *_: None  # or paho would write inside `publish`
        client.on_socket_close = lambda *_: self._forget()
        return client

    # What paho calls.

    def _on_connect(
        self,
        client: paho.Client,
        data: object,
        flags: paho.ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if reason.value >= _REFUSING:
            user, advice = self._options.mqtt.user, ""
            if reason.value in _BAD_LOGIN:
                advice = f" (user {user and user[:_SHOWN]!r}); see MqttOptions.user and password"
            error = ConnectionRefusedError(f"the broker refuses: {reason}{advice}")
            self._came.append(lambda: self._lost(error))
        else:
            size = getattr(properties, "MaximumPacketSize", 2**28)
            self._came.append(lambda: self._accepted(size))

    def _on_disconnect(
        self,
        client: paho.Client,
        data: object,
        flags: paho.DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        said = flags.is_disconnect_packet_from_server
        self._came.append(lambda: self._lost(self._why(reason if said else None)))

    def _on_message(self, client: object, data: object, message: paho.MQTTMessage) -> None:
        if message.retain:
            return  # whoever leaves messages at the broker does not speak to us
        try:
            topic, payload = message.topic, message.payload
        except UnicodeDecodeError:
            return
        self._came.append(lambda: self._user.received(topic, payload))

    def _on_subscribe(
        self, client: object, data: object, message: int, reasons: list[ReasonCode], properties: Properties
    ) -> None:
        done = self._subscribing.pop(message, None)
        self._deadline = math.inf
        if done is not None:
            granted = all(reason.value < _REFUSING for reason in reasons)
            self._came.append(lambda: cast(Callable[[bool], None], done)(granted))

    # In our loop.

    def _accepted(self, size: int) -> None:
        self._state = _State.UP
        self._deadline = time.monotonic() + self._options.connection.handshake_timeout  # of the first SUBACK
        self._user.up(size)

    def _why(self, reason: ReasonCode | None) -> Exception:
        if reason is not None and reason.value == _TAKEN_OVER:
            return ConnectionResetError("another has connected to the broker under the same id")
        if reason is not None:
            return ConnectionResetError(f"the broker ends the connection: {reason}")
        error = None if self._channel is None else self._channel.error
        return error or ConnectionResetError("what the broker says is not MQTT 5, or it has been silent for too long")

    def _ready(self, mask: int) -> None:
        client, channel = self._client, self._channel
        if mask & READ and client is not None and channel is not None:
            for _ in range(_READS):
                self._guarded(client.loop_read)
                self._do()
                if self._client is not client or not channel.more:
                    break
            else:
                self._loop.call(self._ready, READ)
        self._write()

    def _write(self) -> None:
        client, channel = self._client, self._channel
        if client is None or channel is None:
            return
        self._guarded(channel.push)
        if not channel.blocked:
            self._guarded(client.loop_write)
        if self._client is client:
            self._watch(channel)
        if self._came:
            self._loop.call(self._do)  # not now: whoever publishes is at work
        if self.ready:
            self._user.drained()

    def _do(self) -> None:
        while self._came:
            self._came.popleft()()

    def _guarded(self, step: Callable[[], object]) -> None:
        """Let paho work; what it raises is the end of the connection."""
        try:
            step()
        except BlockingIOError:
            pass
        except Exception as error:  # paho raises what its parsers raise; here it becomes one of ours
            why = (self._channel and self._channel.error) or ConnectionResetError(f"paho-mqtt failed: {error!r}")
            self._came.append(lambda: self._lost(why))

    def _tick(self) -> None:
        """Let paho ping, and see to the broker's answer."""
        client = self._client
        if client is None:
            return None
        if time.monotonic() >= self._deadline:
            missing = "a subscription" if self._state is _State.UP else "as a broker"
            return self._lost(TimeoutError(f"it does not answer {missing}"))
        self._guarded(client.loop_misc)
        self._write()
        pause = min(1.0, max(1.0, self._options.connection.heartbeat) / 4)
        self._timer = self._loop.at(time.monotonic() + pause, self._tick)
        return None

    def _lost(self, error: Exception) -> None:
        if self._state is _State.IDLE:
            return
        parting = self._state is _State.PARTING
        self._let_go()
        if not parting:
            self._user.down(error)

    def _let_go(self) -> None:
        client, channel, self._client, self._channel = self._client, self._channel, None, None
        self._state = _State.IDLE
        self._watched = 0
        self._came.clear()
        self._subscribing.clear()
        if self._timer is not None:
            self._timer.cancel()
        if channel is not None:
            self._loop.forget(channel.sock)
            channel.close()
        if client is not None:
            client.on_disconnect = client.on_socket_close = None

    def _forget(self) -> None:
        if self._channel is not None:
            self._loop.forget(self._channel.sock)
            self._watched = 0

    def _watch(self, channel: Channel) -> None:
        events = READ | (WRITE if channel.blocked else 0)
        if channel.sock.fileno() >= 0 and events != self._watched:
            self._watched = events
            self._loop.watch(channel.sock, events, self._ready)
