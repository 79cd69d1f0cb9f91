"""Counting packets: a gap, a repeat and a flood are found, and nobody waits for an acknowledgement for ever."""

from __future__ import annotations

import random

import pytest

from netq import ProtocolError
from netq.mqtt import packet
from netq.mqtt.packet import Kind, Packet
from netq.mqtt.window import MOST, TOGETHER, Window, share


def greeted(share: int = 4) -> tuple[Window, Window]:
    near, far = Window(share), Window(share)
    far.arrived(unnumbered(near))
    near.arrived(unnumbered(far))
    return near, far


def unnumbered(window: Window, kind: Kind = Kind.ACK) -> Packet:
    return packet.decode(packet.header(kind, *window.stamp()))


def data(window: Window) -> Packet:
    window.send()
    return unnumbered(window, Kind.DATA)


def test_a_window_is_shut_until_the_peer_has_granted_room() -> None:
    assert not Window(8).open
    assert greeted()[0].open


def test_as_many_as_were_granted_may_be_sent_and_more_once_they_are_used() -> None:
    near, far = greeted(4)
    for _ in range(4):
        far.arrived(data(near))
    assert not near.open
    far.used()
    assert not far.ack_due
    far.used()
    assert far.ack_due
    near.arrived(unnumbered(far))
    assert not far.ack_due
    assert near.open
    far.arrived(data(near))
    far.arrived(data(near))
    assert not near.open


def test_what_is_asked_for_is_acknowledged_once_when_it_is_used_up() -> None:
    near, far = greeted(8)
    far.arrived(data(near))
    far.arrived(unnumbered(near, Kind.PROBE))
    assert not far.ack_due, "it would say nothing"
    far.arrived(data(near))
    far.used()
    assert far.ack_due
    near.arrived(unnumbered(far))
    assert near.acked == 1
    assert not far.ack_due
    far.arrived(unnumbered(near, Kind.PROBE))
    far.used()
    assert far.ack_due
    near.arrived(unnumbered(far))
    far.arrived(unnumbered(near, Kind.PROBE))
    assert far.ack_due, "the answer may be lost"


@pytest.mark.parametrize("skipped", [1, 2])
def test_a_gap_is_found(skipped: int) -> None:
    near, far = greeted()
    for _ in range(skipped):
        data(near)
    with pytest.raises(ProtocolError, match=f"with number {skipped + 1} came, expected 1"):
        far.arrived(data(near))


def test_a_repeat_is_found() -> None:
    near, far = greeted()
    first = data(near)
    far.arrived(first)
    with pytest.raises(ProtocolError, match="with number 1 came, expected 2"):
        far.arrived(first)


@pytest.mark.parametrize("kind", [Kind.ACK, Kind.PROBE, Kind.CLOSE])
def test_a_loss_at_the_end_is_found_by_what_comes_next(kind: Kind) -> None:
    near, far = greeted()
    data(near)
    with pytest.raises(ProtocolError, match="with number 1 came, expected 0"):
        far.arrived(unnumbered(near, kind))


def test_a_flood_is_found() -> None:
    near, far = greeted(2)
    far.arrived(data(near))
    far.arrived(data(near))
    with pytest.raises(ProtocolError, match="there was room for 2"):
        far.arrived(data(near))


@pytest.mark.parametrize("received", [3, 2**64 - 1])
def test_nobody_has_received_what_was_not_sent(received: int) -> None:
    near, far = greeted()
    near.send()
    near.send()
    with pytest.raises(ProtocolError, match="2 were sent"):
        near.arrived(packet.decode(packet.header(Kind.ACK, 0, received, 4)))
    far.arrived(packet.decode(packet.header(Kind.ACK, 0, 0, 4)))


def test_an_acknowledgement_is_not_taken_back() -> None:
    near, far = greeted()
    far.arrived(data(near))
    far.used()
    near.arrived(unnumbered(far))
    with pytest.raises(ProtocolError, match="1 acknowledged"):
        near.arrived(packet.decode(packet.header(Kind.ACK, 0, 0, 4)))


def test_a_smaller_share_counts_for_both_directions_and_takes_back_nothing() -> None:
    near, far = greeted(4)
    far.share = 1
    for _ in range(4):
        far.arrived(data(near))  # as was granted
        far.used()
    near.arrived(unnumbered(far))
    far.arrived(data(near))
    assert not near.open
    far.send()
    assert not far.open


def test_shares_are_never_more_than_the_broker_bears_nor_nothing() -> None:
    assert [share(n) for n in (0, 1, 32, 33, 100, 10_000)] == [MOST, MOST, MOST, 7, 2, 1]
    assert all(links * share(links) <= TOGETHER for links in range(1, TOGETHER))


@pytest.mark.parametrize("seed", range(20))
def test_two_that_send_what_they_may_never_come_to_a_standstill(seed: int) -> None:
    chance = random.Random(seed)
    near, far = greeted(chance.randint(1, 8))
    wires: dict[Window, list[Packet]] = {near: [], far: []}
    other = {near: far, far: near}
    for _ in range(2000):
        window = chance.choice([near, far])
        if chance.random() < 0.5:
            if window.open:
                wires[window].append(data(window))
        elif wires[other[window]]:
            came = wires[other[window]].pop(0)
            window.arrived(came)
            if came.kind is Kind.DATA:
                window.used()
            if window.ack_due:
                wires[window].append(unnumbered(window))
        assert near.open or far.open or wires[near] or wires[far]
    assert near.sent > 100
