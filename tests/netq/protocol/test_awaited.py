"""Peers that a `get` waits for while the messages of others fill the budget: they go on, one message at a time."""

from __future__ import annotations

import collections
import random
import uuid

import pytest

from netq.options import ConnectionOptions
from netq.protocol.flow_control import CREDIT, Budget
from netq.protocol.memory import Memory
from netq.protocol.receiver import Item
from netq.protocol.session import Session
from netq.protocol.wire import LANES, OVERHEAD, Frame, FrameKind, Greeting

SIZE = 10 * CREDIT
LARGE = 6 * CREDIT  # bytes of a message: only one of them fits
SIZES = (0, 1, 300, 900, 1500, 5000, 15_000, 40_000)


class Remote:
    """A peer with its session here: what it sends, and what the user takes."""

    def __init__(self, budget: Budget, number: int, window: int = CREDIT) -> None:
        self.id = uuid.UUID(int=number)
        self._credit = min(window, CREDIT)  # bytes that a lane may send unasked
        self.awaited = self.asked = False  # a `get` waits for it; has waited since its messages were all taken
        self.sending: dict[int, int] = {}  # by lane: bytes of the message that has begun
        self.untaken: collections.deque[Item] = collections.deque()
        self.session = Session(b"t" * 16, ConnectionOptions(window=window), Memory(budget=budget), self.untaken)
        self.session.begin(Greeting(self.id, b"t" * 16, 2**40, CREDIT, 1000, (), resume=False, epoch=1), 1)
        self.session.is_awaited = lambda peer: self.awaited and peer == self.id

    def send(self, lane: int, size: int, most: int = 2**62) -> int:
        """Send on a message of `size` bytes, or on the one that has begun; return how many bytes it may send."""
        size = self.sending.setdefault(lane, size)
        self.session.acknowledge([])  # the peer gets what is announced
        receiver = self.session.receivers.get(lane)
        held, start, partial, limit = 0, 0, 0, self._credit
        if receiver is not None:
            held, start, partial, limit = receiver.held, receiver.start, receiver.partial, receiver.announced
        length = min(limit - start - partial, size - partial, most)
        if length < 0 or (size and not length) or start >= limit:
            return 0
        frame = Frame(FrameKind.MSG, lane=lane, length=length, number=held + 1, value=size)
        self.session.place(frame)
        self.session.received(frame)
        if partial + length == size:
            del self.sending[lane]
        return length or 1

    def begin(self, lane: int = 0, size: int = LARGE) -> None:
        self.send(lane, size, 1)

    def may_end(self, lane: int = 0) -> bool:
        """Whether the message that has begun may be completed."""
        self.session.acknowledge([])
        receiver = self.session.receivers[lane]
        return receiver.announced >= receiver.start + self.sending[lane]

    def drop(self, lane: int) -> None:
        """Cancel the message that has begun."""
        number = self.session.receivers[lane].held + 1
        self.session.dropped(Frame(FrameKind.DROP, lane=lane, number=number, value=self.sending.pop(lane)))

    def take(self) -> int:
        """Let the user take a message; return its lane."""
        _, _, receiver, mark = self.untaken.popleft()
        receiver.taken_room = mark
        if receiver.release_due:
            self.session.release_room(receiver)
        return receiver.lane

    def wait(self) -> None:
        """Let a `get` wait for it."""
        self.awaited = self.asked = True
        self.session.advance()

    def lose_link(self, *, long: bool) -> None:
        self.session.pause()
        if long:
            self.session.reclaim()

    def reconnect(self) -> None:
        self.session.greeting(self.id, resume=True)
        receivers = self.session.receivers
        self.sending = {n: size for n, size in self.sending.items() if n in receivers and receivers[n].partial}

    @property
    def here(self) -> int:
        """Bytes that are here and not taken."""
        return self.session.arriving + sum(
            len(item[1]) if isinstance(item[1], bytes) else item[1].nbytes for item in self.untaken
        )


@pytest.fixture
def budget() -> Budget:
    return Budget(SIZE)


@pytest.fixture
def full(budget: Budget) -> Remote:
    """A peer whose message fills the claims of the budget, and is not taken."""
    remote = Remote(budget, 1)
    remote.begin()
    remote.send(0, 0)
    assert len(remote.untaken) == 1
    return remote


@pytest.fixture
def one(budget: Budget, full: Remote) -> Remote:
    """A peer that a `get` waits for, with a message that has begun in each of two lanes: that of lane 0 goes on."""
    remote = Remote(budget, 2)
    for lane in (0, 1):
        remote.begin(lane)
    remote.wait()
    return remote


def test_message_that_has_begun_goes_on_when_a_get_begins_to_wait(budget: Budget, full: Remote) -> None:
    one, other = Remote(budget, 2), Remote(budget, 3)
    for remote in (other, one):
        remote.begin()
    assert not one.may_end()
    one.wait()
    assert (one.may_end(), other.may_end()) == (True, False)
    one.send(0, 0)
    one.take()
    assert not other.may_end()
    full.take()
    assert other.may_end()


def test_peer_is_stopped_if_all_that_it_has_begun_waits(budget: Budget) -> None:
    remote = Remote(budget, 1)
    assert not remote.session.is_stopped
    remote.begin(0)
    assert not remote.session.is_stopped, "this one has room"
    remote.begin(1)
    assert remote.session.waits
    assert not remote.session.is_stopped, "the other one goes on"
    remote.send(0, 0)
    assert remote.session.is_stopped
    remote.take()
    assert not remote.session.is_stopped


def test_message_that_begins_while_a_get_waits_goes_on(budget: Budget, full: Remote) -> None:
    one, other = Remote(budget, 2), Remote(budget, 3)
    one.wait()
    for remote in (other, one):
        remote.begin()
    assert (one.may_end(), other.may_end()) == (True, False)


def test_one_message_at_a_time_goes_on(budget: Budget, full: Remote) -> None:
    one = Remote(budget, 2)
    for lane in range(LANES):
        one.begin(lane)
    used = budget.used
    got = []
    while one.sending:
        one.wait()
        assert sum(one.may_end(lane) for lane in one.sending) == 1
        assert budget.used <= used + LARGE
        one.wait()
        assert sum(one.may_end(lane) for lane in one.sending) == 1, "a second get asks for no more"
        (ready,) = [lane for lane in one.sending if one.may_end(lane)]
        one.send(ready, 0)
        one.awaited = False
        got.append(one.take())
    assert sorted(got) == list(range(LANES)), "no lane is left behind"


def test_message_larger_than_the_budget_goes_on(budget: Budget, full: Remote) -> None:
    one = Remote(budget, 2)
    one.begin(size=100 * SIZE)
    one.wait()
    assert one.may_end()


def test_another_lane_goes_on_after_a_cancelled_message(one: Remote) -> None:
    one.drop(0)
    assert one.may_end(1)


def test_another_lane_goes_on_when_another_reader_takes(one: Remote) -> None:
    one.send(0, 0)
    assert not one.may_end(1)
    one.take()
    assert one.may_end(1), "it is still awaited"


@pytest.mark.parametrize("long", [False, True])
def test_message_goes_on_after_a_lost_link(one: Remote, long: bool) -> None:
    one.send(0, 0, CREDIT + 1000)
    one.lose_link(long=long)
    one.reconnect()
    one.begin(1)
    assert (one.may_end(0), one.may_end(1)) == (True, False), "the message of which a part is here goes first"


def test_message_whose_part_was_discarded_goes_on(budget: Budget, one: Remote) -> None:
    one.lose_link(long=True)
    Remote(budget, 3).begin()
    one.reconnect()
    one.begin(1)
    assert one.may_end(1)


@pytest.mark.parametrize("seed", range(100))
def test_every_get_ends_and_memory_is_bounded(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("receiver", "session"):
        monkeypatch.setattr(f"netq.protocol.{module}.CREDIT", 1000)
    monkeypatch.setitem(globals(), "CREDIT", 1000)
    chance = random.Random(seed)
    size = chance.choice([5_000, 20_000, 60_000])
    budget = Budget(size)
    remotes = [Remote(budget, number, chance.choice([500, 1000, 4000])) for number in range(chance.randint(1, 6))]
    for _ in range(300):
        step(chance, chance.choice(remotes))
        check_bound(size, remotes)
    for remote in remotes:
        remote.awaited = False
    for _ in range(40):  # nothing but what is asked for is taken
        one = chance.choice(remotes)
        one.wait()
        while not one.untaken:
            if not one.sending:
                one.begin(chance.randint(0, 3), chance.choice(SIZES))
            for remote in remotes:
                lanes = list(remote.sending) or [0]
                moved = [remote.send(lane, chance.choice(SIZES)) for lane in lanes]
                assert remote is not one or any(moved) or one.untaken, "the peer that is waited for is stuck"
            check_bound(size, remotes)
        one.awaited = False
        one.take()


def step(chance: random.Random, remote: Remote) -> None:
    kind = chance.random()
    lane = chance.randint(0, 3)
    if kind < 0.5:
        remote.send(lane, chance.choice(SIZES), chance.choice([1, 1000, 2**62]))
    elif kind < 0.55 and remote.sending.get(lane) and remote.session.receivers[lane].partial:
        remote.drop(lane)
    elif kind < 0.7 and remote.untaken:
        remote.take()
    elif kind < 0.9:
        remote.wait()
        remote.awaited = chance.random() < 0.5
    elif kind < 0.95:
        remote.lose_link(long=chance.random() < 0.5)
        remote.reconnect()


def check_bound(size: int, remotes: list[Remote]) -> None:
    """The budget, a credit for each lane, and a message for each peer that was waited for."""
    for remote in remotes:
        remote.asked &= bool(remote.awaited or remote.here)
    one = max(SIZES) + OVERHEAD
    lanes = sum(len(remote.session.receivers) for remote in remotes)
    bound = max(size, size // 2 + one) + 1000 * lanes + one * sum(remote.asked for remote in remotes)
    assert sum(remote.here for remote in remotes) <= bound
