"""The client's transport: one connection to the broker, and one link at a time.

open ──► connected to the broker ──► subscribed ──► OPEN … OPEN ──WELCOME──► a link
                                                    repeated after a pause, and at once after a server's hello
"""

from __future__ import annotations

import time

from netq import core
from netq.io.loop import Loop
from netq.io.timers import Timer
from netq.log import log
from netq.mqtt import packet
from netq.mqtt.channel import Channel
from netq.mqtt.multiplexer import Multiplexer
from netq.mqtt.packet import FROM_SERVER, Packet, PacketKind
from netq.mqtt.topic import ANY, GONE, LinkTopic, new_id
from netq.options import CommunicatorOptions, Purpose
from netq.runtime.link import LinkListener, backoff

_WARN_AFTER = 1.0  # seconds without an answer before a warning in the log


class ClientTransport:
    """A transport: each `open` ends with a link, a refusal, or the loss of the broker."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        self.netloc = listener.options.netloc
        self._listener = listener
        self._options = listener.options
        self._loop = loop
        self._id = new_id()
        self._multiplexer = Multiplexer(listener, loop, self, is_server=False)
        self._subscribed = False
        self._opening: Channel | None = None  # before WELCOME
        self._channel: Channel | None = None
        self._instance = b""  # of the server at the other end of the link
        self._attempt = 0
        self._open_timer: Timer | None = None

    # For the communicator.

    def open(self) -> None:
        """Make a link; connect to the broker first if necessary."""
        if self._subscribed:
            self._open_link()
        elif not self._multiplexer.closing:
            gone = self._multiplexer.topics.link(LinkTopic("s", self._id, GONE))
            self._multiplexer.broker.open(self._id, will=(gone, b""))

    def close(self) -> None:
        """Stop opening links; disconnect from the broker when the link has sent its last packets."""
        self._cancel_opening()
        self._multiplexer.close()

    # For the multiplexer: MultiplexerListener.

    def up(self) -> None:
        """Subscribe."""
        topics = self._multiplexer.topics
        self._multiplexer.subscribe([topics.link(LinkTopic("c", self._id, ANY)), topics.hello], self._on_subscribed)

    def down(self, error: Exception) -> None:
        """Report that no link can be made. A link that exists reports its own loss."""
        had_link = self._subscribed and self._opening is None  # otherwise `open` still waits for a result
        self._subscribed = False
        self._opening = None
        if not had_link:
            self._listener.lost(None, error)

    def hello(self, hello: packet.Hello) -> None:
        """Repeat OPEN at once, or end the link if its server has gone."""
        # A server that has just come cannot have had our OPEN, so that is repeated now and not after the pause. And a
        # link is useless if another server has the prefix, or the broker says that ours has gone: its will has the
        # instance of that server, and a late will of an earlier one changes nothing.
        if hello.here and self._opening is not None:
            self._attempt = 0
            self._send_open()
        elif self._channel is not None and hello.here == (hello.instance != self._instance):
            why = "another server has taken over" if hello.here else "the broker has lost the server"
            self._channel.fail(ConnectionResetError(why), notify_peer=False)

    def packet_received(self, link_topic: LinkTopic, payload: bytes | bytearray) -> None:
        """Process the answer to OPEN; pass other packets to the link."""
        incoming, channel = packet.decode(payload, FROM_SERVER), self._opening
        if channel is not None and channel.link_topic == link_topic:
            if incoming.kind is PacketKind.WELCOME:
                self._on_welcome(channel, incoming)
            elif incoming.kind is PacketKind.RESET:
                self._cancel_opening()
                self._listener.lost(None, ConnectionRefusedError(f"the server says: {packet.read_reason(incoming)}"))
        elif incoming.kind is not PacketKind.WELCOME:  # each OPEN gets a WELCOME: ignore the later ones
            self._multiplexer.dispatch(link_topic, incoming)

    # The rest.

    def _on_subscribed(self) -> None:
        self._subscribed = True
        self._open_link()

    def _open_link(self) -> None:
        self._attempt = 0
        self._opening = channel = self._multiplexer.new_channel(LinkTopic("c", self._id, new_id()))
        self._loop.at(time.monotonic() + _WARN_AFTER, self._warn_if_unanswered, channel)
        self._send_open()

    def _warn_if_unanswered(self, channel: Channel) -> None:
        if channel is self._opening:
            broker, prefix = self._multiplexer.broker_address, self._options.mqtt.prefix
            log.warning("%s: no server of %r answers; waiting until one comes", broker, prefix)

    def _send_open(self) -> None:
        if self._open_timer is not None:
            self._open_timer.cancel()
        if self._opening is not None:
            self._opening.publish(PacketKind.OPEN, packet.opening(self._options.mqtt.packet_size))
            pause = self._options.connection.retry_min + backoff(self._attempt, self._options.connection)
            self._open_timer = self._loop.at(time.monotonic() + pause, self._send_open)
            self._attempt += 1

    def _cancel_opening(self) -> None:
        channel, self._opening = self._opening, None
        if channel is not None:
            channel.fail(ConnectionAbortedError("no answer"), notify_peer=False)

    def _on_welcome(self, channel: Channel, incoming: Packet) -> None:
        opening = packet.read_opening(incoming)
        channel.window.receive(incoming)
        self._opening, self._channel = None, channel
        self._instance = opening.instance
        self._multiplexer.attach(channel, self._multiplexer.broker_address, opening.size)


class Communicator(core.Communicator):
    """A client on MQTT. Raises SecurityError."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.CLIENT, ClientTransport)
