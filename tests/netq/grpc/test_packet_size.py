"""A packet is what the stream takes in some 20 ms."""

from __future__ import annotations

from netq.grpc.packet_size import LEAST, MOST, PERIOD, PacketSize


def test_it_begins_small_and_doubles_while_full_packets_are_fast() -> None:
    pace = PacketSize()
    sizes = []
    while pace.packet < MOST:
        sizes.append(pace.packet)
        pace.wrote(pace.packet, 0.001)
    assert sizes == [LEAST << n for n in range(len(sizes))]
    pace.wrote(MOST, 0.001)
    assert pace.packet == MOST


def test_small_packets_say_nothing_of_how_fast_large_ones_would_be() -> None:
    pace = PacketSize()
    for _ in range(100):
        pace.wrote(24, 0.0001)
    assert pace.packet == LEAST


def test_it_shrinks_to_the_rate_of_a_slow_stream_and_no_further_than_the_least() -> None:
    pace = PacketSize()
    for _ in range(10):
        pace.wrote(pace.packet, 0.001)
    pace.wrote(MOST, 0.2)
    assert pace.packet == MOST * PERIOD / 0.2 // 1
    pace.wrote(pace.packet, 60.0)
    assert pace.packet == LEAST


def test_at_its_rate_it_stays() -> None:
    pace = PacketSize()
    pace.wrote(pace.packet, 0.001)
    packet = pace.packet
    pace.wrote(packet, 0.75 * PERIOD)
    assert pace.packet == packet
