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
from netq.errors import ProtocolError
from netq.io.loop import Loop
from netq.mqtt import packet
from netq.mqtt.multiplexer import Multiplexer
from netq.mqtt.packet import FROM_CLIENT, Kind, Packet
from netq.mqtt.topic import ANY, GONE, WHO, LinkTopic, new_id, server_id
from netq.options import CommunicatorOptions, Purpose
from netq.runtime.link import LinkListener, backoff
from netq.runtime.log_dedup import LogDedup
from netq.text import printable

log = logging.getLogger("netq")

_ANSWER = 0.5  # seconds within which another server would have said hello
_HELLOS = 0.1  # seconds between two answers to who asks; each goes to all clients
_STEADY = 1.0  # seconds that a connection has to last, for the next pause to be a short one again


class ServerTransport:
    """A transport: welcomes clients, as long as the broker is there, and comes back when it comes back."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        self.netloc = listener.options.netloc
        self._options = listener.options
        self._loop = loop
        self._exchange = Multiplexer(listener, loop, self, is_server=True)
        self._broker = self._exchange.broker
        self._instance = b""
        self._asking = False
        self._nonce = b""  # of the question that we have asked, while its answer is waited for
        self._questions: list[bytes] = []  # nonces that the next hello is to repeat
        self._last_hello = 0.0
        self._attempt = 0
        self._up_since = 0.0
        self._log_dedup = LogDedup()  # of the broker

    # For the communicator.

    def open(self) -> None:
        """Connect to the broker."""
        if self._exchange.closing:
            return
        self._instance = secrets.token_bytes(packet.INSTANCE_SIZE)
        if self._asking:
            self._broker.open(new_id())
        else:
            gone = packet.hello(self._instance, here=False)
            self._broker.open(server_id(self._options.mqtt.prefix), will=(self._exchange.topics.hello, gone))

    def close(self) -> None:
        """Welcome nobody any more; leave the broker when the links have said what they have to say."""
        self._exchange.close()

    # For the exchange (netq/mqtt/multiplexer.py, Host).

    def up(self) -> None:
        """Listen."""
        topics = self._exchange.topics
        if self._asking:
            self._broker.subscribe([topics.hello], self._ask)
        else:
            self._exchange.listen([topics.link(LinkTopic("s", ANY, ANY))], self._listening)

    def down(self, error: Exception) -> None:
        """Try again, unless another server has come in our place."""
        self._nonce = b""
        self._complain(f"{printable(str(error))}; trying again until it answers")
        now = time.monotonic()
        if self._up_since and now - self._up_since >= _STEADY:
            self._attempt = 0
        self._asking = self._asking or self._up_since > 0.0
        self._up_since = 0.0
        self._loop.at(now + backoff(self._attempt, self._options.connection), self.open)
        self._attempt += 1

    def hello(self, hello: packet.Hello) -> None:
        """Wait until no server answers any more, if this is the answer to our question."""
        if not self._nonce or not hello.here or self._nonce not in hello.answers:
            return
        self._nonce = b""
        self._broker.drop()
        prefix = self._options.mqtt.prefix
        self._complain(f"another server of {prefix!r} has taken over; this one waits until that is gone")
        self._loop.at(time.monotonic() + self._options.connection.retry_max, self.open)

    def came(self, way: LinkTopic, payload: bytes | bytearray) -> None:
        """Give a packet to its link, or to a new one."""
        if way.link == GONE:
            return self._gone(way.client)
        if way.link == WHO:
            return self._asked(packet.read_question(payload))
        came = packet.decode(payload, FROM_CLIENT)
        if came.kind is Kind.OPEN:
            return self._knock(way, came)
        return self._exchange.packet_came(way, came)

    # The rest.

    def _listening(self) -> None:
        self._up_since = time.monotonic()
        level = logging.WARNING if self._log_dedup.forget(self._exchange.where) else logging.INFO
        log.log(level, "%s: connected to the broker, serving %r", self._exchange.where, self._options.mqtt.prefix)
        self._say_hello()

    def _complain(self, trouble: str) -> None:
        if self._log_dedup.is_new(self._exchange.where, trouble):
            log.warning("%s: %s", self._exchange.where, trouble)

    def _say_hello(self) -> None:
        questions, self._questions = self._questions, []
        if not self._asking and not self._exchange.closing:
            self._last_hello = time.monotonic()
            hello = packet.hello(self._instance, here=True) + b"".join(questions)
            self._broker.publish(self._exchange.topics.hello, hello)

    def _asked(self, nonce: bytes) -> None:
        """Say hello to who asks, soon: whoever can ask could have all clients told as often as it likes."""
        if not self._asking and len(self._questions) < packet.QUESTIONS:
            self._questions.append(nonce)
            if len(self._questions) == 1:
                self._loop.at(self._last_hello + _HELLOS, self._say_hello)

    # After a loss: has another come?

    def _ask(self, granted: bool) -> None:
        topic = self._exchange.topics.link(LinkTopic("s", new_id(), WHO))
        self._nonce = secrets.token_bytes(packet.NONCE_SIZE)
        self._broker.publish(topic, self._nonce)
        self._loop.at(time.monotonic() + _ANSWER, self._unanswered, self._nonce)

    def _unanswered(self, nonce: bytes) -> None:
        if nonce == self._nonce:
            self._nonce = b""
            self._asking = False
            self._broker.drop()
            self.open()

    # Packets.

    def _knock(self, way: LinkTopic, came: Packet) -> None:
        if self._exchange.closing:
            return self._exchange.refuse(way, "the server is closing")
        try:
            opening = packet.read_opening(came)
        except ProtocolError as error:
            return self._exchange.refuse(way, str(error))
        known = self._exchange.ports.get(way)  # then our answer was lost, or crossed this
        if known is None and not self._exchange.make_room(way.client):
            return None  # it knocks again
        port = known or self._exchange.new_port(way)
        port.say(Kind.WELCOME, packet.opening(self._options.mqtt.packet_size, self._instance))
        if known is None:
            port.window.arrived(came)
            self._exchange.attach(port, f"{self._exchange.where}, client {way.client}", opening.size)
        return None

    def _gone(self, client: str) -> None:
        for way, port in list(self._exchange.ports.items()):
            if way.client == client:
                port.fail(ConnectionResetError("the broker has lost it"), tell=False)


class Communicator(core.Communicator):
    """A server on MQTT. Raises SecurityError."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.SERVER, ServerTransport)
