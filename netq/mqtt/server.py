"""The server's transport: one connection to the broker, and a link for each client that sends OPEN.

    open ──► serving the prefix: hello, WELCOME ──lost──► pause ──► asking ──no answer──► serving again
                                                           ▲          └──────answer─────► taken over
                                                           └──────────────────────────────────┘ after retry_max

A new server takes over a prefix: it uses the same id at the broker as the previous server, so the broker ends the
connection of that one. Few brokers report the reason (0x8E). So a server that has lost its connection connects under
another id and asks whether a server answers. Only a hello with the question's nonce is an answer: another hello may be
a late one of its own, or come from any publisher. It repeats the question, as the new server may subscribe late.
"""

from __future__ import annotations

import logging
import secrets
import time

from netq import core
from netq.errors import ProtocolError
from netq.io.loop import Loop
from netq.log import log
from netq.mqtt import packet
from netq.mqtt.multiplexer import Multiplexer
from netq.mqtt.packet import FROM_CLIENT, Packet, PacketKind
from netq.mqtt.topic import ANY, GONE, WHO, LinkTopic, new_id, server_id
from netq.options import CommunicatorOptions, Purpose
from netq.runtime.link import LinkListener, backoff
from netq.runtime.log_dedup import LogDedup
from netq.text import printable

_ANSWER_TIME = 0.5  # seconds in which another server would answer, if connecting has not taken longer
_REPEATS = 5  # questions to it in this time
_HELLO_INTERVAL = 0.1  # seconds between two hellos that answer questions; all clients receive each of them
_STABLE_AFTER = 1.0  # seconds that a connection must last to reset the backoff


class ServerTransport:
    """A transport: accepts clients while it is connected to the broker, and reconnects after a loss."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        # The broker, and the channels through it.
        self.netloc = listener.options.netloc
        self._options = listener.options
        self._loop = loop
        self._multiplexer = Multiplexer(listener, loop, self, is_server=True)
        self._broker = self._multiplexer.broker
        # Hellos, by which two servers with one prefix find each other.
        self._instance = b""
        self._checking_takeover = False
        self._opened = 0.0  # when the last connection was begun
        self._nonce = b""  # of our question, while it may be answered
        self._questions: list[bytes] = []  # nonces that the next hello repeats
        self._last_hello = 0.0
        # Reconnecting to the broker.
        self._attempt = 0
        self._up_since = 0.0
        self._log_dedup = LogDedup()  # for the log lines about the broker

    # For the communicator.

    def open(self) -> None:
        """Connect to the broker."""
        if self._multiplexer.closing:
            return
        self._instance = secrets.token_bytes(packet.INSTANCE_SIZE)
        self._opened = time.monotonic()
        if self._checking_takeover:
            self._broker.open(new_id())
        else:
            gone = packet.hello(self._instance, here=False)
            self._broker.open(server_id(self._options.mqtt.prefix), will=(self._multiplexer.topics.hello, gone))

    def close(self) -> None:
        """Accept no more clients; disconnect from the broker when the links have sent their last packets."""
        self._multiplexer.close()

    # For the multiplexer: MultiplexerListener.

    def up(self) -> None:
        """Subscribe: for clients, or to ask for another server."""
        topics = self._multiplexer.topics
        if self._checking_takeover:
            self._broker.subscribe([topics.hello], self._ask_for_server)
        else:
            self._multiplexer.subscribe([topics.link(LinkTopic("s", ANY, ANY))], self._on_subscribed)

    def down(self, error: Exception) -> None:
        """Reconnect after a pause. After a loss, first ask whether another server has taken over."""
        # `_up_since` shows that this server has served the prefix: only then another one may have taken over. A server
        # that has never been connected does not ask, and takes the prefix over.
        self._nonce = b""
        self._warn(f"{printable(str(error))}; trying again until it answers")
        now = time.monotonic()
        if self._up_since and now - self._up_since >= _STABLE_AFTER:
            self._attempt = 0
        self._checking_takeover = self._checking_takeover or self._up_since > 0.0
        self._up_since = 0.0
        self._loop.at(now + backoff(self._attempt, self._options.connection), self.open)
        self._attempt += 1

    def hello(self, hello: packet.Hello) -> None:
        """If this answers our question, another server has taken over: ask again later."""
        if not self._nonce or not hello.here or self._nonce not in hello.answers:
            return
        self._nonce = b""
        self._broker.drop()
        prefix = self._options.mqtt.prefix
        self._warn(f"another server of {prefix!r} has taken over; this one waits until that is gone")
        self._loop.at(time.monotonic() + self._options.connection.retry_max, self.open)

    def packet_received(self, link_topic: LinkTopic, payload: bytes | bytearray) -> None:
        """Pass a packet to its link, or make a link."""
        if link_topic.link == GONE:
            return self._on_client_gone(link_topic.client)
        if link_topic.link == WHO:
            return self._on_question(packet.read_question(payload))
        incoming = packet.decode(payload, FROM_CLIENT)
        if incoming.kind is PacketKind.OPEN:
            return self._on_open(link_topic, incoming)
        return self._multiplexer.dispatch(link_topic, incoming)

    # The rest.

    def _on_subscribed(self) -> None:
        self._up_since = time.monotonic()
        level = logging.WARNING if self._log_dedup.forget(self._multiplexer.broker_address) else logging.INFO
        log.log(
            level,
            "%s: connected to the broker, serving %r",
            self._multiplexer.broker_address,
            self._options.mqtt.prefix,
        )
        self._publish_hello()

    def _warn(self, problem: str) -> None:
        if self._log_dedup.is_new(self._multiplexer.broker_address, problem, time.monotonic()):
            log.warning("%s: %s", self._multiplexer.broker_address, problem)

    def _publish_hello(self) -> None:
        questions, self._questions = self._questions, []
        if not self._checking_takeover and not self._multiplexer.closing:
            self._last_hello = time.monotonic()
            hello = packet.hello(self._instance, here=True) + b"".join(questions)
            self._broker.publish(self._multiplexer.topics.hello, hello)

    def _on_question(self, nonce: bytes) -> None:
        """Answer a question by hello, rate-limited: each hello reaches all clients."""
        if not self._checking_takeover and len(self._questions) < packet.QUESTIONS:
            self._questions.append(nonce)
            if len(self._questions) == 1:
                self._loop.at(self._last_hello + _HELLO_INTERVAL, self._publish_hello)

    # After a loss: asking whether another server has taken over.

    def _ask_for_server(self, granted: bool) -> None:
        self._nonce = secrets.token_bytes(packet.NONCE_SIZE)
        # Connecting takes three round trips, an answer two, if the other server's link is as slow.
        answer_time = max(_ANSWER_TIME, time.monotonic() - self._opened)
        self._ask(self._nonce, answer_time / _REPEATS, _REPEATS)

    def _ask(self, nonce: bytes, pause: float, left: int) -> None:
        """Ask `left` times, `pause` seconds apart; serve the prefix again if that brings no answer."""
        if nonce != self._nonce:
            return
        if left:
            topic = self._multiplexer.topics.link(LinkTopic("s", new_id(), WHO))
            self._broker.publish(topic, nonce)
            self._loop.at(time.monotonic() + pause, self._ask, nonce, pause, left - 1)
        else:
            self._nonce = b""
            self._checking_takeover = False
            self._broker.drop()
            self.open()

    # Packets.

    def _on_open(self, link_topic: LinkTopic, incoming: Packet) -> None:
        if self._multiplexer.closing:
            return self._multiplexer.refuse(link_topic, "the server is closing")
        try:
            opening = packet.read_opening(incoming)
        except ProtocolError as error:
            return self._multiplexer.refuse(link_topic, str(error))
        # A client repeats OPEN until it gets WELCOME. So a known link is answered again, and not made again: it may
        # carry packets already, whose numbers would start anew.
        known = self._multiplexer.channels.get(link_topic)  # our WELCOME was lost, or is on its way
        if known is None and not self._multiplexer.admit(link_topic.client):
            return None  # the client repeats OPEN
        channel = known or self._multiplexer.new_channel(link_topic)
        channel.publish(PacketKind.WELCOME, packet.opening(self._options.mqtt.packet_size, self._instance))
        if known is None:
            channel.window.receive(incoming)
            self._multiplexer.attach(
                channel, f"{self._multiplexer.broker_address}, client {link_topic.client}", opening.size
            )
        return None

    def _on_client_gone(self, client: str) -> None:
        for link_topic, channel in list(self._multiplexer.channels.items()):
            if link_topic.client == client:
                channel.fail(ConnectionResetError("the broker has lost it"), notify_peer=False)


class Communicator(core.Communicator):
    """A server on MQTT. Raises SecurityError."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.SERVER, ServerTransport)
