"""Secrets of pairs: both sides make the same, a swapped box shows, and a round's keys lead to none before."""

from __future__ import annotations

from typing import Any

import pytest

from fl.errors import InvalidUpdate
from fl.secure import pairs
from fl.secure.pairs import BOX, KEY, Entry, Ratchet, Sealing, derive


def talk(*clients: str) -> dict[str, Sealing]:
    return {each: Sealing("session", each) for each in clients}


def boxes(sealings: dict[str, Sealing]) -> dict[str, dict[str, bytes]]:
    """Return what each has sealed, by sender and receiver."""
    entries = [Entry(each, sealing.key, bytes(32)) for each, sealing in sealings.items()]
    found = {}
    for each, sealing in sealings.items():
        others = [entry for entry in entries if entry.client != each]
        found[each] = dict(zip([other.client for other in others], sealing.boxes(others, b"roster"), strict=True))
    return found


def test_both_sides_of_each_pair_have_one_key() -> None:
    sealings = talk("a", "b", "c")
    sent = boxes(sealings)
    assert {len(box) for each in sent.values() for box in each.values()} == {BOX}
    assert {len(each.key) for each in sealings.values()} == {KEY}
    keys = {each: sealings[each].open({other: sent[other][each] for other in sent if other != each}) for each in sent}
    assert keys["a"]["b"] == keys["b"]["a"]
    assert len({keys["a"]["b"], keys["a"]["c"], keys["b"]["c"]}) == 3


def test_a_box_for_another_client_is_refused() -> None:
    sealings = talk("a", "b", "c")
    sent = boxes(sealings)
    assert list(sealings["a"].open({"b": sent["b"]["c"], "c": sent["c"]["a"]})) == ["c"]


def test_a_box_of_another_session_is_refused() -> None:
    sealings = talk("a", "b")
    boxes(sealings)
    other = Sealing("another session", "b")
    [box] = other.boxes([Entry("a", sealings["a"].key, bytes(32))], b"roster")
    assert sealings["a"].open({"b": box}) == {}


def test_a_secret_that_the_server_has_put_in_gives_unequal_keys() -> None:
    """It knows a's public key, and may seal what it likes in b's name; it does not know what a has sealed for b."""
    sealings = talk("a", "b")
    sent = boxes(sealings)
    server = Sealing("session", "b")
    [forged] = server.boxes([Entry("a", sealings["a"].key, bytes(32))], b"roster")
    assert sealings["a"].open({"b": forged})["b"] != sealings["b"].open({"a": sent["a"]["b"]})["a"]


LOW = Sealing("session", "a").key[:-32] + bytes(32)  # of X25519: a point of low order


@pytest.mark.parametrize("key", [b"", bytes(KEY - 1), bytes(KEY + 1), b"\xff" * KEY, LOW])
def test_a_key_that_cannot_be_used_is_refused(key: bytes) -> None:
    with pytest.raises(InvalidUpdate, match="key"):
        Entry("a", key, bytes(32)).check(tries=True)


@pytest.mark.parametrize(
    "change",
    [
        {"key": 3},
        {"key": "text"},
        {"chain": [10**9]},
        {"chain": [b""] * 9},
        {"signature": bytes(10**5)},
        {"commitment": b""},
    ],
)
def test_an_entry_of_other_types_or_sizes_is_refused(change: Any) -> None:
    with pytest.raises(InvalidUpdate, match="bytes"):
        Entry("a", Sealing("session", "a").key, bytes(32))._replace(**change).check(tries=False)


def test_both_sides_have_the_same_keys_in_each_round_also_after_rounds_without_one() -> None:
    one, other = Ratchet({"b": bytes(32)}), Ratchet({"a": bytes(32)})
    found = [one.at(number)["b"] for number in (1, 2, 5)]
    assert [other.at(number)["a"] for number in (1, 5)] == [found[0], found[2]]
    assert len(set(found)) == 3


@pytest.mark.parametrize("number", [3, 2, 1, 0, -1])
def test_a_round_that_has_been_is_refused(number: int) -> None:
    ratchet = Ratchet({"b": bytes(32)})
    ratchet.at(3)
    with pytest.raises(InvalidUpdate, match="has been asked for"):
        ratchet.at(number)


def test_a_round_far_ahead_is_refused() -> None:
    ratchet = Ratchet({"b": bytes(32)})
    with pytest.raises(InvalidUpdate, match="too far ahead"):
        ratchet.at(2**40)
    assert ratchet.at(1)  # and nothing has changed


def test_the_state_after_a_round_leads_to_no_key_before() -> None:
    """All that a ratchet holds, and all that follows from it by derivation, is compared with the earlier keys."""
    ratchet = Ratchet({"b": bytes(range(32))})
    before = [ratchet.at(1)["b"], ratchet.at(2)["b"]]
    held = [bytes(key) for key in _held(ratchet)]
    derived = set(held)
    for key in held:
        for _ in range(50):
            derived |= {derive(key, b"round"), derive(key, b"mask"), derive(key, b"packet")}
            key = derive(key, b"next")
            derived.add(key)
    assert not derived & set(before)
    assert ratchet.at(3)["b"] in derived  # the comparison finds what does follow


def _held(value: Any) -> list[Any]:
    if isinstance(value, bytes | bytearray):
        return [value]
    if isinstance(value, dict):
        return [found for each in value.values() for found in _held(each)]
    return [found for each in vars(value).values() for found in _held(each)] if hasattr(value, "__dict__") else []


def test_derived_keys_are_those_of_rfc_5869() -> None:
    """HKDF of `cryptography` gives the same."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    key = bytes(range(32))
    expected = HKDF(hashes.SHA256(), 32, None, b"netq secure\0mask\0terms").derive(key)
    assert pairs.derive(key, b"mask", b"terms") == expected
