"""Sequence numbers and credit: gaps, duplicates and excess packets are detected, and no side deadlocks."""

from __future__ import annotations

import random

import pytest

from netq import ProtocolError
from netq.mqtt import packet
from netq.mqtt.packet import Packet, PacketKind
from netq.mqtt.window import MAX_PACKETS, TOTAL_PACKETS, Window, share


def greeted(share: int = 4) -> tuple[Window, Window]:
    near, far = Window(share), Window(share)
    far.receive(unnumbered(near))
    near.receive(unnumbered(far))
    return near, far


def unnumbered(window: Window, kind: PacketKind = PacketKind.ACK) -> Packet:
    return packet.decode(packet.header(kind, *window.stamp()))


def data(window: Window) -> Packet:
    window.send()
    return unnumbered(window, PacketKind.DATA)


def test_window_is_closed_before_credit() -> None:
    assert not Window(8).open
    assert greeted()[0].open


def test_credit_limits_sending_until_packets_are_consumed() -> None:
    near, far = greeted(4)
    for _ in range(4):
        far.receive(data(near))
    assert not near.open
    far.consumed()
    assert not far.ack_due
    far.consumed()
    assert far.ack_due
    near.receive(unnumbered(far))
    assert not far.ack_due
    assert near.open
    far.receive(data(near))
    far.receive(data(near))
    assert not near.open


def test_probe_is_answered_once_all_is_consumed() -> None:
    near, far = greeted(8)
    far.receive(data(near))
    far.receive(unnumbered(near, PacketKind.PROBE))
    assert not far.ack_due, "it would say nothing"
    far.receive(data(near))
    far.consumed()
    assert far.ack_due
    near.receive(unnumbered(far))
    assert near.acked == 1
    assert not far.ack_due
    far.receive(unnumbered(near, PacketKind.PROBE))
    far.consumed()
    assert far.ack_due
    near.receive(unnumbered(far))
    far.receive(unnumbered(near, PacketKind.PROBE))
    assert far.ack_due, "the answer may be lost"


@pytest.mark.parametrize("skipped", [1, 2])
def test_gap_is_detected(skipped: int) -> None:
    near, far = greeted()
    for _ in range(skipped):
        data(near)
    with pytest.raises(ProtocolError, match=f"with number {skipped + 1} came, expected 1"):
        far.receive(data(near))


def test_duplicate_is_detected() -> None:
    near, far = greeted()
    first = data(near)
    far.receive(first)
    with pytest.raises(ProtocolError, match="with number 1 came, expected 2"):
        far.receive(first)


@pytest.mark.parametrize("kind", [PacketKind.ACK, PacketKind.PROBE, PacketKind.CLOSE])
def test_loss_at_the_end_is_detected_by_the_next_packet(kind: PacketKind) -> None:
    near, far = greeted()
    data(near)
    with pytest.raises(ProtocolError, match="with number 1 came, expected 0"):
        far.receive(unnumbered(near, kind))


def test_packet_beyond_the_credit_is_detected() -> None:
    near, far = greeted(2)
    far.receive(data(near))
    far.receive(data(near))
    with pytest.raises(ProtocolError, match="there was room for 2"):
        far.receive(data(near))


@pytest.mark.parametrize("received", [3, 2**64 - 1])
def test_ack_beyond_sent_packets_is_refused(received: int) -> None:
    near, far = greeted()
    near.send()
    near.send()
    with pytest.raises(ProtocolError, match="2 were sent"):
        near.receive(packet.decode(packet.header(PacketKind.ACK, 0, received, 4)))
    far.receive(packet.decode(packet.header(PacketKind.ACK, 0, 0, 4)))


def test_ack_must_not_decrease() -> None:
    near, far = greeted()
    far.receive(data(near))
    far.consumed()
    near.receive(unnumbered(far))
    with pytest.raises(ProtocolError, match="1 acknowledged"):
        near.receive(packet.decode(packet.header(PacketKind.ACK, 0, 0, 4)))


def test_smaller_share_keeps_granted_credit() -> None:
    near, far = greeted(4)
    far.share = 1
    for _ in range(4):
        far.receive(data(near))  # as was granted
        far.consumed()
    near.receive(unnumbered(far))
    far.receive(data(near))
    assert not near.open
    far.send()
    assert not far.open


def test_shares_are_bounded_and_at_least_one() -> None:
    assert [share(n) for n in (0, 1, 32, 33, 100, 10_000)] == [MAX_PACKETS, MAX_PACKETS, MAX_PACKETS, 7, 2, 1]
    assert all(links * share(links) <= TOTAL_PACKETS for links in range(1, TOTAL_PACKETS))


@pytest.mark.parametrize("seed", range(20))
def test_random_traffic_never_deadlocks(seed: int) -> None:
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
            window.receive(came)
            if came.kind is PacketKind.DATA:
                window.consumed()
            if window.ack_due:
                wires[window].append(unnumbered(window))
        assert near.open or far.open or wires[near] or wires[far]
    assert near.sent > 100
