"""The size of packets follows the bytes that a stream takes in 20 ms."""

from __future__ import annotations

from netq.grpc.packet_size import LEAST, MOST, PERIOD, PacketSize


def test_size_doubles_while_full_packets_are_fast() -> None:
    size = PacketSize()
    sizes = []
    while size.size < MOST:
        sizes.append(size.size)
        size.measured(size.size, 0.001)
    assert sizes == [LEAST << n for n in range(len(sizes))]
    size.measured(MOST, 0.001)
    assert size.size == MOST


def test_small_packets_do_not_raise_the_size() -> None:
    size = PacketSize()
    for _ in range(100):
        size.measured(24, 0.0001)
    assert size.size == LEAST


def test_size_shrinks_to_the_rate_of_a_slow_stream() -> None:
    size = PacketSize()
    for _ in range(10):
        size.measured(size.size, 0.001)
    size.measured(MOST, 0.2)
    assert size.size == MOST * PERIOD / 0.2 // 1
    size.measured(size.size, 60.0)
    assert size.size == LEAST


def test_size_stays_at_the_rate_of_the_stream() -> None:
    size = PacketSize()
    size.measured(size.size, 0.001)
    steady = size.size
    size.measured(steady, 0.75 * PERIOD)
    assert size.size == steady
