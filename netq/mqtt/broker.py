"""One connection to the broker: paho-mqtt, driven by our loop. The only module that uses paho.

Owned by a Multiplexer (netq/mqtt/multiplexer.py), in the first loop. It never waits and never reconnects. paho holds a
lock during its callbacks, so they only queue events, which run after paho has returned. paho reads and writes memory
(netq/mqtt/paho_socket.py); this module moves the bytes to and from the socket, and sees its errors.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from netq.errors import InvalidSecurity, SecurityError
from netq.identity import Protection, negotiated
from netq.io.connect import Connector
from netq.io.loop import Loop
from netq.io.selector import READ, WRITE
from netq.io.sockets import tune, wrap
from netq.mqtt.paho_socket import PahoSocket
from netq.options import CommunicatorOptions, SecurityOptions
from netq.security.tls import client_side

try:
    import paho.mqtt.client as paho
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode
    from paho.mqtt.subscribeoptions import SubscribeOptions
except ImportError as error:
    why = f"Protocol.MQTT needs paho-mqtt ({error}): pip install 'paho-mqtt>=2.1,<3'"
    raise ImportError(why, name="paho") from error

_READS_PER_TURN = 32  # packets read before other descriptors of the loop get their turn
_FAILURE = 0x80  # reason codes from here on are errors (MQTT 5, 2.4)
_BAD_LOGIN = (0x86, 0x87)
_QUICK = 10.0  # seconds after CONNACK: a loss before is a quick one
_SUSPICIOUS = 3  # quick losses in a row
_TAKEN_OVER = (
    "again soon after it had accepted: does it give one client id to all, as mosquitto's use_username_as_clientid does "
    "with one user for all? Then each takes the connection of another: turn that off, or give each communicator a "
    "MqttOptions.user of its own"
)
_MAX_USER_CHARS = 64  # characters of a user name in an error
_PUBLICATION_OVERHEAD = 1024  # bytes that the topic, netq's header and MQTT's header may add to a packet


class BrokerListener(Protocol):
    """What the broker calls: the multiplexer (netq/mqtt/multiplexer.py)."""

    def up(self, size: int) -> None:
        """Handle the connection to a broker that accepts publications of `size` bytes."""

    def down(self, error: Exception) -> None:
        """Handle the loss of the connection, or a failed attempt."""

    def received(self, topic: str, payload: bytes | bytearray) -> None:
        """Handle a publication."""

    def schedule_turns(self) -> None:
        """Publish more, soon: the socket has accepted everything."""


class _Client(paho.Client):
    """paho's client, on a socket that is already connected."""

    paho_socket: PahoSocket

    def _create_socket(self) -> PahoSocket:  # type: ignore[override] # paho never asks it for its fileno
        return self.paho_socket


class Broker:
    """The broker at options.netloc."""

    def __init__(self, loop: Loop, options: CommunicatorOptions, listener: BrokerListener) -> None:
        _keep_freed_memory()
        if options.security is not None:
            _check_security(options.security)
        # How to reach the broker: fixed from the start.
        self._loop = loop
        self._options = options
        self._listener = listener
        self._tls = None if options.security is None else client_side(options.security, options.netloc.host)
        self._timeout = options.connection.handshake_timeout
        self._connector = Connector(loop, options, self._on_connected, self.fail)
        self.address = self._connector.address
        # The present attempt or connection.
        self.connected = False  # since CONNACK
        self._since = -math.inf  # when it was accepted last
        self._quick_losses = 0  # in a row
        self._closing = False  # DISCONNECT waits for the socket
        self._id = ""
        self._will: tuple[str, bytes] | None = None
        self._client: _Client | None = None
        self._deadline = math.inf  # for the broker's answer
        # What paho's callbacks have brought, and what waits for the broker's answer.
        self._events: deque[Callable[[], object]] = deque()  # queued by paho's callbacks
        self._subscribing: dict[int, Callable[[bool], object]] = {}  # callbacks by message id

    @property
    def ready(self) -> bool:
        """Whether to publish now: the socket has accepted everything before."""
        return self._client is not None and self.connected and self._client.paho_socket.idle

    @property
    def protection(self) -> Protection | None:
        """The TLS of the connection to the broker. It proves no identity of a peer."""
        found = None if self._client is None else self._client.paho_socket.protection
        return found and negotiated(*found.security[:3], None)

    # For the multiplexer and its transport.

    def open(self, id: str, will: tuple[str, bytes] | None = None) -> None:
        """Connect as `id`. The broker publishes the will (topic, payload) if the connection ends without DISCONNECT."""
        self._id, self._will = id, will
        self._connector.connect()

    def close(self) -> None:
        """Send DISCONNECT, so that the will is not published. `down` is not called."""
        self._connector.close()
        if self._client is not None and self.connected:
            self.connected, self._closing = False, True
            self._client.disconnect()
            self._write()
        elif not self._closing:
            self.drop()

    def drop(self) -> None:
        """Close the connection at once; `down` is not called."""
        # The events of the old connection go with it: they would report packets on links that have ended, or fail the
        # next connection for an error of this one.
        client, self._client = self._client, None
        self.connected = False
        self._events.clear()
        self._subscribing.clear()
        if client is not None:
            self._loop.forget(client.paho_socket.sock)
            client.paho_socket.hang_up()

    def fail(self, error: Exception) -> None:
        """Close the connection at once and call `down`, unless `close` was called before."""
        if self.connected:
            self._quick_losses = self._quick_losses + 1 if time.monotonic() - self._since < _QUICK else 0
            if self._quick_losses >= _SUSPICIOUS and isinstance(error, OSError):
                error = ConnectionResetError(f"{error}, {_TAKEN_OVER}")
        self.drop()
        if not self._closing:
            self._listener.down(error)

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish with QoS 0, now or as soon as the socket accepts it. Do nothing if not connected."""
        if self._client is not None and self.connected:
            self._client.publish(topic, payload)
            self._write()

    def subscribe(self, topics: list[str], done: Callable[[bool], object]) -> None:
        """Subscribe to topics. `done` gets whether the broker has granted all of them."""
        assert self._client is not None
        how = SubscribeOptions(qos=0, noLocal=True, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        _, message = self._client.subscribe([(topic, how) for topic in topics])
        if message is not None:
            self._subscribing[message] = done
        self._write()

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic, if connected."""
        if self._client is not None and self.connected:
            self._client.unsubscribe(topic)
            self._write()

    # Connecting.

    def _on_connected(self, sock: socket.socket) -> None:
        try:
            tune(sock)
            self._client = client = self._new_client(PahoSocket(wrap(sock, self._tls)))
            self._deadline = time.monotonic() + self._timeout
            client.reconnect()
            self._tick(client)
        except Exception as error:  # of the socket, TLS or paho: no error may end the loop
            kind = type(error).__name__  # only the type: the text may contain the password
            self.fail(error if isinstance(error, OSError) else ConnectionError(f"no CONNECT can be made ({kind})"))
            sock.close()

    def _new_client(self, paho_socket: PahoSocket) -> _Client:
        options, silence = self._options, self._options.connection.heartbeat * self._options.connection.misses
        version = paho.CallbackAPIVersion.VERSION2  # type: ignore[attr-defined]
        client = _Client(version, self._id, protocol=paho.MQTTv5, reconnect_on_failure=False)
        client.paho_socket = paho_socket
        if self._will is not None:
            client.will_set(*self._will)
        if options.mqtt.user is not None:
            client.username_pw_set(options.mqtt.user, options.mqtt.password)
        limits = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        limits.MaximumPacketSize = options.mqtt.packet_size + _PUBLICATION_OVERHEAD
        keepalive = min(math.ceil(silence), 65535)
        client.connect_async(*options.netloc, keepalive=keepalive, clean_start=True, properties=limits)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_subscribe = self._on_subscribe
        return client

    # What paho calls.

    def _on_connect(
        self, _: object, data: object, flags: object, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.value < _FAILURE:
            self._events.append(partial(self._accepted, getattr(properties, "MaximumPacketSize", 2**28)))
            return
        user, advice = self._options.mqtt.user, ""
        if reason.value in _BAD_LOGIN:
            advice = f" (user {user and user[:_MAX_USER_CHARS]!r}); see MqttOptions.user and password"
        self._events.append(partial(self.fail, ConnectionRefusedError(f"the broker refuses: {reason}{advice}")))

    def _on_disconnect(
        self, _: object, data: object, flags: paho.DisconnectFlags, reason: ReasonCode, properties: object
    ) -> None:
        if self._closing:
            return  # our own DISCONNECT is still being sent
        error = "what the broker says is not MQTT 5, or it has been silent for too long"
        if flags.is_disconnect_packet_from_server:
            error = f"the broker ends the connection: {reason}"
        self._events.append(partial(self.fail, ConnectionResetError(error)))

    def _on_message(self, _: object, data: object, message: paho.MQTTMessage) -> None:
        if message.retain:
            return  # netq retains nothing: a retained message has another origin
        with contextlib.suppress(UnicodeDecodeError):
            self._events.append(partial(self._listener.received, message.topic, message.payload))

    def _on_subscribe(self, _: object, data: object, id: int, reasons: list[ReasonCode], properties: object) -> None:
        self._deadline = math.inf
        if (done := self._subscribing.pop(id, None)) is not None:
            self._events.append(partial(done, all(reason.value < _FAILURE for reason in reasons)))

    # In our loop.

    def _accepted(self, size: int) -> None:
        self.connected = True
        self._since = time.monotonic()
        self._deadline = time.monotonic() + self._timeout  # for the first SUBACK
        self._listener.up(size)

    def _ready(self, mask: int) -> None:
        client = self._client
        # paho reads one packet from memory in each `loop_read`, and no selector knows of what is left there. So it is
        # called until the memory is empty, or again in the next turn. An event may have closed this connection, or
        # begun another one; the old one is not read on then.
        if mask & READ and client is not None:
            for _ in range(_READS_PER_TURN):
                self._call_guarded(client.paho_socket.fill)
                self._call_guarded(client.loop_read)
                self._run_events()
                if self._client is not client or not client.paho_socket.more:
                    break
            else:
                self._loop.call(self._ready, READ)
        self._write()

    def _write(self) -> None:
        if self._client is None:
            return
        paho_socket = self._client.paho_socket
        self._call_guarded(paho_socket.push)
        if self._closing and paho_socket.idle:
            self.drop()
            return
        self._loop.watch(paho_socket.sock, READ | (WRITE if paho_socket.blocked else 0), self._ready)
        if self._events:
            self._loop.call(self._run_events)  # not now: the caller may be in the middle of publishing
        if self.ready:
            self._listener.schedule_turns()

    def _run_events(self) -> None:
        while self._events:
            self._events.popleft()()

    def _call_guarded(self, step: Callable[[], object]) -> None:
        """Call paho or the socket. Their errors end the connection."""
        try:
            step()
        except BlockingIOError:
            pass
        except (OSError, SecurityError) as error:
            self._events.append(partial(self.fail, error))
        except Exception as error:  # paho's parsers raise various errors; translate them here
            self._events.append(partial(self.fail, ConnectionResetError(f"paho-mqtt failed: {error!r}")))

    def _tick(self, client: _Client) -> None:
        """Let paho send its pings, and check the deadline of the broker's answer."""
        if client is not self._client:
            return
        if time.monotonic() >= self._deadline:
            missing = "a subscription" if self.connected else "as a broker"
            self.fail(TimeoutError(f"it does not answer {missing}"))
            return
        self._call_guarded(client.loop_misc)
        self._write()
        pause = min(1.0, max(1.0, self._options.connection.heartbeat) / 4)
        self._loop.at(time.monotonic() + pause, self._tick, client)


def _check_security(security: SecurityOptions) -> None:
    """Raise SecurityError for what TLS to a broker cannot give to two peers behind it."""
    if security.key is not None and security.authority is None:
        raise InvalidSecurity(
            f"SecurityOptions.key: {security.key}; with MQTT, TLS is the broker's, and so is the key: leave out `key`, "
            "and give as `certificate` the authority that signed the broker's certificate. If the broker wants a "
            "certificate of this client, give that authority as `authority`"
        )
    if security.post_quantum == "require":
        raise InvalidSecurity(
            "SecurityOptions.post_quantum: 'require'; with MQTT each side has TLS to the broker only, and cannot know "
            "the key exchange of the other side; use 'prefer', and seal the messages from end to end: "
            "CommunicatorOptions.seal"
        )
    if security.revoked is not None:
        raise InvalidSecurity(
            f"SecurityOptions.revoked: {security.revoked}; with MQTT the broker checks certificates; give the list to "
            "the broker"
        )


def _keep_freed_memory() -> None:
    """Make malloc keep freed blocks of a packet's size, because paho allocates several for each packet.

    glibc returns freed blocks of 128 KiB or more to the system, and the next allocation faults in each page again.
    Freeing one block of 1 MiB raises that threshold to 1 MiB (mallopt(3), M_MMAP_THRESHOLD). None of its pages is
    touched.
    """
    bytes(1024 * 1024)
