"""One connection to the broker: paho-mqtt, driven by our loop. The only module that knows paho.

Owned by an Multiplexer (netq/mqtt/multiplexer.py), in the first loop; never waits, never tries again. paho's callbacks
only note what came: what is to be done about it is done after paho has returned, as it holds a lock then. It reads and
writes memory (netq/mqtt/paho_socket.py), and what the socket says is seen here.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from netq.errors import SecurityError
from netq.io.connect import Connector
from netq.io.loop import Loop
from netq.io.selector import READ, WRITE
from netq.io.sockets import tune, wrap
from netq.mqtt.paho_socket import PahoSocket
from netq.options import CommunicatorOptions
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

if TYPE_CHECKING:
    from netq.mqtt.multiplexer import Multiplexer

_READS = 32  # packets before the others have their turn
_REFUSING = 0x80  # reason codes from here on are failures
_BAD_LOGIN = (0x86, 0x87)
_SHOWN = 64  # characters of a user's name
_FRAME = 1024  # bytes that a topic, a header and MQTT's own may add to a publication


class _Client(paho.Client):
    """paho's client, on a socket that is connected already."""

    channel: PahoSocket

    def _create_socket(self) -> PahoSocket:  # type: ignore[override] # which nothing asks for its fileno
        return self.channel


class Broker:
    """The broker at options.netloc."""

    def __init__(self, loop: Loop, options: CommunicatorOptions, exchange: Multiplexer) -> None:
        _keep_freed_memory()
        if options.security is not None and options.security.key is not None:
            raise SecurityError(
                f"SecurityOptions.key: {options.security.key}; with MQTT, TLS is the broker's, and so is the key: "
                "leave out `key`, and give as `certificate` the authority that signed the broker's certificate"
            )
        self._loop = loop
        self._options = options
        self._exchange = exchange
        self._tls = None if options.security is None else client_side(options.security, options.netloc.host)
        self._timeout = options.connection.handshake_timeout
        self._connector = Connector(loop, options.netloc, self._timeout, self._dialed, self.fail)
        self.connected = False  # the broker has accepted us
        self._parting = False  # what is left to say may have to wait for the socket
        self._id = ""
        self._will: tuple[str, bytes] | None = None
        self._client: _Client | None = None
        self._deadline = math.inf  # of the broker's answer
        self._came: deque[Callable[[], object]] = deque()  # noted by callbacks, to be done when paho is done
        self._subscribing: dict[int, Callable[[bool], object]] = {}  # by message id

    @property
    def ready(self) -> bool:
        """Whether to publish now: the system has taken all there was."""
        return self._client is not None and self.connected and self._client.channel.idle

    # For the exchange, and its transport.

    def open(self, id: str, will: tuple[str, bytes] | None = None) -> None:
        """Connect as `id`; the broker publishes the will, topic and payload, if we are gone without a word."""
        self._id, self._will = id, will
        self._connector.connect()

    def close(self) -> None:
        """Say goodbye, so that the will is not published; `down` is not called any more."""
        self._connector.close()
        if self._client is not None and self.connected:
            self.connected, self._parting = False, True
            self._client.disconnect()
            self._write()
        elif not self._parting:
            self.drop()

    def drop(self) -> None:
        """Hang up, to connect again; `down` is not called."""
        client, self._client = self._client, None
        self.connected = False
        self._came.clear()
        self._subscribing.clear()
        if client is not None:
            self._loop.forget(client.channel.sock)
            client.channel.hang_up()

    def fail(self, error: Exception) -> None:
        """Hang up; `down` is called, if it was not our wish to part."""
        self.drop()
        if not self._parting:
            self._exchange.down(error)

    def publish(self, topic: str, payload: bytes) -> None:
        """Send with QoS 0, now or as soon as the socket takes it; nothing, if we are not connected."""
        if self._client is not None and self.connected:
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
        if self._client is not None and self.connected:
            self._client.unsubscribe(topic)
            self._write()

    # Connecting.

    def _dialed(self, sock: socket.socket) -> None:
        try:
            tune(sock)
            self._client = client = self._new_client(PahoSocket(wrap(sock, self._tls)))
            self._deadline = time.monotonic() + self._timeout
            client.reconnect()
            self._tick(client)
        except Exception as error:  # of the socket, of TLS, or of paho: none of them may end the loop
            kind = type(error).__name__  # no more: it may hold the password
            self.fail(error if isinstance(error, OSError) else ConnectionError(f"no CONNECT can be made ({kind})"))
            sock.close()

    def _new_client(self, channel: PahoSocket) -> _Client:
        options, patience = self._options, self._options.connection.heartbeat * self._options.connection.misses
        version = paho.CallbackAPIVersion.VERSION2  # type: ignore[attr-defined]
        client = _Client(version, self._id, protocol=paho.MQTTv5, reconnect_on_failure=False)
        client.channel = channel
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
        return client

    # What paho calls.

    def _on_connect(self, _: object, data: object, flags: object, reason: ReasonCode, said: Properties | None) -> None:
        if reason.value < _REFUSING:
            self._came.append(partial(self._accepted, getattr(said, "MaximumPacketSize", 2**28)))
            return
        user, advice = self._options.mqtt.user, ""
        if reason.value in _BAD_LOGIN:
            advice = f" (user {user and user[:_SHOWN]!r}); see MqttOptions.user and password"
        self._came.append(partial(self.fail, ConnectionRefusedError(f"the broker refuses: {reason}{advice}")))

    def _on_disconnect(
        self, _: object, data: object, flags: paho.DisconnectFlags, reason: ReasonCode, said: object
    ) -> None:
        if self._parting:
            return  # our own has yet to leave
        error = "what the broker says is not MQTT 5, or it has been silent for too long"
        if flags.is_disconnect_packet_from_server:
            error = f"the broker ends the connection: {reason}"
        self._came.append(partial(self.fail, ConnectionResetError(error)))

    def _on_message(self, _: object, data: object, message: paho.MQTTMessage) -> None:
        if message.retain:
            return  # whoever leaves messages at the broker does not speak to us
        with contextlib.suppress(UnicodeDecodeError):
            self._came.append(partial(self._exchange.received, message.topic, message.payload))

    def _on_subscribe(self, _: object, data: object, id: int, reasons: list[ReasonCode], said: object) -> None:
        self._deadline = math.inf
        if (done := self._subscribing.pop(id, None)) is not None:
            self._came.append(partial(done, all(reason.value < _REFUSING for reason in reasons)))

    # In our loop.

    def _accepted(self, size: int) -> None:
        self.connected = True
        self._deadline = time.monotonic() + self._timeout  # of the first SUBACK
        self._exchange.up(size)

    def _ready(self, mask: int) -> None:
        client = self._client
        if mask & READ and client is not None:
            for _ in range(_READS):
                self._guarded(client.channel.fill)
                self._guarded(client.loop_read)
                self._do()
                if self._client is not client or not client.channel.more:
                    break
            else:
                self._loop.call(self._ready, READ)
        self._write()

    def _write(self) -> None:
        if self._client is None:
            return
        channel = self._client.channel
        self._guarded(channel.push)
        if self._parting and channel.idle:
            self.drop()
            return
        self._loop.watch(channel.sock, READ | (WRITE if channel.blocked else 0), self._ready)
        if self._came:
            self._loop.call(self._do)  # not now: whoever publishes is at work
        if self.ready:
            self._exchange.drained()

    def _do(self) -> None:
        while self._came:
            self._came.popleft()()

    def _guarded(self, step: Callable[[], object]) -> None:
        """Let paho or the socket work; what they raise is the end of the connection."""
        try:
            step()
        except BlockingIOError:
            pass
        except (OSError, SecurityError) as error:
            self._came.append(partial(self.fail, error))
        except Exception as error:  # paho raises what its parsers raise; here it becomes one of ours
            self._came.append(partial(self.fail, ConnectionResetError(f"paho-mqtt failed: {error!r}")))

    def _tick(self, client: _Client) -> None:
        """Let paho ping, and see to the broker's answer."""
        if client is not self._client:
            return
        if time.monotonic() >= self._deadline:
            missing = "a subscription" if self.connected else "as a broker"
            self.fail(TimeoutError(f"it does not answer {missing}"))
            return
        self._guarded(client.loop_misc)
        self._write()
        pause = min(1.0, max(1.0, self._options.connection.heartbeat) / 4)
        self._loop.at(time.monotonic() + pause, self._tick, client)


def _keep_freed_memory() -> None:
    """Have malloc keep freed blocks of a packet's size, of which paho makes a few for each packet.

    glibc returns freed blocks of 128 KiB or more to the system, and the kernel fills the next one page by page. Freeing
    one block of 1 MiB raises that threshold to 1 MiB (mallopt(3), M_MMAP_THRESHOLD). No page of it is touched.
    """
    bytes(1024 * 1024)
