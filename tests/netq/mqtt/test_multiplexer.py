"""What links share, by plain calls: guesses of a broker's limit, and room for those who have not greeted."""

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
from netq.mqtt.link import Link
from netq.mqtt.multiplexer import _GREETING, _IN_VAIN, _STRANGERS, Multiplexer, MultiplexerListener
from netq.mqtt.packet import Kind
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


def made(*, is_server: bool) -> Multiplexer:
    listener, loop = SimpleNamespace(options=CommunicatorOptions()), SimpleNamespace(call=lambda *_: None)
    host = cast(MultiplexerListener, SimpleNamespace(up=lambda: None))
    made = Multiplexer(cast(LinkListener, listener), cast(Loop, loop), host, is_server=is_server)
    made.broker = cast(Broker, SimpleNamespace(publish=lambda *_: None))
    return made


def knocked(place: Multiplexer, client: str = "") -> Channel:
    return place.new_port(LinkTopic("s", client or new_id(), new_id()))


def send(port: Channel, size: int) -> None:
    port.pace.sent(1, size)


def reset(place: Multiplexer, port: Channel) -> None:
    place.packet_came(port.way, packet.decode(packet.header(Kind.RESET, 0, 0, 0)))


def lose(place: Multiplexer, size: int, times: int = 1) -> None:
    """Lose so many links, one after the other, each with such a packet on its way."""
    for _ in range(times):
        port = knocked(place)
        send(port, size)
        reset(place, port)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("is_server", [True, False])
def test_packets_get_smaller_when_links_are_lost_with_them_in_a_row(is_server: bool, log: LogRecorder) -> None:
    place = made(is_server=is_server)
    lose(place, 64 * KIB, _IN_VAIN - 1)
    assert place.size == WHOLE
    lose(place, 64 * KIB)
    assert place.size == 32 * KIB
    lose(place, 32 * KIB, _IN_VAIN)
    assert place.size == 16 * KIB
    assert len(log.having("do not arrive, now smaller ones; perhaps", logging.WARNING)) == 1


@pytest.mark.usefixtures("clock")
def test_that_large_ones_arrived_before_is_no_excuse_and_that_they_arrive_now_is_one() -> None:
    place = made(is_server=False)
    place.proved(WHOLE)
    lose(place, WHOLE, _IN_VAIN - 1)
    place.proved(WHOLE)
    lose(place, WHOLE, _IN_VAIN - 1)
    assert place.size == WHOLE
    lose(place, WHOLE)
    assert place.size == WHOLE // 2


@pytest.mark.usefixtures("clock")
def test_links_that_are_lost_together_count_as_one() -> None:
    place = made(is_server=True)
    ports = [knocked(place) for _ in range(100)]
    for port in ports:
        send(port, WHOLE)
    for port in ports:
        reset(place, port)
    assert place.size == WHOLE


@pytest.mark.usefixtures("clock")
def test_small_packets_that_are_lost_are_not_too_large() -> None:
    place = made(is_server=False)
    lose(place, 4 * KIB, 10)
    assert place.size == WHOLE


@pytest.mark.usefixtures("clock")
def test_a_new_connection_to_the_broker_begins_without_a_guess() -> None:
    place = made(is_server=False)
    lose(place, WHOLE, _IN_VAIN - 1)
    place.up(2**28)
    lose(place, WHOLE, _IN_VAIN - 1)
    assert place.size == WHOLE


@pytest.mark.usefixtures("clock")
def test_the_next_link_of_a_client_that_got_nothing_through_begins_with_less() -> None:
    place = made(is_server=True)
    port = knocked(place, "a" * 16)
    send(port, port.pace.size)
    port.fail(TimeoutError("nothing heard"))
    assert [knocked(place, name * 16).pace.size for name in "ab"] == [4 * KIB, 16 * KIB]


def test_a_crowd_that_knocks_waits_until_those_before_have_had_their_time(clock: Clock) -> None:
    place = made(is_server=True)
    ports = []
    for _ in range(_STRANGERS):
        assert place.make_room(new_id())
        ports.append(knocked(place))
    assert not place.make_room(new_id())
    assert not any(port.gone for port in ports)
    clock.now += _GREETING
    assert place.make_room(new_id())
    assert [port.gone for port in ports[:3]] == [True, False, False]


@pytest.mark.usefixtures("clock")
def test_who_has_greeted_makes_room_at_once() -> None:
    place = made(is_server=True)
    ports = [knocked(place) for _ in range(_STRANGERS)]
    ports[0].link = cast(Link, SimpleNamespace(connection=SimpleNamespace(open=True)))
    assert place.make_room(new_id())
    assert not any(port.gone for port in ports)


@pytest.mark.usefixtures("clock")
def test_a_client_that_knocks_again_before_it_greeted_has_one_link() -> None:
    place = made(is_server=True)
    port = knocked(place, "a" * 16)
    assert place.make_room("a" * 16)
    assert port.gone
    assert not place.ports
