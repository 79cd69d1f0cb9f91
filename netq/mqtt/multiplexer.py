"""The links that share one connection to the broker: who publishes next, and whose a publication is.

Owned by a transport (netq/mqtt/server.py, client.py), in the first loop. What is published waits in the links until the
system has taken all there was, and then they have their turns: so nothing piles up in front of the socket.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from netq.errors import ProtocolError
from netq.io.loop import Loop
from netq.mqtt import packet
from netq.mqtt.broker import Broker
from netq.mqtt.channel import Channel
from netq.mqtt.congestion import LATE, CongestionControl, InitialSizes
from netq.mqtt.link import PREFIX, Link
from netq.mqtt.multicast.groups import Groups
from netq.mqtt.multicast.reorder import Receiver
from netq.mqtt.packet import Kind, Packet
from netq.mqtt.topic import LinkTopic, Topics
from netq.mqtt.window import share
from netq.options import check_put_merge
from netq.runtime.link import LinkListener
from netq.text import printable

log = logging.getLogger("netq")

_SMALLEST = 1024  # bytes of a packet that a broker has to take
_LEAST = 4 * 1024  # to which packets are made smaller by guessing
_IN_VAIN = 3  # links lost in a row with a packet under way, since the first of which none so large has arrived
_STRANGERS = 4096  # links that have not greeted: all that a server keeps
_GREETING = 5.0  # seconds that they have for it, whoever else knocks
_RESETS = 100  # a second: packets for links that there are not


class MultiplexerListener(Protocol):
    """The transport: decides which links there are."""

    def up(self) -> None:
        """The broker has accepted us: listen."""

    def down(self, error: Exception) -> None:
        """The connection to the broker is lost, and all links with it; or it could not be made."""

    def hello(self, hello: packet.Hello) -> None:
        """A server is here, or gone."""

    def came(self, way: LinkTopic, payload: bytes | bytearray) -> None:
        """A publication for a link came; raises ProtocolError if it makes no sense."""


class Multiplexer:
    """The connection to the broker, and the ports of one communicator, by the way that leads to us."""

    def __init__(self, listener: LinkListener, loop: Loop, host: MultiplexerListener, *, is_server: bool) -> None:
        check_put_merge(listener.options, "MQTT")
        self.broker = Broker(loop, listener.options, self)
        self.closing = False
        self.loop = loop
        self.options = listener.options
        self.topics = Topics(listener.options.mqtt.prefix)
        self.ports: dict[LinkTopic, Channel] = {}
        self.size = listener.options.mqtt.packet_size  # of what we publish, without header
        self.heartbeat = listener.options.connection.heartbeat
        borne = self.heartbeat * listener.options.connection.misses  # seconds of silence; a link may wait several times
        self._late = min(LATE, borne / 4)
        self._groups = self._new_groups(borne / 6) if is_server else None
        self._host = host
        self._starts = InitialSizes()
        self._listener = listener
        self._strangers: dict[str, Channel] = {}  # by client, a server's links that have not greeted, the oldest first
        self._waiting: dict[Channel, None] = {}  # in the order of their turns
        self._pumping = False
        self._share = share(1)  # packets that each link may have on its way
        self._wanted = self.size  # before any of it seemed too large
        self._in_vain = 0  # links lost that make a limit of the broker's likely
        self._doubted = 0.0  # when the last of them was lost
        self._arrived = 0  # bytes of the largest packet that has arrived since the first of them was lost
        self._resets: deque[float] = deque(maxlen=_RESETS)
        self._complained = False

    @property
    def where(self) -> str:
        """The broker, for people."""
        return "{}:{}".format(*self.options.netloc)

    # For the transport.

    def listen(self, topics: list[str], listening: Callable[[], None]) -> None:
        """Subscribe to what no link can do without, then go on."""

        def answered(granted: bool) -> None:
            if granted:
                listening()
            else:
                prefix = self.options.mqtt.prefix
                self.broker.fail(PermissionError(f"the broker does not let this user subscribe below {prefix!r}"))

        self.broker.subscribe(topics, answered)

    def close(self) -> None:
        """Leave the broker when the links have said what they have to say."""
        self.closing = True
        self._leave()

    def new_port(self, came: LinkTopic) -> Channel:
        """Return the port of a new link, whose packets come on `came`. A server makes room for it before."""
        pace = CongestionControl(self.size, self._starts.of(came.client), self._late)
        port = Channel(self, came, self.topics.link(came.back), 1 if self._groups else self._share, pace)
        if self._groups is None:
            port.receiver = self._new_receiver(port)
        else:
            port.groups = self._groups
            self._strangers[came.client] = port  # until it has greeted
        self.ports[came] = port
        return port

    def make_room(self, client: str) -> bool:
        """Whether a client that knocks is let in. It has one link that has not greeted; whoever has many ids pushes
        out the oldest, but none that may still greet: a crowd that comes back knocks again.
        """
        again = self._strangers.get(client)
        if again is not None and not self._settle(again):
            again.fail(ConnectionResetError("it knocked again before it greeted"), tell=False)
        while len(self._strangers) >= _STRANGERS:
            oldest = next(iter(self._strangers.values()))
            if self._settle(oldest):
                continue
            if time.monotonic() < oldest.born + _GREETING:
                return False
            oldest.fail(ConnectionResetError("others knocked before it greeted"), tell=False)
        return True

    def attach(self, port: Channel, address: str, size: int) -> None:
        """Let a port carry a link."""
        link = Link(self._listener, port, self.loop, self._listener.connect(), address, min(size, self.size))
        self._listener.attach(link)

    def packet_came(self, way: LinkTopic, came: Packet) -> None:
        """Give a packet to its link; if there is none, say so."""
        port = self.ports.get(way)
        if port is None:
            if came.kind not in (Kind.RESET, Kind.CLOSE):
                self.refuse(way, "there is no such link")
        elif came.kind is Kind.RESET:
            if not port.referring:  # then it may be a group's block that is missing
                self._suspect(port)
            port.fail(ConnectionResetError(f"the peer says: {packet.read_reason(came)}"), tell=False)
        else:
            self._try(port, lambda: port.arrived(came))
            if self._is_stranger(port):
                self._settle(port)

    def refuse(self, way: LinkTopic, reason: str) -> None:
        """Tell a peer that its link is not there; not often, for nobody knows who asks."""
        now = time.monotonic()
        if len(self._resets) < _RESETS or now - self._resets[0] >= 1.0:
            self._resets.append(now)
            reset = packet.header(Kind.RESET, 0, 0, 0) + reason.encode()[: packet.REASON]
            self.broker.publish(self.topics.link(way.back), reset)

    # For the broker (netq/mqtt/broker.py).

    def up(self, size: int) -> None:
        """Make no packets that it does not take, and listen."""
        if size < _SMALLEST:
            why = f"the broker takes packets of {size} bytes; netq needs {_SMALLEST}"
            return self.broker.fail(ConnectionRefusedError(why))
        room = size - packet.OVERHEAD - PREFIX - len(self.topics.link(LinkTopic("s", "0" * 16, "0" * 16)).encode()) - 16
        self.size = max(1, min(self.options.mqtt.packet_size, room))
        self._wanted, self._in_vain = self.size, 0
        return self._host.up()

    def down(self, error: Exception) -> None:
        """The connection is lost, and all links with it."""
        for port in list(self.ports.values()):
            port.fail(error, tell=False)
        self._host.down(error)

    def received(self, topic: str, payload: bytes | bytearray) -> None:
        """Give a packet to its link, a block to the buffers of those that will refer to it."""
        try:
            if topic == self.topics.hello:
                self._host.hello(packet.read_hello(payload))
            elif (way := self.topics.way(topic)) is not None:
                self._host.came(way, payload)
            elif (group := self.topics.group_of(topic)) is not None:
                self._block_came(group, payload)
            else:
                raise ProtocolError("no topic of a link")
        except ProtocolError as error:
            level = logging.DEBUG if self._complained else logging.INFO
            self._complained = True
            log.log(level, "%s: a publication on %s is ignored: %s", self.where, printable(topic), error)

    def drained(self) -> None:
        """Give turns to the ports soon, not now: the caller is at work."""
        if self._waiting and not self._pumping:
            self._pumping = True
            self.loop.call(self._pump)
        if self.closing:
            self.loop.call(self._leave)

    # For ports.

    def wants(self, port: Channel) -> None:
        """Give a port a turn, after all that wait already."""
        if not port.gone:
            self._waiting.setdefault(port)
            self.drained()

    def proved(self, size: int) -> None:
        """Remember that packets of so many bytes arrive."""
        self._arrived = max(self._arrived, size)

    def ended(self, port: Channel) -> None:
        """Forget a port."""
        self._waiting.pop(port, None)
        self.ports.pop(port.way, None)
        if self._is_stranger(port):
            del self._strangers[port.way.client]
        self._starts.ended(port.way.client, port.pace)
        self._divide()

    # The rest.

    def _leave(self) -> None:
        if not self.ports or not self.broker.connected:
            self.broker.close()

    def _block_came(self, group: str, payload: bytes | bytearray) -> None:
        for port in list(self.ports.values()):
            if port.receiver is not None and port.receiver.put(group, payload):
                self._try(port, port.use)

    def _suspect(self, port: Channel) -> None:
        """The peer misses something. If larger packets never arrive, the broker may drop them without a word."""
        lost = port.pace.largest_under_way
        if lost <= _LEAST or port.born < self._doubted:  # many links may be lost at once, by another cause
            return
        if not self._in_vain or self._arrived >= lost:
            self._in_vain = self._arrived = 0
        self._in_vain += 1
        self._doubted = time.monotonic()
        if self._in_vain == _IN_VAIN:
            self._in_vain = 0
            self._shrink(lost)

    def _shrink(self, lost: int) -> None:
        told, self.size = self.size < self._wanted, max(_LEAST, min(self.size, lost) // 2)
        level = logging.DEBUG if told else logging.WARNING
        guess = "perhaps the broker has a limit of its own (message_size_limit; see MqttOptions.packet_size)"
        log.log(level, "%s: packets of %d bytes do not arrive, now smaller ones; %s", self.where, lost, guess)

    def _is_stranger(self, port: Channel) -> bool:
        return self._strangers.get(port.way.client) is port

    def _settle(self, port: Channel) -> bool:
        """Give one that has greeted its share of the room; return whether it has."""
        if port.link is None or not port.link.connection.open:
            return False
        del self._strangers[port.way.client]
        port.window.share = self._share
        self._divide()
        return True

    def _divide(self) -> None:
        """Share the room anew; what has been granted stays so."""
        greeted = len(self.ports) - len(self._strangers)
        if self._share != share(greeted):
            self._share = share(greeted)
            for port in self.ports.values():
                if not self._is_stranger(port):
                    port.window.share = self._share

    def _pump(self) -> None:
        self._pumping = False
        while self._waiting and self.broker.ready:
            port = next(iter(self._waiting))
            del self._waiting[port]
            if port.turn():
                self._waiting.setdefault(port)

    def _try(self, port: Channel, step: Callable[[], None]) -> None:
        try:
            step()
        except ProtocolError as error:
            port.fail(error)

    # For multicast (netq/mqtt/multicast).

    def _new_groups(self, silence: float) -> Groups:
        return Groups(
            self._members,
            lambda group, block: self.broker.publish(self.topics.group(group), block),
            lambda pause, function: self.loop.at(time.monotonic() + pause, function),
            silence,
        )

    def _new_receiver(self, port: Channel) -> Receiver:
        return Receiver(
            lambda group: self.broker.subscribe([self.topics.group(group)], partial(self._joined, port, group)),
            lambda group: self.broker.unsubscribe(self.topics.group(group)),
        )

    def _members(self, audience: tuple[uuid.UUID, ...]) -> list[Channel]:
        """The ports of these peers whose links both ends have agreed on, that answer, and take blocks of our size."""
        wanted, answering = set(audience), [port for port in self.ports.values() if port.answering]
        return [port for port in answering if port.link and port.link.broadcast_peer(self.size) in wanted]

    def _joined(self, port: Channel, group: str, granted: bool) -> None:
        if granted:
            port.command(Kind.JOINED, group)
