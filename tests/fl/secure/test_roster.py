"""Who shares masks with whom, who keeps shares, and how many of these open a sum."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest

from fl.errors import InvalidUpdate
from fl.secure.roster import Roster, reach
from tests.pages import Page


def roster(clients: int) -> Roster:
    ids = [f"client {number}" for number in range(clients)]
    return Roster({each: os.urandom(32) for each in ids}, {each: os.urandom(32) for each in ids})


def test_the_table_of_small_federations() -> None:
    rows = Page("docs/explanation/secure-aggregation.md").rows("clients", "open a sum")
    assert len(rows) == 9
    for row in rows:
        clients, threshold, lost, liars = map(int, row)
        found = roster(clients)
        assert sorted(found.committee) == sorted(found.order)
        assert (found.threshold, clients - found.threshold) == (threshold, lost)
        assert 2 * threshold == clients + liars + 1  # two sets of survivors would need 2 t vouchers
        assert found.tolerated_liars == liars
        assert found.assumed_liars in (liars, liars - 1)


@pytest.mark.parametrize("clients", range(3, 46))
def test_two_sets_of_survivors_cannot_both_have_enough_vouchers(clients: int) -> None:
    liars = max(1, (clients - 1) // 3)
    honest = clients - liars
    assert 2 * roster(clients).threshold > honest + 2 * liars


def test_of_many_clients_45_keep_shares_and_34_open_a_sum() -> None:
    found = roster(1000)
    assert (len(found.committee), found.threshold) == (45, 34)
    assert _at_most(1000, 100, 45, 22) > 1 - 2**-40  # liars among them, up to which two sets cannot both be opened
    assert 2 * 34 > 45 + 22
    assert [roster(each).tolerated_liars for each in (46, 220, 1000)] == [22, 22, 100]
    assert _at_most(1000, 100, 45, 45 - 34) > 1 - 2**-8  # lost ones, up to which there are 34


def _at_most(clients: int, marked: int, drawn: int, most: int) -> float:
    """Return the probability that at most so many of those drawn are marked."""
    ways = [math.comb(marked, each) * math.comb(clients - marked, drawn - each) for each in range(most + 1)]
    return sum(ways) / math.comb(clients, drawn)


@pytest.mark.parametrize("clients", [58, 61, 100, 1000])
def test_neighbours_are_mutual_and_next_to_each_other(clients: int) -> None:
    found = roster(clients)
    count = 2 * reach(clients)
    for at, client in enumerate(found.order):
        near = found.neighbours(client)
        assert len(near) == len(set(near)) == count
        assert client not in near
        assert near == found.picked(near)
        if not found.is_complete:
            assert found.order[(at + 1) % clients] in near
            assert found.order[(at - count // 2) % clients] in near
        assert all(client in found.neighbours(each) for each in near[:3])


@pytest.mark.parametrize("clients", [2, 3, 10, 57])
def test_in_a_small_federation_each_two_share_a_mask(clients: int) -> None:
    found = roster(clients)
    assert found.is_complete
    assert all(len(found.neighbours(each)) == clients - 1 for each in found.order)


def test_peers_are_neighbours_and_keepers_both_ways() -> None:
    found = roster(200)
    for client in found.order[:3] + found.order[100:103]:
        peers = found.peers(client)
        assert set(found.neighbours(client)) | (set(found.committee) - {client}) <= set(peers)
        assert all(client in found.peers(each) for each in peers)


def test_the_order_depends_on_all_keys_and_nonces() -> None:
    prints, nonces = ({f"client {number}": os.urandom(32) for number in range(50)} for _ in range(2))
    one = Roster(prints, nonces)
    assert Roster(dict(reversed(prints.items())), dict(reversed(nonces.items()))).order == one.order
    other = {"client 7": os.urandom(32)}
    for found in (Roster({**prints, **other}, nonces), Roster(prints, {**nonces, **other})):
        assert found.order != one.order
        assert found.hash != one.hash


def test_a_round_asks_nearly_all_of_its_session() -> None:
    found = roster(10)
    assert found.serves(found.order[1:])
    assert not found.serves(found.order[2:])


@pytest.mark.parametrize("clients", [3, 10, 45, 100, 1000])
def test_a_sum_is_opened_of_the_same_part_as_of_the_keepers(clients: int) -> None:
    found = roster(clients)
    assert found.least == -(-clients * found.threshold // len(found.committee))
    lost = clients - found.least
    some = found.order[:: max(1, clients // lost)][:lost] if lost else []
    present = [each for each in found.order if each not in some]
    assert found.opens(present)
    assert not found.opens(present[1:])


def test_a_client_without_half_of_its_neighbours_on_one_side_is_alone() -> None:
    """What would be left of its masks are those with clients that may be in league with the server."""
    found, half = roster(200), (reach(200) - 1) // 2
    for at in (0, 7, 199):
        after = [found.order[(at + step) % 200] for step in range(1, reach(200) + 1)]
        assert found.opens([each for each in found.order if each not in after[:half]])
        assert not found.opens([each for each in found.order if each not in after[: half + 1]])


@pytest.mark.parametrize("clients", [100, 1000, 10_000])
def test_liars_on_one_side_of_a_place_are_few(clients: int) -> None:
    """One in a million sessions has such a place, and it takes two."""
    each, count = reach(clients), 0.0
    for liars in range(each // 2 + 1, each + 1):
        count += clients * math.comb(each, liars) * 0.1**liars * 0.9 ** (each - liars)
    assert count <= 2**-20


@pytest.mark.parametrize(
    "prints", [{}, {"a": bytes(32)}, {"a": bytes(32), "b": bytes(31)}, {"a": bytes(32), 3: bytes(32)}]
)
def test_what_is_no_session_is_refused(prints: Any) -> None:
    with pytest.raises(InvalidUpdate, match="not ids, each with a fingerprint"):
        Roster(prints, dict.fromkeys(prints, bytes(32)))


@pytest.mark.parametrize("nonces", [{}, {"a": bytes(32), "b": bytes(31)}, {"a": bytes(32), "c": bytes(32)}])
def test_what_is_no_nonce_of_each_client_is_refused(nonces: Any) -> None:
    with pytest.raises(InvalidUpdate, match="not ids, each with a fingerprint and a nonce"):
        Roster({"a": bytes(32), "b": bytes(32)}, nonces)
