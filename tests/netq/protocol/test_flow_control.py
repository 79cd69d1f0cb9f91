"""Which receiver may get how many bytes when all senders together have more than the budget allows."""

from __future__ import annotations

import pytest

from netq.protocol.flow_control import CREDIT, Budget, Claim
from netq.protocol.memory import Memory
from netq.protocol.receiver import Receiver
from netq.protocol.wire import OVERHEAD, Frame, FrameKind

SIZE = 10 * CREDIT
LARGE = 5 * CREDIT  # bytes of a message: only one of them fits besides another lane's credit


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
                self.receiver.place(Frame(FrameKind.MSG, length=part, number=number, value=size))
                if self.receiver.received(part) is not None:
                    self._mark += size + OVERHEAD

    def take(self) -> None:
        """Let the user take all that has come."""
        self.receiver.taken_room = self._mark
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


def test_claims_are_granted_in_order() -> None:
    budget, granted = Budget(200), list[str]()
    for name, amount in (("a", 60), ("b", 50), ("c", 10)):
        waiting(budget, name, amount, granted)
    assert granted == ["a"], "b does not fit, and c came later"
    budget.free(20)
    assert (granted, budget.claimed) == (["a", "b", "c"], 100)


def test_largest_message_is_granted_when_alone() -> None:
    budget, granted = Budget(200), list[str]()
    waiting(budget, "small", 1, granted)
    waiting(budget, "large", 1000, granted)
    assert granted == ["small"]
    budget.free(1)
    assert granted == ["small", "large"]
    waiting(budget, "next", 1, granted)
    budget.free(1000)
    assert granted == ["small", "large", "next"]


def test_waiting_claims_do_not_block_each_other() -> None:
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


def test_lending_ignores_waiting_claims() -> None:
    budget = Budget(200)
    assert [budget.lend(wish) for wish in (30, -5, 60, 30)] == [30, 0, 60, 10]
    budget.give_back(50)
    waiting(budget, "a", 1000, [])
    waiting(budget, "b", 1000, [])
    assert budget.lend(60) == 50
    assert (budget.lent, budget.claimed, budget.used) == (100, 1000, 1100)


def test_withdrawn_claim_lets_next_pass() -> None:
    budget, granted = Budget(200), list[str]()
    waiting(budget, "running", 90, granted)
    large = waiting(budget, "large", 90, granted)
    waiting(budget, "small", 10, granted)
    budget.withdraw(large)
    assert granted == ["running", "small"]
    budget.withdraw(large)
    assert budget.claimed == 100


def test_small_message_needs_no_grant() -> None:
    budget = Budget(SIZE)
    greedy, small = Lane(budget), Lane(budget)
    greedy.begin(100 * SIZE)
    assert greedy.may_end(100 * SIZE)
    small.begin(CREDIT)
    assert small.may_end(CREDIT)
    assert small.grown == 0


def test_claim_is_granted_when_user_takes() -> None:
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


def test_lane_in_use_is_lent_its_window() -> None:
    budget = Budget(SIZE)
    lanes = [Lane(budget, window=4 * CREDIT) for _ in range(3)]
    for lane in lanes:
        lane.begin(100)
    assert [lane.receiver.limit for lane in lanes] == [4 * CREDIT, 3 * CREDIT, CREDIT]
    assert budget.lent == SIZE // 2
    lanes[0].receiver.reclaim()
    lanes[2].receiver.resume()
    assert [lane.receiver.limit for lane in lanes] == [CREDIT, 3 * CREDIT, 4 * CREDIT]


def test_paused_lane_keeps_its_grant() -> None:
    budget = Budget(SIZE)
    lane, other = Lane(budget, window=2 * CREDIT), Lane(budget)
    lane.come(1000, LARGE)
    limit, used = lane.receiver.limit, budget.used
    lane.receiver.pause()
    other.begin(LARGE)
    assert not other.may_end(LARGE)
    lane.receiver.resume()
    assert (lane.receiver.limit, lane.receiver.partial, budget.used) == (limit, 1000, used)


def test_part_of_absent_peer_is_kept_until_needed() -> None:
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


def test_returning_peer_resumes_with_more_than_half() -> None:
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


def test_message_with_header_only_is_discarded_with_link() -> None:
    """Its sender does not know that it has begun, and may put another in its place."""
    lane = Lane(Budget(SIZE))
    lane.receiver.place(Frame(FrameKind.MSG, length=10, number=1, value=LARGE))
    lane.receiver.interrupted(0)
    lane.receiver.pause()
    lane.receiver.resume()
    lane.come(5, 5)
    assert lane.receiver.held == 1


def test_room_of_message_with_header_only_is_freed() -> None:
    """Otherwise a peer that sends a header now and then could fill one limit after another with small messages."""
    budget = Budget(SIZE)
    lane, other = Lane(budget), Lane(budget)
    lane.come(CREDIT // 2, CREDIT // 2)
    lane.receiver.place(Frame(FrameKind.MSG, length=10, number=2, value=100 * SIZE))
    assert lane.may_end(100 * SIZE)
    lane.receiver.interrupted(0)
    lane.receiver.pause()
    assert (lane.receiver.limit, budget.used) == (CREDIT, 0)
    other.begin(LARGE)
    assert other.may_end(LARGE)


def test_untaken_messages_count_after_link_loss() -> None:
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
def test_room_is_freed_after_memory_error(merge: bool) -> None:
    class Full(Memory):
        def take(self, size: int, *, fresh: bool = False) -> memoryview:
            raise MemoryError("no memory")

    budget = Budget(SIZE)
    receiver = Receiver(0, CREDIT, Full(budget=budget), merge=merge)
    with pytest.raises(MemoryError):
        receiver.place(Frame(FrameKind.MSG, length=10, number=1, value=LARGE))
    receiver.pause()
    assert (budget.used, receiver.limit) == (0, CREDIT)


def test_only_a_message_that_does_not_wait_gets_recycled_memory() -> None:
    """A recycled block has all its pages: those that wait would hold many times what has come of them."""
    memory = Memory(budget=Budget(SIZE))
    begin, idle = Frame(FrameKind.MSG, length=1, number=1, value=LARGE), []
    lanes = [Receiver(number, CREDIT, memory, merge=True) for number in range(3)]
    for receiver in lanes:
        memory.take(LARGE).release()
        block = memory.idle
        receiver.place(begin)
        idle.append(memory.idle // block)
        memory.age()
        memory.age()
    assert [receiver.waits for receiver in lanes] == [False, True, True]
    assert idle == [0, 1, 1]


def test_eviction_of_a_thousand_does_not_recurse() -> None:
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


def test_grants_to_a_thousand_do_not_recurse() -> None:
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


def test_failing_grant_does_not_stop_granting() -> None:
    budget, granted = Budget(200), list[str]()

    def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        budget.claim(Claim(10, fail))
    waiting(budget, "next", 10, granted)
    assert granted == ["next"]


@pytest.mark.parametrize("size", [10, SIZE, 2**40])
def test_drop_frees_no_untaken_message(size: int) -> None:
    budget = Budget(SIZE)
    lane = Lane(budget)
    lane.come(LARGE, LARGE)
    used = budget.used
    lane.receiver.dropped(Frame(FrameKind.DROP, number=2, value=size))
    assert budget.used >= used - CREDIT
    assert lane.receiver.limit - lane.receiver._freed_room >= LARGE
    lane.take()
    assert budget.used == 0


@pytest.mark.parametrize("waits", [False, True])
def test_retired_receiver_frees_all_but_untaken(waits: bool) -> None:
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


def test_lifted_limit_counts_nothing() -> None:
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


def test_orphaned_bytes_stop_admission() -> None:
    budget = Budget(SIZE)
    lanes = [Lane(budget) for _ in range(SIZE // CREDIT)]
    for number, lane in enumerate(lanes):
        assert budget.exceeded is (number * (CREDIT + OVERHEAD) > SIZE // 2)
        lane.come(CREDIT, CREDIT)
        lane.receiver.retire()
    for lane in lanes:
        lane.take()
    assert not budget.exceeded
