"""The server's side of MQTT: one connection to the broker, and a link for each client that knocks.

    open ──────────► as the server of the prefix: hello, welcome ──lost──► pause ──► asking ──► again, if nobody answers
                                                                                       └──► taken over: ask again
                                                                                            after retry_max

A server that comes anew takes a prefix over: it has the id at the broker of the one before, whose connection the broker
ends. Few brokers say why (0x8E); so one that has lost its connection asks, under another id, who is the server now.
Only a hello that repeats the question's nonce is an answer: others may be late, or nobody's.
"""

from __future__ import annotations

import logging
import secrets
import time

from netq import core
from netq.complaints import Complaints, printable
from netq.errors import ProtocolError
from netq.link import Owner, backoff
from netq.loop import Loop
from netq.mqtt import packet
from netq.mqtt.broker import Broker
from netq.mqtt.exchange import Exchange
from netq.mqtt.packet import FROM_CLIENT, Kind, Packet
from netq.mqtt.topic import GONE, WHO, Way, new_id, server_id
from netq.options import CommunicatorOptions, Purpose
from netq.timers import Timer

log = logging.getLogger("netq")

_ANSWER = 0.5  # seconds within which another server would have said hello
_HELLOS = 0.1  # seconds between two answers to who asks; each goes to all clients
_STEADY = 1.0  # seconds that a connection has to last, for the next pause to be a short one again


class Reception:
    """A transport: welcomes clients, as long as the broker is there, and comes back when it comes back."""

    def __init__(self, owner: Owner, loop: Loop) -> None:
        self.netloc = owner.options.netloc
        self._options = owner.options
        self._loop = loop
        self._exchange = Exchange(owner, loop, is_server=True)
        self._broker = self._exchange.broker = Broker(loop, owner.options, self)
        self._instance = b""
        self._asking = False
        self._nonce = b""  # of the question that we have asked
        self._answer: Timer | None = None  # runs while it is waited for
        self._taken = False  # another answered; the log has been told
        self._questions: list[bytes] = []  # nonces that the next hello is to repeat
        self._next_hello: Timer | None = None
        self._last_hello = 0.0
        self._attempt = 0
        self._up_since = 0.0
        self._complaints = Complaints()  # of the broker
        self._closing = False

    # For the communicator.

    def open(self) -> None:
        """Connect to the broker."""
        if self._closing:
            return
        self._instance = secrets.token_bytes(packet.INSTANCE_SIZE)
        if self._asking:
            self._broker.open(new_id())
        else:
            gone = packet.hello(self._instance, here=False)
            self._broker.open(server_id(self._options.mqtt.prefix), will=(self._exchange.topics.hello, gone))

    def close(self) -> None:
        """Welcome nobody any more; leave the broker when the links have said what they have to say."""
        self._closing = True
        for timer in (self._answer, self._next_hello):
            if timer is not None:
                timer.cancel()
        self._leave()

    # For the broker (netq/mqtt/broker.py, User).

    def up(self, size: int) -> None:
        """Listen."""
        topics = self._exchange.topics
        if (error := self._exchange.limit(size)) is not None:
            self._broker.drop()
            return self.down(error)
        if self._asking:
            self._broker.subscribe([topics.hello], self._ask)
        else:
            self._broker.subscribe([topics.to_server], self._listening)
        return None

    def down(self, error: Exception) -> None:
        """All links are lost; try again, unless another server has come in our place."""
        self._exchange.lose(error)
        if self._answer is not None:
            self._answer.cancel()
        trouble = printable(str(error))
        if self._complaints.is_new(self._exchange.where, trouble):
            log.warning("%s: %s; trying again until it answers", self._exchange.where, trouble)
        now = time.monotonic()
        if self._up_since and now - self._up_since >= _STEADY:
            self._attempt = 0
        self._asking = self._asking or self._up_since > 0.0
        self._up_since = 0.0
        if not self._closing:
            self._loop.at(now + backoff(self._attempt, self._options.connection), self.open)
            self._attempt += 1
        return

    def received(self, topic: str, payload: bytes | bytearray) -> None:
        """Give a packet to its link, or to a new one."""
        way = self._exchange.topics.way(topic)
        try:
            if topic == self._exchange.topics.hello:
                self._hello(packet.read_hello(payload))
            elif way is None:
                raise ProtocolError("no topic of a link")
            elif way.link == GONE:
                self._gone(way.client)
            elif way.link == WHO:
                self._asked(packet.read_question(payload))
            else:
                self._packet(way, packet.decode(payload))
        except ProtocolError as error:
            self._exchange.complain(topic, error)

    def drained(self) -> None:
        """Let the links go on."""
        self._exchange.drained()
        if self._closing:
            self._loop.call(self._leave)

    # The rest.

    def _listening(self, granted: bool) -> None:
        prefix = self._options.mqtt.prefix
        if not granted:
            return self._not_let(prefix)
        self._up_since = time.monotonic()
        troubled = self._complaints.forget(self._exchange.where) or self._taken
        level = logging.WARNING if troubled else logging.INFO
        log.log(level, "%s: connected to the broker, serving %r", self._exchange.where, prefix)
        self._taken = False
        return self._say_hello()

    def _not_let(self, prefix: str) -> None:
        self._broker.drop()
        self.down(PermissionError(f"the broker does not let this user subscribe below {prefix!r}"))

    def _say_hello(self) -> None:
        self._last_hello = time.monotonic()
        questions, self._questions = self._questions, []
        hello = packet.hello(self._instance, here=True) + b"".join(questions)
        self._exchange.publish(self._exchange.topics.hello, hello)

    def _asked(self, nonce: bytes) -> None:
        """Say hello to who asks, soon: whoever can ask could have all clients told as often as it likes."""
        if self._asking or self._closing or len(self._questions) >= packet.QUESTIONS:
            return
        self._questions.append(nonce)
        if self._next_hello is None:
            self._next_hello = self._loop.at(self._last_hello + _HELLOS, self._answer_all)

    def _answer_all(self) -> None:
        self._next_hello = None
        if self._broker.connected and not self._asking:
            self._say_hello()

    # After a loss: has another come?

    def _ask(self, granted: bool) -> None:
        topic = self._exchange.topics.link(Way("s", new_id(), WHO))
        self._nonce = secrets.token_bytes(packet.NONCE_SIZE)
        self._exchange.publish(topic, self._nonce)
        self._answer = self._loop.at(time.monotonic() + _ANSWER, self._unanswered)

    def _unanswered(self) -> None:
        self._asking = False
        self._broker.drop()
        self.open()

    def _hello(self, hello: packet.Hello) -> None:
        if self._asking and hello.here and self._nonce and self._nonce in hello.answers:
            self._broker.drop()
            self._taken_over()

    def _taken_over(self) -> None:
        """Wait until nobody answers any more."""
        if self._answer is not None:
            self._answer.cancel()
        self._nonce = b""
        where, prefix = self._exchange.where, self._options.mqtt.prefix
        if not self._taken:
            log.warning("%s: another server of %r has taken over; this one waits until that is gone", where, prefix)
        self._taken = True
        if not self._closing:
            self._loop.at(time.monotonic() + self._options.connection.retry_max, self.open)

    # Packets.

    def _packet(self, way: Way, came: Packet) -> None:
        if way.to != "s" or came.kind not in FROM_CLIENT | {Kind.OPEN}:
            raise ProtocolError(f"{came.kind.name} is not a client's")
        if came.kind is Kind.OPEN:
            self._knock(way, came)
        else:
            self._exchange.packet_came(way, came)

    def _knock(self, way: Way, came: Packet) -> None:
        if self._closing:
            return self._exchange.refuse(way, "the server is closing")
        try:
            opening = packet.read_opening(came)
        except ProtocolError as error:
            return self._exchange.refuse(way, str(error))
        port = self._exchange.ports.get(way)
        if port is not None:  # our answer was lost, or crossed this
            return port.welcome(packet.opening(self._options.mqtt.packet_size, self._instance))
        if not self._exchange.make_room(way.client):
            return None  # it knocks again
        port = self._exchange.new_port(way)
        port.window.arrived(came)
        port.welcome(packet.opening(self._options.mqtt.packet_size, self._instance))
        return self._exchange.attach(port, f"{self._exchange.where}, client {way.client}", opening.size)

    def _gone(self, client: str) -> None:
        for way, port in list(self._exchange.ports.items()):
            if way.client == client:
                port.fail(ConnectionResetError("the broker has lost it"), tell=False)

    def _leave(self) -> None:
        if not self._exchange.ports or not self._broker.connected:
            self._broker.close()


class Communicator(core.Communicator):
    """A server on MQTT. Raises SecurityError."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.SERVER, Reception)
