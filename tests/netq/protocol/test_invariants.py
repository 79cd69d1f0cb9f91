"""Two ends do random things in random order, next to a model of what was sent. These invariants always hold:

I1  each lane delivers what was sent: in order, without duplicates, and without gaps but for messages that were
    cancelled or are known to be lost
I2  an acknowledged message was delivered
I3  a link that was replaced changes nothing any more
I4  untaken bytes stay within the window
I5  every state but CLOSED has a deadline
I6  resuming never changes the id of the peer
I7  closing twice is harmless
I8  nothing raises, and neither end reports a fault of the other

Mirrors no module: two whole connections run over a LossyPair.
"""

from __future__ import annotations

import collections
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from netq.options import ConnectionOptions
from netq.protocol.codec import Outgoing
from netq.protocol.wire import OVERHEAD
from netq.testing.lossy_pair import LossyPair, PairEnd

# A quarter of the window is more than a message of no bytes gives back: a grant has to come for another reason too.
OPTIONS = ConnectionOptions(transport_size=100, window=1300, heartbeat=10.0, misses=3)
CLIENT, SERVER = True, False

checked: collections.Counter[str] = collections.Counter()
ends = st.sampled_from([CLIENT, SERVER])
SIZES = st.sampled_from([0, 1, 99, 100, 101, 500, 1290, 1500])


@dataclass(eq=False)
class Letter:
    """One message, as the model knows it."""

    name: bytes
    message: Outgoing | None = None
    cancelled: bool = False
    begun: bool = False  # when it was cancelled, some of it may have left
    forgotten: bool = False  # its sender has crashed


class Conversation(RuleBasedStateMachine):
    """See above."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        self.pair = LossyPair(OPTIONS, limit=300, take=False)
        self.letters: dict[tuple[bool, int], list[Letter]] = collections.defaultdict(list)
        self.restarts = 0
        self.pair.run()

    def end(self, side: bool) -> PairEnd:
        return self.pair.client if side is CLIENT else self.pair.server

    # What may happen.

    @rule(side=ends, lane=st.integers(0, 2), sizes=st.lists(SIZES, min_size=1, max_size=4))
    def send(self, side: bool, lane: int, sizes: list[int]) -> None:
        end = self.end(side)
        if end.session is None or end.session.closing:
            return
        for size in sizes:
            self.put(side, lane, size)

    def put(self, side: bool, lane: int, size: int) -> None:
        letters = self.letters[side, lane]
        letter = Letter(f"{len(letters)}:{self.restarts}".encode().ljust(size, b".") if size else b"")
        letter.message = self.pair.put(self.end(side), letter.name, lane=lane)
        letters.append(letter)

    @rule(side=ends, lane=st.integers(0, 2), back=st.integers(1, 4), told=st.booleans())
    def cancel(self, side: bool, lane: int, back: int, told: bool) -> None:
        """Sometimes tell the session too; otherwise it must find the cancelled message itself."""
        for letter in self.letters[side, lane][-back:][:1]:
            message, session = letter.message, self.end(side).session
            if message is None or message.left or letter.cancelled:
                continue
            letter.cancelled, letter.begun = True, message.number > 0
            message.withdraw()
            if told and session is not None and not letter.forgotten:
                session.withdraw(message)

    @rule(side=ends, count=st.sampled_from([1, 10, 24, 30, 88, 200]))
    def pump(self, side: bool, count: int) -> None:
        self.pair.send(self.end(side))
        self.pair.deliver(self.end(side), count)

    @rule(turns=st.integers(1, 10))
    def talk(self, turns: int) -> None:
        for _ in range(turns):
            self.pair.turn()

    @rule(side=ends, lane=st.integers(0, 2), size=SIZES, count=st.integers(1, 150))
    def a_link_is_lost_in_mid_send(self, side: bool, lane: int, size: int, count: int) -> None:
        self.send(side, lane, [size])
        self.pump(side, count)
        self.pair.cut()

    @rule()
    def drop_link(self) -> None:
        self.pair.cut()

    @rule()
    @precondition(lambda self: not self.pair.up)
    def reconnect(self) -> None:
        if not self.pair.up:
            self.pair.connect()

    @rule(more=st.binary(max_size=30))
    def late_bytes_of_an_old_link(self, more: bytes) -> None:
        for connection, rest in self.pair.stale:
            assert connection.feed(memoryview(rest + more), self.pair.now) == []  # I3
            assert connection.tick(self.pair.now) == []

    @rule(side=ends, count=st.sampled_from([1, 3, None]))
    def take(self, side: bool, count: int | None) -> None:
        self.pair.take(self.end(side), count)

    @rule(seconds=st.sampled_from([1.0, 9.0, 10.0, 31.0]))
    def advance_clock(self, seconds: float) -> None:
        self.pair.tick(seconds)

    @rule(another=st.booleans())
    @precondition(lambda self: len(self.pair.links) > 3 * (self.restarts + 1))
    def restart_server(self, another: bool) -> None:
        for (side, _), letters in self.letters.items():
            for letter in letters if side is SERVER else ():
                letter.forgotten = True
        self.restarts += 1
        self.pair.restart_server(uuid.UUID(int=100 + self.restarts) if another else self.pair.server.id)

    @rule(side=ends, times=st.integers(1, 2))
    @precondition(lambda self: len(self.pair.links) > 4)
    def close(self, side: bool, times: int) -> None:
        for _ in range(times):  # I7
            self.pair.close(self.end(side))

    @rule()
    def settle(self) -> None:
        """In peace, all that is not lost arrives."""
        moved = -1
        while moved < self.pair.moved:
            moved = self.pair.moved
            self.pair.take(self.pair.client)
            self.pair.take(self.pair.server)
            self.pair.run()
        for side in (CLIENT, SERVER):
            session = self.end(side).session
            assert session is None or session.queued == 0
        self.check_all_arrived()
        if self.pair.client.over:
            self.begin()

    # What must hold.

    @invariant()
    def holds(self) -> None:
        checked["steps"] += 1
        for (side, lane), letters in self.letters.items():
            self.check_order(side, lane, letters)
            self.check_outcomes(side, lane, letters)
        for end in (self.pair.client, self.pair.server):
            self.check_window(end)
            assert all(isinstance(lost.error, TimeoutError) for lost in end.lost)  # I8
            if end.connection is not None:
                assert math.isinf(end.connection.deadline()) == end.connection.closed  # I5
        assert self.pair.client.session is not None
        if self.pair.client.connection is not None and self.pair.client.connection.open:
            assert self.pair.client.session.peer == self.pair.server.id  # I6

    def check_order(self, side: bool, lane: int, letters: list[Letter]) -> None:
        """I1. Letters of no bytes cannot be told apart, so they are only counted."""
        got = self.end(not side).received.get(lane, [])
        names = [name for name in got if name]
        order = {letter.name: n for n, letter in enumerate(letters)}
        places = [order[name] for name in names]
        assert places == sorted(set(places))
        lost = {failed.message for failed in self.end(side).failed}
        skipped = set(range(places[-1] if places else 0)) - set(places)
        for n in skipped:
            letter = letters[n]
            assert letter.cancelled or letter.forgotten or letter.message in lost or not letter.name
        assert not {letter.name for letter in letters if letter.cancelled} & set(names)
        assert got.count(b"") <= sum(not letter.name and not letter.cancelled for letter in letters)

    def check_outcomes(self, side: bool, lane: int, letters: list[Letter]) -> None:
        """I2; and one outcome for each."""
        end = self.end(side)
        acked, failed = collections.Counter(end.acked), collections.Counter(event.message for event in end.failed)
        got = set(self.end(not side).received.get(lane, []))
        for letter in letters:
            assert letter.message is not None
            assert acked[letter.message] + failed[letter.message] <= 1
            assert not (letter.cancelled and letter.message.left), "its last byte has left after all"
            if acked[letter.message] and not letter.cancelled:
                assert letter.name in got
            if acked[letter.message]:
                assert letter.begun or not letter.cancelled, "the peer never knew of it"

    def check_window(self, end: PairEnd) -> None:
        """I4: each message began within the window, unless both sides close: then all is let in (Session.close).

        After the end of a session nothing comes any more.
        """
        if end.session is None or (end.session.closing and end.session.peer_leaving):
            return
        waiting: dict[object, list[int]] = collections.defaultdict(list)
        for _, data, receiver, _ in end.untaken:
            waiting[receiver].append(len(data) + OVERHEAD)
        for costs in waiting.values():
            assert sum(costs[:-1]) < OPTIONS.window

    def check_all_arrived(self) -> None:
        for (side, _), letters in self.letters.items():
            known = {*self.end(side).acked, *(failed.message for failed in self.end(side).failed)}
            for letter in letters:
                # no DROP for a message cancelled before it began, nor for one that a former server knew
                withdrawn = letter.cancelled and (not letter.begun or self.restarts > 0)
                assert letter.message in known or letter.forgotten or withdrawn


def run(examples: int) -> int:
    before = checked["steps"]
    how = settings(
        max_examples=examples,
        stateful_step_count=50,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Conversation, settings=how)
    return checked["steps"] - before


@pytest.mark.slow
def test_many_conversations(record_property: Callable[[str, object], None]) -> None:
    steps = run(80)
    record_property("steps", steps)
    print(f"{steps} steps")
    assert steps >= 2_400
