"""Shares one connection to the broker among links: schedules their packets, and dispatches those that arrive.

Owned by a transport (netq/mqtt/server.py, client.py), in the first loop. Packets wait in the channels until the socket
has accepted everything before them. Then the channels get turns, round robin. So nothing queues in front of the socket.
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
from netq.log import log
from netq.mqtt import packet
from netq.mqtt.broker import Broker
from netq.mqtt.channel import Channel
from netq.mqtt.congestion import MAX_WAIT, CongestionControl, InitialSizes
from netq.mqtt.link import PREFIX, Link
from netq.mqtt.multicast.groups import Groups
from netq.mqtt.multicast.reorder import Receiver
from netq.mqtt.packet import Packet, PacketKind
from netq.mqtt.topic import LinkTopic, Topics
from netq.mqtt.window import share
from netq.options import check_put_merge
from netq.runtime.link import LinkListener
from netq.text import printable

_BROKER_MINIMUM = 1024  # bytes: the smallest packet limit of a broker that netq accepts
_MIN_SIZE = 4 * 1024  # bytes: packets are not made smaller than this on suspicion of a limit
# Links lost in a row with a large packet in flight, while no packet of that size arrives. After so many, the broker
# probably has a limit that it did not report.
_MAX_SUSPICIOUS = 3
_MAX_RESETS = 100  # RESET packets a second for unknown links


class MultiplexerListener(Protocol):
    """The interface of the transport, which makes the links."""

    def up(self) -> None:
        """Handle the connection to the broker: subscribe."""

    def down(self, error: Exception) -> None:
        """Handle the loss of the connection to the broker, or a failed attempt. All links are lost already."""

    def hello(self, hello: packet.Hello) -> None:
        """Handle a server's hello."""

    def packet_received(self, link_topic: LinkTopic, payload: bytes | bytearray) -> None:
        """Handle a publication on a link's topic. Raises ProtocolError if it is invalid."""


class Multiplexer:
    """The connection to the broker and the channels of one communicator, by their incoming topic.

    It has more attributes than others: all channels share one connection, its times, and its packets on their way.
    """

    def __init__(self, listener: LinkListener, loop: Loop, transport: MultiplexerListener, *, is_server: bool) -> None:
        check_put_merge(listener.options, "MQTT")
        # The owner's wiring: fixed from the start.
        self.broker = Broker(loop, listener.options, self)
        self.loop = loop
        self.options = listener.options
        self.topics = Topics(listener.options.mqtt.prefix)
        self._transport = transport
        self._listener = listener
        # Times, in seconds.
        self.heartbeat = listener.options.connection.heartbeat
        # Seconds of silence after which a session gives its link up. One wait must use only a fraction of it, because
        # several may follow each other.
        silence = self.heartbeat * listener.options.connection.misses
        self._max_wait = min(MAX_WAIT, silence / 4)
        # The channels, and whose turn it is to send.
        self.closing = False
        self.channels: dict[LinkTopic, Channel] = {}
        self._groups = self._new_groups(silence / 6) if is_server else None
        self._initial_sizes = InitialSizes()
        self._ungreeted: dict[str, Channel] = {}  # a server's links before the handshake, by client, oldest first
        self._waiting: dict[Channel, None] = {}  # in the order of their turns; a dict as an ordered set
        self._turns_scheduled = False
        self._share = share(1)  # packets that each link may have in flight
        # The size of packets: losses in a row suggest that the broker drops larger ones.
        self.size = listener.options.mqtt.packet_size  # bytes: the largest packet that we publish, without its header
        self._agreed_size = self.size  # bytes: `size` before any limit was suspected
        self._suspicious_losses = 0  # losses in a row that suggest a limit of the broker
        self._last_suspicion = 0.0  # time of the last of them
        self._largest_arrived = 0  # bytes of the largest packet acknowledged since the first of them
        self._resets: deque[float] = deque(maxlen=_MAX_RESETS)
        self._warned = False

    @property
    def broker_address(self) -> str:
        """The broker's address, for log lines."""
        return self.broker.address

    # For the transport.

    def subscribe(self, topics: list[str], subscribed: Callable[[], None]) -> None:
        """Subscribe to required topics, then call `subscribed`. A refusal fails the connection."""

        def answered(granted: bool) -> None:
            if granted:
                subscribed()
            else:
                prefix = self.options.mqtt.prefix
                self.broker.fail(PermissionError(f"the broker does not let this user subscribe below {prefix!r}"))

        self.broker.subscribe(topics, answered)

    def close(self) -> None:
        """Disconnect from the broker when the links have sent their last packets."""
        self.closing = True
        self._close_if_done()

    def new_channel(self, link_topic: LinkTopic) -> Channel:
        """Return the channel of a new link, whose packets arrive on `link_topic`. A server calls `admit` first."""
        congestion = CongestionControl(self.size, self._initial_sizes.get(link_topic.client), self._max_wait)
        channel = Channel(
            self, link_topic, self.topics.link(link_topic.reverse), 1 if self._groups else self._share, congestion
        )
        if self._groups is None:
            channel.receiver = self._new_receiver(channel)
        else:
            channel.groups = self._groups
            self._ungreeted[link_topic.client] = channel  # until the session's handshake
        self.channels[link_topic] = channel
        return channel

    def admit(self, client: str) -> bool:
        """Return whether a client may open a link now.

        A client has one link before its handshake: a new one replaces it. If too many clients are in their handshake,
        this one is not admitted yet, and repeats OPEN.
        """
        previous = self._ungreeted.get(client)
        if previous is not None and not self._mark_greeted(previous):
            previous.fail(
                ConnectionResetError("it opened another link before the end of its handshake"), notify_peer=False
            )
        return self._listener.has_room()

    def attach(self, channel: Channel, address: str, size: int) -> None:
        """Make a link over a channel."""
        link = Link(self._listener, channel, self.loop, self._listener.connect(), address, min(size, self.size))
        link.protection = self.broker.protection
        self._listener.attach(link)

    def dispatch(self, link_topic: LinkTopic, incoming: Packet) -> None:
        """Pass a packet to its link; answer by RESET if there is none."""
        channel = self.channels.get(link_topic)
        if channel is None:
            if incoming.kind not in (PacketKind.RESET, PacketKind.CLOSE):
                self.refuse(link_topic, "there is no such link")
        elif incoming.kind is PacketKind.RESET:
            if not channel.has_open_reference:  # otherwise the missing packet may be a group's block
                self._suspect_size_limit(channel)
            channel.fail(ConnectionResetError(f"the peer says: {packet.read_reason(incoming)}"), notify_peer=False)
        else:
            self._run_or_fail(channel, lambda: channel.receive(incoming))
            if self._is_ungreeted(channel):
                self._mark_greeted(channel)

    def refuse(self, link_topic: LinkTopic, reason: str) -> None:
        """Publish RESET for a link that does not exist. Rate-limited, because the publisher is not authenticated."""
        now = time.monotonic()
        if len(self._resets) < _MAX_RESETS or now - self._resets[0] >= 1.0:
            self._resets.append(now)
            reset = packet.header(PacketKind.RESET, 0, 0, 0) + reason.encode()[: packet.REASON]
            self.broker.publish(self.topics.link(link_topic.reverse), reset)

    # For the broker (netq/mqtt/broker.py).

    def up(self, size: int) -> None:
        """Limit packets to what the broker accepts, and start the transport."""
        if size < _BROKER_MINIMUM:
            why = f"the broker takes packets of {size} bytes; netq needs {_BROKER_MINIMUM}"
            return self.broker.fail(ConnectionRefusedError(why))
        room = size - packet.OVERHEAD - PREFIX - len(self.topics.link(LinkTopic("s", "0" * 16, "0" * 16)).encode()) - 16
        self.size = max(1, min(self.options.mqtt.packet_size, room))
        self._agreed_size, self._suspicious_losses = self.size, 0
        return self._transport.up()

    def down(self, error: Exception) -> None:
        """End all links: the connection is lost."""
        for channel in list(self.channels.values()):
            channel.fail(error, notify_peer=False)
        self._transport.down(error)

    def received(self, topic: str, payload: bytes | bytearray) -> None:
        """Dispatch a publication: hello to the transport, a packet to its link, a block to the members of its group."""
        try:
            if topic == self.topics.hello:
                self._transport.hello(packet.read_hello(payload))
            elif (link_topic := self.topics.parse_link(topic)) is not None:
                self._transport.packet_received(link_topic, payload)
            elif (group := self.topics.parse_group(topic)) is not None:
                self._on_block(group, payload)
            else:
                raise ProtocolError("no topic of a link")
        except ProtocolError as error:
            level = logging.DEBUG if self._warned else logging.INFO
            self._warned = True
            log.log(level, "%s: a publication on %s is ignored: %s", self.broker_address, printable(topic), error)

    def schedule_turns(self) -> None:
        """Schedule turns of the waiting channels. Not now, because the caller may be in the middle of one."""
        if self._waiting and not self._turns_scheduled:
            self._turns_scheduled = True
            self.loop.call(self._give_turns)
        if self.closing:
            self.loop.call(self._close_if_done)

    # For channels.

    def request_turn(self, channel: Channel) -> None:
        """Queue a channel for a turn, behind those that wait already."""
        if not channel.closed:
            self._waiting.setdefault(channel)
            self.schedule_turns()

    def record_arrival(self, size: int) -> None:
        """Record that a packet of `size` bytes has arrived."""
        self._largest_arrived = max(self._largest_arrived, size)

    def remove(self, channel: Channel) -> None:
        """Remove a channel that has ended."""
        self._waiting.pop(channel, None)
        self.channels.pop(channel.link_topic, None)
        if self._is_ungreeted(channel):
            del self._ungreeted[channel.link_topic.client]
        self._initial_sizes.record(channel.link_topic.client, channel.congestion)
        self._update_shares()

    # The rest.

    def _close_if_done(self) -> None:
        if not self.channels or not self.broker.connected:
            self.broker.close()

    def _on_block(self, group: str, payload: bytes | bytearray) -> None:
        for channel in list(self.channels.values()):
            if channel.receiver is not None and channel.receiver.put(group, payload):
                self._run_or_fail(channel, channel.process_held)

    def _suspect_size_limit(self, channel: Channel) -> None:
        """Count a loss that a size limit of the broker would explain: brokers drop larger packets silently."""
        # The session would resume with a packet of the same size, and lose each link in the same way forever. Three
        # losses in a row with no packet of that size between them are enough to try smaller ones: a wrong guess costs
        # some speed, until the next connection to the broker.
        lost = channel.congestion.largest_in_flight
        if lost <= _MIN_SIZE or channel.created < self._last_suspicion:
            return  # links that are lost together have another cause, and count once
        if not self._suspicious_losses or self._largest_arrived >= lost:
            self._suspicious_losses = self._largest_arrived = 0
        self._suspicious_losses += 1
        self._last_suspicion = time.monotonic()
        if self._suspicious_losses == _MAX_SUSPICIOUS:
            self._suspicious_losses = 0
            self._shrink(lost)

    def _shrink(self, lost: int) -> None:
        already_warned, self.size = self.size < self._agreed_size, max(_MIN_SIZE, min(self.size, lost) // 2)
        level = logging.DEBUG if already_warned else logging.WARNING
        guess = "perhaps the broker has a limit of its own (message_size_limit; see MqttOptions.packet_size)"
        log.log(level, "%s: packets of %d bytes do not arrive, now smaller ones; %s", self.broker_address, lost, guess)

    def _is_ungreeted(self, channel: Channel) -> bool:
        return self._ungreeted.get(channel.link_topic.client) is channel

    def _mark_greeted(self, channel: Channel) -> bool:
        """Give a link its share of packets if its handshake is done; return whether it is."""
        if channel.link is None or not channel.link.connection.open:
            return False
        del self._ungreeted[channel.link_topic.client]
        channel.window.share = self._share
        self._update_shares()
        return True

    def _update_shares(self) -> None:
        """Recompute each link's share. Credit that was granted stays valid."""
        greeted = len(self.channels) - len(self._ungreeted)
        if self._share != share(greeted):
            self._share = share(greeted)
            for channel in self.channels.values():
                if not self._is_ungreeted(channel):
                    channel.window.share = self._share

    def _give_turns(self) -> None:
        # One packet for each channel in turn, and only while the socket has taken all before it. What paho has queued
        # is behind every later packet: with more there, a short message of one link would wait for the large ones of
        # all others. `Broker._write` schedules the next turns when the socket has room.
        self._turns_scheduled = False
        while self._waiting and self.broker.ready:
            channel = next(iter(self._waiting))
            del self._waiting[channel]
            if channel.take_turn():
                self._waiting.setdefault(channel)

    def _run_or_fail(self, channel: Channel, step: Callable[[], None]) -> None:
        try:
            step()
        except ProtocolError as error:
            channel.fail(error)

    # For multicast (netq/mqtt/multicast).

    def _new_groups(self, silence: float) -> Groups:
        return Groups(
            self._members,
            lambda group, block: self.broker.publish(self.topics.group(group), block),
            lambda pause, function: self.loop.at(time.monotonic() + pause, function),
            silence,
        )

    def _new_receiver(self, channel: Channel) -> Receiver:
        return Receiver(
            lambda group: self.broker.subscribe([self.topics.group(group)], partial(self._on_granted, channel, group)),
            lambda group: self.broker.unsubscribe(self.topics.group(group)),
        )

    def _members(self, audience: tuple[uuid.UUID, ...]) -> list[Channel]:
        """Return the channels of these peers that are responsive, past their handshake, and accept full blocks."""
        wanted, responsive = set(audience), [channel for channel in self.channels.values() if channel.responsive]
        return [channel for channel in responsive if channel.link and channel.link.broadcast_peer(self.size) in wanted]

    def _on_granted(self, channel: Channel, group: str, granted: bool) -> None:
        if granted:
            channel.send_control(PacketKind.JOINED, group)
