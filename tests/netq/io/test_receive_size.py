"""How much a link takes from its socket at once."""

from __future__ import annotations

from netq.io.receive_size import MAX_READ, MIN_READ, READ_BUDGET, TURN_BUDGET, ReceiveSize


def test_costly_bytes_are_read_in_small_pieces_for_a_short_turn() -> None:
    receive_size, seconds_a_byte = ReceiveSize(), 1e-7  # PINGs: 2.4 µs each
    for _ in range(20):
        receive_size.record(receive_size.size, receive_size.size * seconds_a_byte)
    assert READ_BUDGET / 4 <= receive_size.size * seconds_a_byte <= READ_BUDGET
    assert receive_size.turn_budget == READ_BUDGET


def test_cheap_bytes_are_read_in_large_pieces_for_a_long_turn() -> None:
    receive_size = ReceiveSize()
    for _ in range(20):
        receive_size.record(receive_size.size, receive_size.size * 1e-10)
    assert (receive_size.size, receive_size.turn_budget) == (MAX_READ, TURN_BUDGET)
    receive_size.record(1000, 2 * READ_BUDGET)  # one read was costly
    for _ in range(20):
        receive_size.record(receive_size.size, receive_size.size * 1e-10)
    assert (receive_size.size, receive_size.turn_budget) == (MAX_READ, TURN_BUDGET)


def test_the_size_has_a_minimum_and_grows_only_by_full_reads() -> None:
    receive_size = ReceiveSize()
    for _ in range(20):
        receive_size.record(24, 1.0)
    assert receive_size.size == MIN_READ
    for _ in range(20):
        receive_size.record(24, 0.0)
    assert receive_size.size == MIN_READ
