"""A model of a server and its clients with random delays, stalls and losses: all messages arrive, in order."""

from __future__ import annotations

import random
import uuid
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import pytest

from netq.mqtt import packet
from netq.mqtt.congestion import INITIAL_SIZE, CongestionControl
from netq.mqtt.multicast.group import UNICAST, WINDOW, Block
from netq.mqtt.multicast.groups import Groups
from netq.mqtt.multicast.reorder import MAX_BLOCKS, Receiver
from netq.mqtt.packet import PacketKind
from netq.mqtt.window import MAX_PACKETS, Window
from netq.utils.stream import Stream

SIZE = 100
BLOCKS = 30
MESSAGE = Stream([bytes(BLOCKS * SIZE)])


class Put(NamedTuple):
    name: int
    audience: tuple[uuid.UUID, ...]

    def block(self, number: int) -> Block:
        data = f"{self.name}.{number}".encode()
        return Block(MESSAGE, number * SIZE, self.audience, [memoryview(data)])


class Link:
    """Both ends of one link: the member at the server, and the receiver at the client."""

    congestion = CongestionControl(INITIAL_SIZE)  # of full size

    def __init__(self, server: Server, id: uuid.UUID, todo: list[tuple[Put, int]]) -> None:
        self.server = server
        self.id = id
        self.window = Window(MAX_PACKETS)
        self.todo = deque(todo)
        self.got: list[bytes] = []
        self.frozen = False
        self._commands: deque[tuple[PacketKind, bytes]] = deque()
        self._way: deque[tuple[PacketKind, bytes]] = deque()  # packets to the client
        self.blocks: deque[tuple[str, bytes]] = deque()  # publications to it
        self.topics: set[str] = set()
        self._receiver = Receiver(self._subscribe, self.topics.remove)
        self._used = self._acked = 0
        self._waits = False

    def send_control(self, kind: PacketKind, group: str) -> None:
        self._commands.append((kind, bytes.fromhex(group)))

    def wake(self) -> None:
        self._waits = False

    def _subscribe(self, group: str) -> None:
        self.topics.add(group)
        self.server.groups.joined(self, group)

    def turn(self) -> bool:
        """Send one packet, if there is one and credit for it."""
        if self.window.sent - self._acked >= MAX_PACKETS or (self._waits and not self._commands):
            return False
        if self._commands:
            self._way.append(self._commands.popleft())
        elif self.todo:
            block = self.todo[0][0].block(self.todo[0][1])
            reference = self.server.groups.refer(self, block)
            self._waits = reference is None
            if reference is None:
                return True
            self.todo.popleft()
            unicast = reference == UNICAST
            self._way.append((PacketKind.DATA, bytes(block.buffers[0])) if unicast else (PacketKind.BLOCK, reference))
            self.server.unicast += unicast
        else:
            return False
        self.window.send()
        return True

    def use(self) -> bool:
        """Let the client process one packet."""
        if self.frozen or not self._way:
            return False
        kind, body = self._way[0]
        came = packet.decode(packet.header(kind, self._used + 1, 0, 0) + body)
        if kind in (PacketKind.DATA, PacketKind.BLOCK):
            data = came.body if kind is PacketKind.DATA else self._receiver.take(came)
            if data is None:
                return False
            self.got.append(bytes(data))
        else:
            self._receiver.control(kind, packet.read_group(came))
        self._way.popleft()
        self._used += 1
        return True

    def read(self) -> bool:
        """Let the client receive one block from the broker."""
        if self.frozen or not self.blocks:
            return False
        self._receiver.put(*self.blocks.popleft())
        assert all(len(buffer._blocks) <= MAX_BLOCKS for buffer in self._receiver._buffers.values())
        return True

    def acknowledge(self) -> bool:
        if self._acked == self._used:
            return False
        self._acked = self._used
        self.server.groups.acked(self, self._acked)
        return True


class Server:
    """Groups, their broker, and links that are lost and replaced."""

    def __init__(self, clients: int, chance: random.Random) -> None:
        self.chance = chance
        self.published = self.unicast = 0
        self.timers: list[Callable[[], None]] = []
        self.groups = Groups(
            lambda audience: [link for link in self.links if link.id in audience],
            self._publish,
            lambda pause, function: self.timers.append(function),
        )
        ids = [uuid.UUID(int=number) for number in range(clients)]
        puts = [Put(name, tuple(ids[: chance.randint(2, clients)])) for name in range(3)]
        self.wanted = {id: self._mixed([put for put in puts if id in put.audience]) for id in ids}
        self.links = [Link(self, id, todo) for id, todo in self.wanted.items()]

    def step(self) -> bool:
        """Do one random action; return False if there is none."""
        actions = [action for link in self.links for action in (link.turn, link.use, link.read, link.acknowledge)]
        self.chance.shuffle(actions)
        return any(action() for action in actions)

    def tick(self) -> bool:
        timers, self.timers = self.timers, []
        for function in timers:
            function()
        return bool(timers)

    def lose(self, at: int) -> None:
        """Replace a link; the client's next one resumes."""
        old = self.links[at]
        self.links[at] = Link(self, old.id, self.wanted[old.id][len(old.got) :])
        self.links[at].got = old.got
        self.groups.lost(old)

    def _mixed(self, puts: list[Put]) -> list[tuple[Put, int]]:
        """Return the blocks of some puts, interleaved as lanes may be."""
        rest = [deque((put, number) for number in range(BLOCKS)) for put in puts]
        mixed = []
        while rest := [lane for lane in rest if lane]:
            mixed.append(self.chance.choice(rest).popleft())
        return mixed

    def _publish(self, group: str, payload: bytes) -> None:
        self.published += 1
        for link in self.links:
            if group in link.topics:
                link.blocks.append((group, payload))
                assert len(link.blocks) <= 4 * WINDOW, "the broker would have to keep them"


def assert_all_got_all(server: Server) -> None:
    for link in server.links:
        assert link.got == [f"{put.name}.{number}".encode() for put, number in server.wanted[link.id]]


def run(server: Server, *, faults: float) -> None:
    for _ in range(100_000):
        if server.chance.random() < faults:
            link = server.chance.choice(server.links)
            link.frozen = not link.frozen
        if server.chance.random() < faults / 4:
            server.lose(server.chance.randrange(len(server.links)))
        if not server.step() and not server.tick():
            if not any(link.frozen for link in server.links):
                return
            for link in server.links:
                link.frozen = False
    raise AssertionError("there is no end to it")


@pytest.mark.parametrize("faults", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("seed", range(30))
def test_random_losses_and_stalls_lose_nothing(seed: int, faults: float) -> None:
    chance = random.Random(seed)
    server = Server(chance.randint(2, 6), chance)
    run(server, faults=faults)
    assert_all_got_all(server)


@pytest.mark.parametrize("seed", range(10))
def test_message_is_published_once_without_losses(seed: int) -> None:
    server = Server(2, random.Random(seed))
    put = Put(0, tuple(uuid.UUID(int=number) for number in range(5)))
    server.wanted = {id: [(put, number) for number in range(BLOCKS)] for id in put.audience}
    server.links = [Link(server, id, todo) for id, todo in server.wanted.items()]
    run(server, faults=0.0)
    assert_all_got_all(server)
    assert (server.published, server.unicast) == (BLOCKS, 0)
