"""Receivers of one budget, driven at random: the counts stay exact, and every claim is granted in the end."""

from __future__ import annotations

import random

import pytest

from netq.protocol import flow_control as budget_module
from netq.protocol.flow_control import Budget
from netq.protocol.memory import Memory
from netq.protocol.receiver import Receiver
from netq.protocol.wire import OVERHEAD, Frame, FrameKind

SIZES = (0, 1, 10, 300, 900, 1500, 5000, 15_000, 40_000)
LARGEST = max(SIZES)


class Peer:
    """A receiver, and what its peer and its user do to it."""

    def __init__(self, budget: Budget, chance: random.Random) -> None:
        self._budget = budget
        self._chance = chance
        self.receivers: list[Receiver] = []  # the last is that of the session
        self._up = True
        self._size: int | None = None  # of the message that is on its way
        self._untaken: list[tuple[Receiver, int, int]] = []  # messages: where from, their number, what they count
        self._costs: dict[tuple[Receiver, int], int] = {}  # what each of them counts by itself
        self._begin()

    def step(self) -> None:
        chance = self._chance.random()
        if chance < 0.5:
            self.send(self._chance.random() < 0.5)
        elif chance < 0.55 and self._up and self._size is not None:
            self._receiver.dropped(Frame(FrameKind.DROP, number=self._receiver.held + 1, value=self._size))
            self._size = None
        elif chance < 0.75:
            self.take(self._chance.randint(0, len(self._untaken)))
        elif chance < 0.82:
            self._receiver.pause()
            self._up = False
            if not self._receiver.partial:
                self._size = None
        elif chance < 0.86 and not self._up:
            self._receiver.reclaim()
        elif chance < 0.98:
            self.reconnect()
        elif chance < 0.985:
            self._receiver.retire()
            self._begin()

    def send(self, part: bool = False) -> None:
        """Let the next bytes come that may."""
        if not self._up:
            return
        receiver = self._receiver
        if self._size is None:
            self._size = self._chance.choice(SIZES)
        room = receiver.limit - receiver.start - receiver.partial
        if room <= 0:
            return
        length = min(room, self._size - receiver.partial)
        length = self._chance.randint(1, length) if part and length else length
        receiver.place(Frame(FrameKind.MSG, length=length, number=receiver.held + 1, value=self._size))
        if receiver.received(length) is not None:
            self._mark += self._size + OVERHEAD
            self._untaken.append((receiver, receiver.held, self._mark))
            self._costs[receiver, receiver.held] = self._size + OVERHEAD
            self._size = None

    def take(self, count: int) -> None:
        for receiver, _, mark in self._untaken[:count]:
            receiver.taken_room = mark
            receiver.release_room()
        del self._untaken[:count]

    def reconnect(self) -> None:
        if not self._up:
            self._receiver.resume()
            self._up = True

    def end(self) -> None:
        self._receiver.retire()
        self.take(len(self._untaken))

    def finish(self) -> bool:
        """Send what has begun and take all; return whether nothing is under way."""
        self.take(len(self._untaken))
        self.reconnect()
        if self._size is not None:
            self.send()
        return self._size is None and not self._untaken

    def here(self, receiver: Receiver) -> int:
        """The bytes of a receiver that are here."""
        costs = [self._costs[whose, number] for whose, number, _ in self._untaken if whose is receiver]
        return sum(costs) + receiver.partial

    @property
    def _receiver(self) -> Receiver:
        return self.receivers[-1]

    def _begin(self) -> None:
        window = self._chance.choice([500, 1000, 4000, 20_000])
        self.receivers.append(Receiver(0, window, Memory(budget=self._budget), merge=self._chance.random() < 0.5))
        self._up = True
        self._size = None
        self._mark = 0  # what the messages count that have come


@pytest.mark.parametrize("seed", range(150))
def test_counts_stay_exact_and_every_claim_is_granted(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netq.protocol.receiver.CREDIT", 1000)
    assert budget_module.CREDIT > LARGEST, "else this would not need to be made smaller"
    chance = random.Random(seed)
    size = chance.choice([20_000, 60_000, 200_000])
    budget = Budget(size)
    peers = [Peer(budget, chance) for _ in range(chance.randint(1, 6))]
    for _ in range(600):
        chance.choice(peers).step()
        everyone = [(peer, receiver) for peer in peers for receiver in peer.receivers]
        assert budget.lent == sum(receiver._lent for _, receiver in everyone) <= size // 2
        assert budget.claimed == sum(receiver.claimed for _, receiver in everyone)
        for peer, receiver in everyone:
            counted = receiver._credit + receiver._lent + receiver.claimed
            assert peer.here(receiver) <= counted + OVERHEAD, "more is here than is counted"
    for _ in range(200):
        finished = [peer.finish() for peer in peers]
        if all(finished):
            break
    else:
        pytest.fail("a claim is never granted")
    for peer in peers:
        peer.end()
    assert (budget.lent, budget.claimed, budget.orphaned) == (0, 0, 0)
