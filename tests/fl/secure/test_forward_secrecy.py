"""Who has recorded all messages, and seizes all that a client has, opens no round that is over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fl.messages import Masked
from fl.secure import packets
from fl.secure.pairs import derive
from fl.secure.summing import Summing
from tests.fl.secure.circle import Circle


def held(value: Any, seen: set[int]) -> Iterator[bytes]:
    """Yield all byte strings that an object holds, however deep, also in closures."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, bytes | bytearray):
        yield bytes(value)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from held(each, seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from held(each, seen)
    elif callable(value):
        for cell in getattr(value, "__closure__", None) or ():
            yield from held(cell.cell_contents, seen)
    elif hasattr(value, "__dict__"):
        yield from held(vars(value), seen)


def opens(keys: set[bytes], client: str, sent: Mapping[str, Masked], summing: Summing) -> list[tuple[str, str]]:
    """Return which packets these keys open, or the keys that follow from them by what the protocol derives."""
    terms, found = summing.terms, []
    size = packets.packet_size(len(terms.clients))
    for sender, masked in sent.items():
        for at, receiver in enumerate(summing.roster.committee):
            if client not in (sender, receiver):
                continue
            packet = masked.packets[size * at :][:size]
            ways = [(), *((sender, receiver), (receiver, sender))]
            for key in keys:
                for names in ways:
                    tried = derive(key, b"packet", terms.hash, *(each.encode() for each in names)) if names else key
                    if len(tried) == 32 and packets.opened(packet, tried, terms.hash) is not None:
                        found.append((sender, receiver))
    return found


def with_later(keys: set[bytes]) -> set[bytes]:
    """Add the keys of the rounds to come, which follow."""
    found = set(keys)
    for key in keys:
        for _ in range(3):
            found |= {key, derive(key, b"round")}
            key = derive(key, b"next")
    return found


def test_a_state_that_is_seized_opens_no_round_before() -> None:
    circle = Circle(4)
    victim = circle.ids[1]
    rounds = []
    for _ in range(2):
        task, summing, _ = circle.begin()
        sent = {client: circle.update(client, task) for client in summing.terms.clients}
        before = set(held(circle.people[victim], set()))  # between its vector and the opening
        for client, masked in sent.items():
            summing.add(client, masked)
        circle.open(summing)
        after = set(held(circle.people[victim], set()))
        rounds.append((summing, sent, before, after))
    (first, its, before, after), (second, others, _, last) = rounds
    # What this test tries works on a round that is not over: a keeper can open what has come for it.
    assert {receiver for _, receiver in opens(with_later(before), victim, its, first)} == {victim}
    assert opens(with_later(after), victim, its, first) == []
    assert opens(with_later(last), victim, its, first) == []
    assert opens(with_later(last), victim, others, second) == []
    # And the keys of the round to come are there: the comparison would find those of one before.
    assert opens(with_later(after), victim, others, second) != []
