"""The state that links share: suspected size limits of a broker, and admission of new links."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import cast

import pytest

from netq import CommunicatorOptions
from netq.io.loop import Loop
from netq.mqtt import packet
from netq.mqtt.broker import Broker
from netq.mqtt.channel import Channel
from netq.mqtt.multiplexer import _MAX_SUSPICIOUS, Multiplexer, MultiplexerListener
from netq.mqtt.packet import PacketKind
from netq.mqtt.topic import LinkTopic, new_id
from netq.runtime.link import LinkListener
from netq.testing.log import LogRecorder

KIB = 1024
WHOLE = 256 * KIB


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("netq.mqtt.multiplexer", "netq.mqtt.channel"):
        monkeypatch.setattr(f"{module}.time", clock)
    return clock


def new_multiplexer(*, is_server: bool) -> Multiplexer:
    listener = SimpleNamespace(options=CommunicatorOptions(), has_room=lambda: True)
    loop = SimpleNamespace(call=lambda *_: None)
    host = cast(MultiplexerListener, SimpleNamespace(up=lambda: None))
    new_multiplexer = Multiplexer(cast(LinkListener, listener), cast(Loop, loop), host, is_server=is_server)
    new_multiplexer.broker = cast(Broker, SimpleNamespace(publish=lambda *_: None, address="broker:1883"))
    return new_multiplexer


def new_channel(multiplexer: Multiplexer, client: str = "") -> Channel:
    return multiplexer.new_channel(LinkTopic("s", client or new_id(), new_id()))


def send(channel: Channel, size: int) -> None:
    channel.congestion.sent(1, size)


def reset(multiplexer: Multiplexer, channel: Channel) -> None:
    multiplexer.dispatch(channel.link_topic, packet.decode(packet.header(PacketKind.RESET, 0, 0, 0)))


def lose(multiplexer: Multiplexer, size: int, times: int = 1) -> None:
    """Lose `times` links one after the other, each with a packet of `size` bytes in flight."""
    for _ in range(times):
        channel = new_channel(multiplexer)
        send(channel, size)
        reset(multiplexer, channel)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("is_server", [True, False])
def test_repeated_losses_shrink_packets(is_server: bool, log: LogRecorder) -> None:
    multiplexer = new_multiplexer(is_server=is_server)
    lose(multiplexer, 64 * KIB, _MAX_SUSPICIOUS - 1)
    assert multiplexer.size == WHOLE
    lose(multiplexer, 64 * KIB)
    assert multiplexer.size == 32 * KIB
    lose(multiplexer, 32 * KIB, _MAX_SUSPICIOUS)
    assert multiplexer.size == 16 * KIB
    assert len(log.having("do not arrive, now smaller ones; perhaps", logging.WARNING)) == 1


@pytest.mark.usefixtures("clock")
def test_arrival_between_losses_clears_the_suspicion() -> None:
    multiplexer = new_multiplexer(is_server=False)
    multiplexer.record_arrival(WHOLE)
    lose(multiplexer, WHOLE, _MAX_SUSPICIOUS - 1)
    multiplexer.record_arrival(WHOLE)
    lose(multiplexer, WHOLE, _MAX_SUSPICIOUS - 1)
    assert multiplexer.size == WHOLE
    lose(multiplexer, WHOLE)
    assert multiplexer.size == WHOLE // 2


@pytest.mark.usefixtures("clock")
def test_simultaneous_losses_count_once() -> None:
    multiplexer = new_multiplexer(is_server=True)
    channels = [new_channel(multiplexer) for _ in range(100)]
    for channel in channels:
        send(channel, WHOLE)
    for channel in channels:
        reset(multiplexer, channel)
    assert multiplexer.size == WHOLE


@pytest.mark.usefixtures("clock")
def test_losses_of_small_packets_do_not_count() -> None:
    multiplexer = new_multiplexer(is_server=False)
    lose(multiplexer, 4 * KIB, 10)
    assert multiplexer.size == WHOLE


@pytest.mark.usefixtures("clock")
def test_new_broker_connection_resets_the_suspicion() -> None:
    multiplexer = new_multiplexer(is_server=False)
    lose(multiplexer, WHOLE, _MAX_SUSPICIOUS - 1)
    multiplexer.up(2**28)
    lose(multiplexer, WHOLE, _MAX_SUSPICIOUS - 1)
    assert multiplexer.size == WHOLE


@pytest.mark.usefixtures("clock")
def test_failed_link_makes_the_next_start_smaller() -> None:
    multiplexer = new_multiplexer(is_server=True)
    channel = new_channel(multiplexer, "a" * 16)
    send(channel, channel.congestion.size)
    channel.fail(TimeoutError("nothing heard"))
    assert [new_channel(multiplexer, name * 16).congestion.size for name in "ab"] == [4 * KIB, 16 * KIB]


@pytest.mark.usefixtures("clock")
def test_client_is_admitted_while_there_is_room() -> None:
    multiplexer = new_multiplexer(is_server=True)
    channel = new_channel(multiplexer, "a" * 16)
    room = iter([False, True])
    multiplexer._listener.has_room = lambda: next(room)  # type: ignore[method-assign]
    assert [multiplexer.admit("b" * 16) for _ in range(2)] == [False, True]
    assert not channel.closed


@pytest.mark.usefixtures("clock")
def test_repeated_open_replaces_the_ungreeted_link() -> None:
    multiplexer = new_multiplexer(is_server=True)
    channel = new_channel(multiplexer, "a" * 16)
    assert multiplexer.admit("a" * 16)
    assert channel.closed
    assert not multiplexer.channels
