"""The client's side of MQTT: one connection to the broker, and one link at a time.

open ──► the broker is there ──► subscribed ──► OPEN … OPEN ──WELCOME──► a link
                                                 again after a pause, and at once when a server says hello
"""

from __future__ import annotations

import logging
import time

from netq import core
from netq.errors import ProtocolError
from netq.link import Owner, backoff
from netq.loop import Loop
from netq.mqtt import packet
from netq.mqtt.broker import Broker
from netq.mqtt.exchange import Exchange
from netq.mqtt.packet import FROM_SERVER, Kind, Packet
from netq.mqtt.port import Port
from netq.mqtt.topic import GONE, Way, new_id
from netq.options import CommunicatorOptions, Purpose
from netq.timers import Timer

log = logging.getLogger("netq")

_SILENCE = 1.0  # seconds after which the log is told that no server answers


class Visitor:
    """A transport: each `open` lasts until a server has answered, or the broker is lost."""

    def __init__(self, owner: Owner, loop: Loop) -> None:
        self.netloc = owner.options.netloc
        self._owner = owner
        self._options = owner.options
        self._loop = loop
        self._id = new_id()
        self._exchange = Exchange(owner, loop, is_server=False)
        self._broker = self._exchange.broker = Broker(loop, owner.options, self)
        self._subscribed = False
        self._knocking: Port | None = None  # until it is answered
        self._linked: Port | None = None
        self._wanted = False  # a link is
        self._instance = b""  # of the server that we are linked to
        self._attempt = 0
        self._since = 0.0  # when we began to knock
        self._told = False
        self._timer: Timer | None = None
        self._closing = False

    # For the communicator.

    def open(self) -> None:
        """Make a link, connecting to the broker first if need be."""
        self._wanted = True
        if self._subscribed:
            self._begin()
        elif self._broker.idle and not self._closing:
            topics = self._exchange.topics
            self._broker.open(self._id, will=(topics.link(Way("s", self._id, GONE)), b""))

    def close(self) -> None:
        """Knock no more; leave the broker when the link has said what it has to say."""
        self._closing, self._wanted = True, False
        self._stop_knocking()
        self._leave()

    # For the broker (netq/mqtt/broker.py, User).

    def up(self, size: int) -> None:
        """Listen."""
        if (error := self._exchange.limit(size)) is not None:
            self._broker.drop()
            return self.down(error)
        topics = self._exchange.topics
        self._broker.subscribe([topics.to_client(self._id), topics.hello], self._listening)
        return None

    def down(self, error: Exception) -> None:
        """The link is lost, or there will be none."""
        self._subscribed = False
        self._stop_knocking()
        self._exchange.lose(error)
        if self._wanted:
            self._wanted = False
            self._owner.lost(None, error)

    def received(self, topic: str, payload: bytes | bytearray) -> None:
        """Give a packet to the link, a block to its buffer."""
        topics = self._exchange.topics
        try:
            if topic == topics.hello:
                self._hello(packet.read_hello(payload))
            elif group := topics.group_of(topic):
                self._exchange.block_came(group, payload)
            elif (way := topics.way(topic)) is None or way.to != "c" or way.client != self._id:
                raise ProtocolError("no topic of a link of ours")
            else:
                self._packet(way, packet.decode(payload))
        except ProtocolError as error:
            self._exchange.complain(topic, error)

    def drained(self) -> None:
        """Let the link go on."""
        self._exchange.drained()
        if self._closing:
            self._loop.call(self._leave)

    # The rest.

    def _listening(self, granted: bool) -> None:
        self._subscribed = granted
        if not granted:
            self._broker.drop()
            self.down(
                PermissionError(f"the broker does not let this user subscribe below {self._options.mqtt.prefix!r}")
            )
        elif self._wanted:
            self._begin()

    def _begin(self) -> None:
        if self._knocking is None:
            self._attempt, self._since, self._told = 0, time.monotonic(), False
            self._knocking = self._exchange.new_port(Way("c", self._id, new_id()))
        self._knock()

    def _knock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._knocking is None:
            return
        now = time.monotonic()
        if now - self._since >= _SILENCE and not self._told:
            where, prefix = self._exchange.where, self._options.mqtt.prefix
            log.warning("%s: no server of %r answers; waiting until one comes", where, prefix)
            self._told = True
        self._knocking.knock(packet.opening(self._options.mqtt.packet_size))
        pause = self._options.connection.retry_min + backoff(self._attempt, self._options.connection)
        self._timer = self._loop.at(now + pause, self._knock)
        self._attempt += 1

    def _stop_knocking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._knocking is not None:
            port, self._knocking = self._knocking, None
            port.fail(ConnectionAbortedError("no answer"), tell=False)

    def _packet(self, way: Way, came: Packet) -> None:
        port = self._knocking
        if came.kind is Kind.WELCOME:
            if port is not None and port.way == way:
                self._welcome(port, came)
        elif came.kind not in FROM_SERVER:
            raise ProtocolError(f"{came.kind.name} is not a server's")
        elif port is not None and port.way == way:
            self._refused(came)
        else:
            self._exchange.packet_came(way, came)

    def _welcome(self, port: Port, came: Packet) -> None:
        opening = packet.read_opening(came)
        port.window.arrived(came)
        self._knocking, self._linked, self._wanted = None, port, False
        self._stop_knocking()
        self._instance = opening.instance
        self._exchange.attach(port, self._exchange.where, opening.size)

    def _refused(self, came: Packet) -> None:
        if came.kind is Kind.RESET:
            self._wanted = False
            self._stop_knocking()
            self._owner.lost(None, ConnectionRefusedError(f"the server says: {packet.read_reason(came)}"))

    def _hello(self, hello: packet.Hello) -> None:
        instance, here = hello.instance, hello.here
        if here and self._knocking is not None:
            self._attempt = 0
            self._knock()
        elif self._linked is not None and here == (instance != self._instance):
            why = "another server has taken over" if here else "the broker has lost the server"
            self._linked.fail(ConnectionResetError(why), tell=False)

    def _leave(self) -> None:
        if not self._exchange.ports or not self._broker.connected:
            self._broker.close()


class Communicator(core.Communicator):
    """A client on MQTT. Raises SecurityError."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.CLIENT, Visitor)
