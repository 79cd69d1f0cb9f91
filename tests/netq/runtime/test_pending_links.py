"""Which links wait for their handshake, and which lose their place. Plain calls, with numbers for the time."""

from __future__ import annotations

import random
from collections import Counter
from typing import cast

import pytest

from netq.runtime.link import Link
from netq.runtime.pending_links import MAX_LINKS, MAX_OF_ORIGIN, MAX_TIME, MIN_TIME, PendingLinks, origin_of


class Fake:
    def __init__(self, address: str) -> None:
        self.address = address


def link(host: str, port: int = 1) -> Link:
    return cast(Link, Fake(f"{host}:{port}"))


def fill(pending: PendingLinks, count: int, host: str, now: float) -> list[Link]:
    links = [link(host, port) for port in range(count)]
    assert [pending.add(one, now) for one in links] == [None] * count
    return links


def test_every_link_finds_a_place_up_to_the_limits() -> None:
    pending = PendingLinks()
    fill(pending, MAX_OF_ORIGIN, "10.0.0.1", 0.0)
    assert not pending.is_full(0.0)
    fill(pending, MAX_LINKS - MAX_OF_ORIGIN, "10.0.0.2", 0.0)
    assert len(pending) == MAX_LINKS
    assert pending.is_full(0.0)


def test_full_room_delays_until_the_oldest_has_had_its_time() -> None:
    pending = PendingLinks()
    first, *_ = fill(pending, MAX_OF_ORIGIN, "10.0.0.1", 0.0)
    fill(pending, MAX_LINKS - MAX_OF_ORIGIN, "10.0.0.2", 0.0)
    assert pending.is_full(MIN_TIME - 0.001)
    assert not pending.is_full(MIN_TIME)
    assert pending.add(link("10.0.0.3"), MIN_TIME) is first, "the oldest of the address that has most"
    assert len(pending) == MAX_LINKS


def test_full_room_drops_a_link_that_comes_all_the_same() -> None:
    pending = PendingLinks()
    fill(pending, MAX_OF_ORIGIN, "10.0.0.1", 0.0)
    fill(pending, MAX_LINKS - MAX_OF_ORIGIN, "10.0.0.2", 0.0)
    newcomer = link("10.0.0.3")
    assert pending.add(newcomer, 0.0) is newcomer
    assert len(pending) == MAX_LINKS


def test_address_with_its_share_replaces_its_own_links() -> None:
    pending = PendingLinks()
    other = link("10.0.0.2")
    assert pending.add(other, 0.0) is None
    first, second, *_ = fill(pending, MAX_OF_ORIGIN, "10.0.0.1", 0.0)
    early = link("10.0.0.1", 1000)
    assert pending.add(early, 0.0) is early, "no link of its address has had its time"
    assert pending.add(link("10.0.0.1", 1001), MIN_TIME) is first
    assert pending.add(link("10.0.0.1", 1002), MIN_TIME) is second
    assert len(pending) == MAX_OF_ORIGIN + 1


def test_links_get_four_times_what_handshakes_take_at_present() -> None:
    pending = PendingLinks()
    for number in range(100):
        finishing = link("10.0.0.3", number)
        pending.add(finishing, 0.0)
        pending.finished(finishing, 0.5)
    first, *_ = fill(pending, MAX_OF_ORIGIN, "10.0.0.1", 0.0)
    early = link("10.0.0.1", 1000)
    assert pending.add(early, 1.9) is early
    assert pending.add(early, 2.0) is first


def test_slow_handshakes_do_not_extend_the_time_without_bound() -> None:
    pending = PendingLinks()
    for number in range(100):
        finishing = link("10.0.0.3", number)
        pending.add(finishing, 0.0)
        pending.finished(finishing, 9.0)
    first, *_ = fill(pending, MAX_OF_ORIGIN, "10.0.0.1", 0.0)
    assert pending.add(link("10.0.0.1", 1000), MAX_TIME) is first


def test_link_that_leaves_frees_its_place() -> None:
    pending = PendingLinks()
    links = fill(pending, MAX_OF_ORIGIN, "10.0.0.1", 0.0)
    pending.finished(links[5], 0.0)
    pending.remove(links[5])
    pending.finished(links[5], 0.0)
    assert pending.add(link("10.0.0.1", 1000), 0.0) is None
    for one in links:
        pending.remove(one)
    assert len(pending) == 1


def test_limits_hold_whatever_comes_and_goes() -> None:
    chance, pending, now = random.Random(1), PendingLinks(), 0.0
    inside: list[Link] = []
    full = 0
    for number in range(3000):
        now += chance.random() / 100
        if inside and chance.random() < 0.3:
            leaver = inside.pop(chance.randrange(len(inside)))
            if chance.random() < 0.5:
                pending.remove(leaver)
            else:
                pending.finished(leaver, now)
        elif pending.is_full(now):
            full += 1
        else:
            inside.append(link(f"10.0.0.{chance.choice([1, 1, 1, 2, chance.randrange(250)])}", number))
            dropped = pending.add(inside[-1], now)
            inside = [one for one in inside if one is not dropped]
        if number % 10 == 0:
            counts = Counter(origin_of(one.address) for one in inside)
            assert len(pending) == len(inside) <= MAX_LINKS
            assert pending._counts == counts
            assert max(counts.values(), default=0) <= MAX_OF_ORIGIN
    assert full > 10


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("10.0.0.1:51966", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6:51966", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2:ffff::6]:51966", "2001:db8:1:2::/64"),
        ("fe80::1%eth0:51966", "fe80::/64"),
        ("127.0.0.1:1883, client 0123456789abcdef", "127.0.0.1:1883, client 0123456789abcdef"),
        ("localhost:51966, process 4711", "localhost:51966, process 4711"),
        ("unix:", "unix:"),
        ("a toy", "a toy"),
        ("::ffff:192.0.2.7:1234", "192.0.2.7"),
    ],
)
def test_origin(address: str, origin: str) -> None:
    assert origin_of(address) == origin
