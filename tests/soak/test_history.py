"""The checker finds each kind of violation in histories made by hand: only then a run without violations means much."""

from __future__ import annotations

import random

import pytest

from tests.soak import content
from tests.soak.history import Event, Key, What, Wrong, check, read

PUT, ACKED, FAILED, CANCELLED, DELIVERED = What
LARGE = 100_000


def key(number: int, *, client: int = 1, life: int = 0, way: str = "up", lane: int = 0) -> Key:
    return Key(client, life, way, lane, number)


def story(*events: tuple[What, Key]) -> list[Event]:
    return [Event(time, what, key, 10 if what in (PUT, DELIVERED) else 0) for time, (what, key) in enumerate(events)]


def found(events: list[Event]) -> list[tuple[Wrong, Key]]:
    return [(violation.wrong, violation.key) for violation in check(events)]


def whole(number: int) -> list[tuple[What, Key]]:
    return [(PUT, key(number)), (DELIVERED, key(number)), (ACKED, key(number))]


def test_valid_history_has_no_violation() -> None:
    events = story(
        *whole(1),
        *[(PUT, key(2)), (FAILED, key(2))],  # never delivered
        *[(PUT, key(3)), (FAILED, key(3)), (DELIVERED, key(3))],  # or delivered once: both are allowed
        *[(PUT, key(4)), (CANCELLED, key(4))],
        *[(PUT, key(5)), (PUT, key(6)), (DELIVERED, key(5)), (ACKED, key(6)), (ACKED, key(5)), (DELIVERED, key(6))],
    )
    assert found(events) == []


def test_acknowledged_message_without_delivery_is_lost() -> None:
    assert found(story((PUT, key(1)), (ACKED, key(1)), *whole(2))) == [(Wrong.LOST, key(1))]


@pytest.mark.parametrize("settled", [[], [(ACKED, key(1))], [(FAILED, key(1))]])
def test_second_delivery_is_found(settled: list[tuple[What, Key]]) -> None:
    events = story((PUT, key(1)), (DELIVERED, key(1)), *settled, *whole(2), (DELIVERED, key(1)))
    assert (Wrong.DUPLICATED, key(1)) in found(events)
    assert Wrong.DISORDERED not in dict(found(events))


def test_wrong_order_in_a_lane_is_found() -> None:
    first, second = (DELIVERED, key(1)), (DELIVERED, key(2))
    settled = [(ACKED, key(1)), (ACKED, key(2))]
    puts = [(PUT, key(1)), (PUT, key(2))]
    assert found(story(*puts, second, first, *settled)) == [(Wrong.DISORDERED, key(1))]
    assert found(story(*puts, first, second, *settled)) == []


@pytest.mark.parametrize("other", [{"lane": 1}, {"way": "down"}, {"life": 1}, {"client": 2}])
def test_order_holds_within_one_lane_only(other: dict[str, int | str]) -> None:
    early = key(1, **other)  # type: ignore[arg-type]
    events = [(PUT, early), (PUT, key(1)), (PUT, key(2)), (DELIVERED, key(1)), (DELIVERED, key(2)), (DELIVERED, early)]
    assert found(story(*events, *[(ACKED, each) for each in (early, key(1), key(2))])) == []


def test_delivery_after_cancel_is_found() -> None:
    assert found(story((PUT, key(1)), (CANCELLED, key(1)), (DELIVERED, key(1)))) == [(Wrong.RESURRECTED, key(1))]
    assert found(story((PUT, key(1)), (DELIVERED, key(1)), (CANCELLED, key(1)))) == [(Wrong.RESURRECTED, key(1))]


@pytest.mark.parametrize("what", [ACKED, FAILED, CANCELLED, DELIVERED])
def test_message_that_was_never_put_is_found(what: What) -> None:
    assert found(story(*whole(1), (what, key(2)))) == [(Wrong.INVENTED, key(2))]


def test_unfinished_future_is_found() -> None:
    assert found(story((PUT, key(1)), *whole(2))) == [(Wrong.HANGING, key(1))]
    assert found(story((PUT, key(1)), (DELIVERED, key(1)))) == [(Wrong.HANGING, key(1))]


@pytest.mark.parametrize("delivered", [[], [(DELIVERED, key(1))]])
def test_future_done_twice_is_found(delivered: list[tuple[What, Key]]) -> None:
    events = story((PUT, key(1)), *delivered, (FAILED, key(1)), (FAILED, key(1)))
    assert found(events) == [(Wrong.DONE_TWICE, key(1))]
    assert found(story(*whole(1), (ACKED, key(1)))) == [(Wrong.DONE_TWICE, key(1))]


@pytest.mark.parametrize(("size", "note"), [(9, ""), (10, "other bytes than were put")])
def test_damaged_message_is_found(size: int, note: str) -> None:
    events = [Event(0, PUT, key(1), 10), Event(1, DELIVERED, key(1), size, note), Event(2, ACKED, key(1))]
    assert found(events) == [(Wrong.DAMAGED, key(1))]


def test_violation_has_all_events_of_its_message() -> None:
    events = [Event(0.5, PUT, key(7), 10), Event(1.25, FAILED, key(7), note="1: it began anew")]
    events += [Event(2, DELIVERED, key(7), 10), Event(3, DELIVERED, key(7), 10)]
    assert str(check(events)[0]) == (
        "duplicated: client 1 life 0 way up lane 0 number 7: "
        "10 bytes, put 0.500, failed 1.250 (1: it began anew), delivered 2.000, delivered 3.000"
    )


def test_events_are_read_back_and_other_lines_skipped() -> None:
    events = [Event(1.5, PUT, key(1, way="down"), 10), Event(2.25, FAILED, key(1, way="down"), 0, "why")]
    lines = [event.line() for event in events]
    lines.insert(1, '{"time": 2.0, "what": "fault", "text": "begin cut of client 1"}')
    assert list(read(lines)) == events


@pytest.mark.parametrize("size", [1, 100, LARGE])
def test_content_of_a_message_is_checked(size: int) -> None:
    (fields, data) = content.message(key(1), size)
    assert content.judge((fields, bytes(data))) == (key(1), size, "")
    assert content.judge((fields, bytes(data)[:-1] + bytes([bytes(data)[-1] ^ 1])))[2]
    assert size == 1 or content.judge((fields, bytes(content.message(key(2), size)[1])))[2]


def test_most_sizes_are_small_and_all_are_in_range() -> None:
    rng = random.Random(1)
    sizes = sorted(content.size(rng) for _ in range(100_000))
    assert sizes[0] == 1
    assert sizes[len(sizes) // 2] < 1024
    assert 0.9 * content.LARGEST < sizes[-1] <= content.LARGEST
