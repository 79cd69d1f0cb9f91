"""Who may send how much, when all together send more than there is room for."""

from __future__ import annotations

import pytest

from netq.protocol.flow_control import CREDIT, Budget, Claim
from netq.protocol.memory import Memory
from netq.protocol.receiver import Receiver
from netq.protocol.wire import OVERHEAD, Frame, Kind

SIZE = 10 * CREDIT
LARGE = 5 * CREDIT  # bytes of a message: only one of them fits beside another's credit


class Lane:
    """A receiver of `budget` that asks for nothing until a message of `begin` bytes has begun."""

    def __init__(self, budget: Budget, window: int = CREDIT) -> None:
        self.grown = 0
        self._mark = 0  # what the messages that have come whole count
        self.receiver = Receiver(0, window, Memory(budget=budget), merge=True, on_grant=self._grow)

    def begin(self, size: int) -> None:
        """Let the first byte come."""
        self.come(1, size)

    def come(self, length: int, size: int) -> None:
        """Let the next `length` bytes of a message of `size` bytes come, the first byte alone: it asks for room."""
        number = self.receiver.held + 1
        for part in (length,) if self.receiver.partial else (1, length - 1):
            if part:
                self.receiver.place(Frame(Kind.MSG, length=part, number=number, value=size))
                if self.receiver.received(part) is not None:
                    self._mark += size + OVERHEAD

    def take(self) -> None:
        """Let the user take all that has come."""
        assert self.receiver.consume(self.receiver.held, self._mark)
        self.receiver.release_room()

    def may_end(self, size: int) -> bool:
        """Whether the message that has begun, of `size` bytes, may be completed."""
        return self.receiver.limit >= self.receiver.start + size

    def _grow(self, receiver: Receiver) -> None:
        assert receiver is self.receiver
        self.grown += 1


def waiting(budget: Budget, name: str, amount: int, granted: list[str], held: int = 0) -> Claim:
    claim = Claim(amount, lambda: granted.append(name), lambda: held)
    budget.claim(claim)
    return claim


def test_claims_are_granted_in_the_order_of_asking() -> None:
    budget, granted = Budget(200), list[str]()
    for name, amount in (("a", 60), ("b", 50), ("c", 10)):
        waiting(budget, name, amount, granted)
    assert granted == ["a"], "b does not fit, and c came later"
    budget.free(20)
    assert (granted, budget.claimed) == (["a", "b", "c"], 100)


def test_the_largest_message_comes_when_nothing_else_is_under_way() -> None:
    budget, granted = Budget(200), list[str]()
    waiting(budget, "small", 1, granted)
    waiting(budget, "large", 1000, granted)
    assert granted == ["small"]
    budget.free(1)
    assert granted == ["small", "large"]
    waiting(budget, "next", 1, granted)
    budget.free(1000)
    assert granted == ["small", "large", "next"]


def test_who_wants_the_rest_of_what_it_has_does_not_wait_for_itself_nor_for_others_who_wait() -> None:
    budget, granted = Budget(200), list[str]()
    waiting(budget, "running", 70, granted)
    budget.free(-50)  # 20 of one that comes back, 30 of another
    waiting(budget, "first", 90, granted, held=20)
    waiting(budget, "second", 60, granted, held=30)
    assert granted == ["running"]
    budget.free(70)
    assert granted == ["running", "first"]
    budget.free(20 + 90)
    assert granted == ["running", "first", "second"]


def test_half_is_lent_whoever_waits() -> None:
    budget = Budget(200)
    assert [budget.lend(wish) for wish in (30, -5, 60, 30)] == [30, 0, 60, 10]
    budget.give_back(50)
    waiting(budget, "a", 1000, [])
    waiting(budget, "b", 1000, [])
    assert budget.lend(60) == 50
    assert (budget.lent, budget.claimed, budget.used) == (100, 1000, 1100)


def test_a_claim_that_is_withdrawn_lets_the_next_pass() -> None:
    budget, granted = Budget(200), list[str]()
    waiting(budget, "running", 90, granted)
    large = waiting(budget, "large", 90, granted)
    waiting(budget, "small", 10, granted)
    budget.withdraw(large)
    assert granted == ["running", "small"]
    budget.withdraw(large)
    assert budget.claimed == 100


def test_a_small_message_waits_for_nobody() -> None:
    budget = Budget(SIZE)
    greedy, small = Lane(budget), Lane(budget)
    greedy.begin(100 * SIZE)
    assert greedy.may_end(100 * SIZE)
    small.begin(CREDIT)
    assert small.may_end(CREDIT)
    assert small.grown == 0


def test_who_waits_goes_on_when_the_user_has_taken() -> None:
    budget = Budget(SIZE)
    first, second = Lane(budget), Lane(budget)
    first.begin(LARGE)
    second.begin(LARGE)
    assert (first.may_end(LARGE), second.may_end(LARGE)) == (True, False)
    first.come(LARGE - 1, LARGE)
    assert first.receiver.held == 1
    assert not second.may_end(LARGE), "it is here and not taken"
    first.take()
    assert second.may_end(LARGE)
    assert second.grown == 1
    assert second.receiver.grant_due
    second.come(LARGE - 1, LARGE)
    second.take()
    assert budget.used == 0


def test_a_lane_in_use_gets_its_window_while_there_is_some() -> None:
    budget = Budget(SIZE)
    lanes = [Lane(budget, window=4 * CREDIT) for _ in range(3)]
    for lane in lanes:
        lane.begin(100)
    assert [lane.receiver.limit for lane in lanes] == [4 * CREDIT, 3 * CREDIT, CREDIT]
    assert budget.lent == SIZE // 2
    lanes[0].receiver.reclaim()
    lanes[2].receiver.resume()
    assert [lane.receiver.limit for lane in lanes] == [CREDIT, 3 * CREDIT, 4 * CREDIT]


def test_a_lost_link_takes_nothing_for_a_while() -> None:
    budget = Budget(SIZE)
    lane, other = Lane(budget, window=2 * CREDIT), Lane(budget)
    lane.come(1000, LARGE)
    limit, used = lane.receiver.limit, budget.used
    lane.receiver.pause()
    other.begin(LARGE)
    assert not other.may_end(LARGE)
    lane.receiver.resume()
    assert (lane.receiver.limit, lane.receiver.partial, budget.used) == (limit, 1000, used)


def test_an_absent_peer_keeps_what_it_has_while_nobody_needs_the_room() -> None:
    budget = Budget(SIZE)
    absent, other = Lane(budget), Lane(budget)
    absent.come(3 * CREDIT, LARGE)
    absent.receiver.pause()
    absent.receiver.reclaim()
    assert budget.used == 2 * CREDIT, "what was granted and has not come is free"
    assert absent.receiver.cursor.partial == 3 * CREDIT
    other.begin(LARGE)
    assert other.may_end(LARGE)
    assert (absent.receiver.cursor.partial, absent.receiver.cursor.limit) == (0, CREDIT)
    absent.receiver.resume()
    absent.begin(LARGE)
    assert not absent.may_end(LARGE)
    other.receiver.retire()
    assert absent.may_end(LARGE)


def test_a_peer_that_comes_back_goes_on_where_it_was_though_it_has_more_than_half() -> None:
    budget = Budget(SIZE)
    lane = Lane(budget)
    for _ in range(3):
        lane.come(3 * CREDIT, 10 * SIZE)
        lane.receiver.pause()
        lane.receiver.reclaim()
        lane.receiver.resume()
        assert lane.may_end(10 * SIZE)
    assert lane.receiver.cursor.partial == 9 * CREDIT
    Lane(budget).begin(LARGE)
    assert lane.receiver.partial == 9 * CREDIT, "it is not absent any more"


def test_a_message_of_which_only_the_header_came_is_forgotten_with_its_link() -> None:
    """Its sender does not know that it has begun, and may put another in its place."""
    lane = Lane(Budget(SIZE))
    lane.receiver.place(Frame(Kind.MSG, length=10, number=1, value=LARGE))
    lane.receiver.interrupted(0)
    lane.receiver.pause()
    lane.receiver.resume()
    lane.come(5, 5)
    assert lane.receiver.held == 1


def test_the_room_of_a_message_of_which_only_the_header_came_is_for_others_again() -> None:
    """Else whoever sends a header now and then fills one limit after another with small messages."""
    budget = Budget(SIZE)
    lane, other = Lane(budget), Lane(budget)
    lane.come(CREDIT // 2, CREDIT // 2)
    lane.receiver.place(Frame(Kind.MSG, length=10, number=2, value=100 * SIZE))
    assert lane.may_end(100 * SIZE)
    lane.receiver.interrupted(0)
    lane.receiver.pause()
    assert (lane.receiver.limit, budget.used) == (CREDIT, 0)
    other.begin(LARGE)
    assert other.may_end(LARGE)


def test_what_is_untaken_still_counts_when_a_link_is_lost() -> None:
    budget = Budget(SIZE)
    lane = Lane(budget)
    lane.come(LARGE, LARGE)
    for step in (lane.receiver.pause, lane.receiver.resume, lane.receiver.pause):
        step()
        assert lane.receiver.limit == LARGE + OVERHEAD
        assert budget.used == LARGE + OVERHEAD - CREDIT
    lane.take()
    assert budget.used == 0


@pytest.mark.parametrize("merge", [True, False])
def test_the_room_of_a_message_that_no_memory_was_there_for_is_for_others_again(merge: bool) -> None:
    class Full(Memory):
        def take(self, size: int) -> memoryview:
            raise MemoryError("no memory")

    budget = Budget(SIZE)
    receiver = Receiver(0, CREDIT, Full(budget=budget), merge=merge)
    with pytest.raises(MemoryError):
        receiver.place(Frame(Kind.MSG, length=10, number=1, value=LARGE))
    receiver.pause()
    assert (budget.used, receiver.limit) == (0, CREDIT)


def test_a_thousand_who_are_absent_are_forgotten_without_a_thousand_frames() -> None:
    budget = Budget(2**30)
    absent = [Lane(budget) for _ in range(1000)]
    for lane in absent:
        lane.come(CREDIT + 100, 2 * CREDIT)
        lane.receiver.pause()
        lane.receiver.reclaim()
    giant = Lane(budget)
    giant.begin(2**32)
    assert giant.may_end(2**32)
    assert {lane.receiver.partial for lane in absent} == {0}


def test_a_thousand_who_wait_and_free_some_are_granted_without_a_thousand_frames() -> None:
    budget = Budget(2**30)
    giant, waiting = Lane(budget), [Lane(budget) for _ in range(1000)]
    giant.begin(2**29)
    for lane in waiting:
        lane.come(1000, 1000)
        lane.begin(2 * CREDIT)
        lane.take()
    assert not any(lane.may_end(2 * CREDIT) for lane in waiting)
    giant.receiver.retire()
    assert all(lane.may_end(2 * CREDIT) for lane in waiting)


def test_a_claim_that_fails_when_it_is_granted_does_not_end_all_granting() -> None:
    budget, granted = Budget(200), list[str]()

    def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        budget.claim(Claim(10, fail))
    waiting(budget, "next", 10, granted)
    assert granted == ["next"]


@pytest.mark.parametrize("size", [10, SIZE, 2**40])
def test_a_cancelled_message_frees_nothing_that_is_untaken(size: int) -> None:
    budget = Budget(SIZE)
    lane = Lane(budget)
    lane.come(LARGE, LARGE)
    used = budget.used
    lane.receiver.dropped(Frame(Kind.DROP, number=2, value=size))
    assert budget.used >= used - CREDIT
    assert lane.receiver.limit - lane.receiver._taken >= LARGE
    lane.take()
    assert budget.used == 0


@pytest.mark.parametrize("waits", [False, True])
def test_a_session_that_is_over_gives_back_all_but_what_is_untaken(waits: bool) -> None:
    budget = Budget(SIZE)
    lane, other = Lane(budget), Lane(budget)
    if waits:
        other.begin(LARGE)
    lane.come(1000, 1000)
    lane.begin(LARGE)
    used = budget.used
    lane.receiver.retire()
    assert budget.orphaned == 1000 + OVERHEAD
    assert budget.used == (used if waits else 0) + 1000 + OVERHEAD
    lane.take()
    assert (budget.used, budget.orphaned) == (used if waits else 0, 0)
    other.receiver.retire()
    assert budget.used == 0


def test_who_has_closed_takes_all_and_counts_nothing() -> None:
    budget = Budget(SIZE)
    lane = Lane(budget, window=2 * CREDIT)
    lane.begin(LARGE)
    lane.receiver.lift_limit()
    assert budget.used == 0
    for step in (lane.receiver.pause, lane.receiver.reclaim, lane.receiver.resume):
        step()
        assert lane.may_end(100 * SIZE)
        assert budget.used == 0
    lane.receiver.retire()
    assert budget.used == 0


def test_no_new_session_begins_while_too_much_of_old_ones_is_untaken() -> None:
    budget = Budget(SIZE)
    lanes = [Lane(budget) for _ in range(SIZE // CREDIT)]
    for number, lane in enumerate(lanes):
        assert budget.exceeded is (number * (CREDIT + OVERHEAD) > SIZE // 2)
        lane.come(CREDIT, CREDIT)
        lane.receiver.retire()
    for lane in lanes:
        lane.take()
    assert not budget.exceeded
