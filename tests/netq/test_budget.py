"""Who may send how much, when all together send more than there is room for."""

from __future__ import annotations

import pytest

from netq.budget import CREDIT, Budget, Claim
from netq.lane import Receiver
from netq.memory import Memory
from netq.wire import OVERHEAD, Frame, Kind

SIZE = 10 * CREDIT


class Lane:
    """A receiver of `budget` that asks for nothing until a message of `begin` bytes has begun."""

    def __init__(self, budget: Budget, window: int = CREDIT) -> None:
        self.grown = 0
        self.receiver = Receiver(0, window, Memory(budget=budget), merge=True, grown=self._grow)

    def begin(self, size: int) -> None:
        self.come(1, size)

    def come(self, length: int, size: int) -> None:
        """Let the next `length` bytes of a message of `size` bytes come."""
        self.receiver.place(Frame(Kind.MSG, length=length, number=self.receiver.held + 1, value=size))
        self.receiver.received(length)

    def may_end(self, size: int) -> bool:
        """Whether the message that has begun, of `size` bytes, may be completed."""
        return self.receiver.limit >= self.receiver._start + size

    def _grow(self, receiver: Receiver) -> None:
        assert receiver is self.receiver
        self.grown += 1


def test_claims_are_granted_in_the_order_of_asking() -> None:
    budget, granted = Budget(100), list[str]()
    for name, amount in (("a", 60), ("b", 50), ("c", 10)):
        budget.claim(Claim(amount, lambda name=name: granted.append(name)))  # type: ignore[misc]
    assert granted == ["a"], "b does not fit, and c came later"
    budget.free(20)
    assert (granted, budget.used) == (["a", "b", "c"], 100)


def test_the_largest_message_comes_while_half_is_free() -> None:
    budget, granted = Budget(100), list[int]()
    budget.claim(Claim(50, lambda: granted.append(50)))
    budget.claim(Claim(1000, lambda: granted.append(1000)))
    assert (granted, budget.used) == ([50, 1000], 1050)
    budget.claim(Claim(1, lambda: granted.append(1)))
    budget.free(1000)
    assert granted == [50, 1000, 1]


def test_half_is_lent_and_only_when_nobody_waits() -> None:
    budget = Budget(100)
    assert [budget.lend(wish) for wish in (30, -5, 30, 30)] == [30, 0, 20, 0]
    budget.claim(Claim(51, lambda: None))
    assert budget.used == 101
    waits = Claim(20, lambda: None)
    budget.claim(waits)
    budget.free(101)
    assert budget.used == 20
    budget.withdraw(waits)
    assert budget.used == 20, "it had been granted: what it got is to be freed"


def test_a_claim_that_is_withdrawn_lets_the_next_pass() -> None:
    budget, granted = Budget(100), list[str]()
    budget.claim(Claim(90, lambda: None))
    large = Claim(90, lambda: granted.append("large"))
    budget.claim(large)
    budget.claim(Claim(10, lambda: granted.append("small")))
    assert granted == []
    budget.withdraw(large)
    assert granted == ["small"]


def test_a_small_message_waits_for_nobody() -> None:
    budget = Budget(SIZE)
    greedy, small = Lane(budget), Lane(budget)
    greedy.begin(100 * SIZE)
    assert greedy.may_end(100 * SIZE)
    small.begin(CREDIT)
    assert small.may_end(CREDIT)
    assert small.grown == 0


def test_who_waits_goes_on_when_the_user_has_taken() -> None:
    budget, size = Budget(SIZE), SIZE - CREDIT
    first, second = Lane(budget), Lane(budget)
    first.begin(size)
    second.begin(size)
    assert (first.may_end(size), second.may_end(size)) == (True, False)
    first.come(size - 1, size)
    assert first.receiver.held == 1
    assert not second.may_end(size), "it is here and not taken"
    first.receiver.taken(size + OVERHEAD)
    assert second.may_end(size)
    assert second.grown == 1
    assert second.receiver.grant_due
    second.come(size - 1, size)
    second.receiver.taken(size + OVERHEAD)
    assert budget.used == 0


def test_a_lane_in_use_gets_its_window_while_half_is_free() -> None:
    budget = Budget(SIZE)
    lanes = [Lane(budget, window=4 * CREDIT) for _ in range(3)]
    for lane in lanes:
        lane.begin(100)
    assert [lane.receiver.limit for lane in lanes] == [4 * CREDIT, 3 * CREDIT, CREDIT]
    assert budget.used == SIZE // 2


def test_an_absent_peer_keeps_what_it_has_while_nobody_needs_the_room() -> None:
    budget, size = Budget(SIZE), SIZE - CREDIT
    absent, other = Lane(budget), Lane(budget)
    absent.begin(size)
    absent.come(SIZE // 2 + CREDIT, size)
    absent.receiver.pause()
    assert budget.used == SIZE // 2 + 1, "what was granted and has not come is free"
    assert absent.receiver.cursor.partial == SIZE // 2 + CREDIT + 1
    other.begin(size)
    assert other.may_end(size)
    assert (absent.receiver.cursor.partial, absent.receiver.cursor.limit) == (0, CREDIT)
    absent.receiver.resume()
    absent.begin(size)
    assert not absent.may_end(size)
    other.receiver.retire()
    assert absent.may_end(size)


def test_a_peer_that_comes_back_goes_on_where_it_was() -> None:
    budget, size = Budget(SIZE), SIZE - CREDIT
    lane = Lane(budget)
    lane.begin(size)
    lane.come(SIZE // 2, size)
    lane.receiver.pause()
    lane.receiver.pause()
    lane.receiver.resume()
    assert lane.receiver.cursor.partial == SIZE // 2 + 1
    assert lane.may_end(size)
    assert budget.used == size - CREDIT
    Lane(budget).begin(size)
    assert lane.receiver.partial == SIZE // 2 + 1, "it is not absent any more"


@pytest.mark.parametrize("waits", [False, True])
def test_a_session_that_is_over_gives_back_all_but_what_is_untaken(waits: bool) -> None:
    budget, size = Budget(SIZE), SIZE - CREDIT
    lane, other = Lane(budget), Lane(budget)
    if waits:
        other.begin(size)
    lane.come(1000, 1000)
    lane.begin(size)
    used = budget.used
    lane.receiver.retire()
    assert budget.used == (used if waits else 0) + 1000 + OVERHEAD
    lane.receiver.taken(1000 + OVERHEAD)
    assert budget.used == (used if waits else 0)
    other.receiver.retire()
    assert budget.used == 0


def test_who_has_closed_takes_all_and_counts_nothing() -> None:
    budget, size = Budget(SIZE), SIZE - CREDIT
    lane = Lane(budget)
    lane.begin(size)
    lane.receiver.drain()
    assert budget.used == 0
    assert lane.may_end(100 * SIZE)
    lane.receiver.pause()
    lane.receiver.resume()
    lane.receiver.retire()
    lane.receiver.taken(size + OVERHEAD)
    assert budget.used == 0
