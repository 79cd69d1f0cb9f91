"""The client's side of MQTT: one connection to the broker, and one link at a time.

open ──► the broker is there ──► subscribed ──► OPEN … OPEN ──WELCOME──► a link
                                                 again after a pause, and at once when a server says hello
"""

from __future__ import annotations

import logging
import time

from netq import core
from netq.io.loop import Loop
from netq.io.timers import Timer
from netq.mqtt import packet
from netq.mqtt.channel import Channel
from netq.mqtt.multiplexer import Multiplexer
from netq.mqtt.packet import FROM_SERVER, Kind, Packet
from netq.mqtt.topic import ANY, GONE, LinkTopic, new_id
from netq.options import CommunicatorOptions, Purpose
from netq.runtime.link import LinkListener, backoff

log = logging.getLogger("netq")

_SILENCE = 1.0  # seconds after which the log is told that no server answers


class ClientTransport:
    """A transport: each `open` lasts until a server has answered, or the broker is lost."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        self.netloc = listener.options.netloc
        self._listener = listener
        self._options = listener.options
        self._loop = loop
        self._id = new_id()
        self._exchange = Multiplexer(listener, loop, self, is_server=False)
        self._subscribed = False
        self._knocking: Channel | None = None  # until it is answered
        self._linked: Channel | None = None
        self._instance = b""  # of the server that we are linked to
        self._attempt = 0
        self._timer: Timer | None = None

    # For the communicator.

    def open(self) -> None:
        """Make a link, connecting to the broker first if need be."""
        if self._subscribed:
            self._begin()
        elif not self._exchange.closing:
            gone = self._exchange.topics.link(LinkTopic("s", self._id, GONE))
            self._exchange.broker.open(self._id, will=(gone, b""))

    def close(self) -> None:
        """Knock no more; leave the broker when the link has said what it has to say."""
        self._stop_knocking()
        self._exchange.close()

    # For the exchange (netq/mqtt/multiplexer.py, Host).

    def up(self) -> None:
        """Listen."""
        topics = self._exchange.topics
        self._exchange.listen([topics.link(LinkTopic("c", self._id, ANY)), topics.hello], self._listening)

    def down(self, error: Exception) -> None:
        """The link is lost, or there will be none."""
        linked = self._subscribed and self._knocking is None  # if not that, `open` has yet to be answered
        self._subscribed = False
        self._knocking = None
        if not linked:
            self._listener.lost(None, error)

    def hello(self, hello: packet.Hello) -> None:
        """Knock again at once, or find the link's server gone."""
        if hello.here and self._knocking is not None:
            self._attempt = 0
            self._knock()
        elif self._linked is not None and hello.here == (hello.instance != self._instance):
            why = "another server has taken over" if hello.here else "the broker has lost the server"
            self._linked.fail(ConnectionResetError(why), tell=False)

    def came(self, way: LinkTopic, payload: bytes | bytearray) -> None:
        """Take the answer to OPEN; all else is the link's."""
        came, port = packet.decode(payload, FROM_SERVER), self._knocking
        if port is not None and port.way == way:
            if came.kind is Kind.WELCOME:
                self._welcome(port, came)
            elif came.kind is Kind.RESET:
                self._stop_knocking()
                self._listener.lost(None, ConnectionRefusedError(f"the server says: {packet.read_reason(came)}"))
        elif came.kind is not Kind.WELCOME:  # which may come twice
            self._exchange.packet_came(way, came)

    # The rest.

    def _listening(self) -> None:
        self._subscribed = True
        self._begin()

    def _begin(self) -> None:
        self._attempt = 0
        self._knocking = port = self._exchange.new_port(LinkTopic("c", self._id, new_id()))
        self._loop.at(time.monotonic() + _SILENCE, self._complain, port)
        self._knock()

    def _complain(self, port: Channel) -> None:
        if port is self._knocking:
            where, prefix = self._exchange.where, self._options.mqtt.prefix
            log.warning("%s: no server of %r answers; waiting until one comes", where, prefix)

    def _knock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._knocking is not None:
            self._knocking.say(Kind.OPEN, packet.opening(self._options.mqtt.packet_size))
            pause = self._options.connection.retry_min + backoff(self._attempt, self._options.connection)
            self._timer = self._loop.at(time.monotonic() + pause, self._knock)
            self._attempt += 1

    def _stop_knocking(self) -> None:
        port, self._knocking = self._knocking, None
        if port is not None:
            port.fail(ConnectionAbortedError("no answer"), tell=False)

    def _welcome(self, port: Channel, came: Packet) -> None:
        opening = packet.read_opening(came)
        port.window.arrived(came)
        self._knocking, self._linked = None, port
        self._instance = opening.instance
        self._exchange.attach(port, self._exchange.where, opening.size)


class Communicator(core.Communicator):
    """A client on MQTT. Raises SecurityError."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.CLIENT, ClientTransport)
