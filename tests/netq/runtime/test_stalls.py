"""What the log says when messages do not come: once, and nothing while something moves."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from netq.io.loop import Loop
from netq.protocol.flow_control import Budget
from netq.runtime.inbox import Inbox, Waiter
from netq.runtime.peer import Peer
from netq.runtime.stalls import AbsentPeers, FullMemory
from netq.testing.log import LogRecorder
from tests.netq.protocol.test_awaited import LARGE, SIZE, Remote

A, B = uuid.UUID(int=1), uuid.UUID(int=2)


class ALoop:
    """A loop whose deferred calls run at once."""

    def __init__(self) -> None:
        self.baton = self

    def defer(self, function: Callable[..., object], *args: object) -> None:
        function(*args)


class Watched:
    """Peers of one budget, and the watch of that."""

    def __init__(self) -> None:
        loop, self.budget = cast(Loop, ALoop()), Budget(SIZE)
        self.remotes = [Remote(self.budget, number) for number in (1, 2)]
        self._peers = [cast(Peer, SimpleNamespace(loop=loop, session=remote.session)) for remote in self.remotes]
        self._watch = FullMemory(loop, self.budget)

    def look(self, times: int = 1) -> list[str]:
        """Look so often, and return the warnings."""
        with LogRecorder() as log:
            for _ in range(times):
                self._watch.look(self._peers)
            return log.having("", logging.WARNING)


@pytest.fixture
def watched() -> Watched:
    """Two peers. A message of the first is here and not taken; the second has begun one, and waits."""
    watched = Watched()
    reads, waits = watched.remotes
    reads.begin()
    reads.send(0, LARGE)
    waits.begin()
    return watched


def test_full_memory_is_told_once(watched: Watched) -> None:
    assert watched.look() == []
    (line,) = watched.look(5)
    assert line == (
        f"memory is full: {B} cannot send the rest of a message. 1.5 MiB of other messages, of 1 peers, are here, "
        "and no `get` takes them; 0.0 MiB more are parts of messages. Take messages of the other peers, too, or set a "
        "larger `memory` than 2.5 MiB"
    )


def test_full_memory_is_told_again_the_next_time(watched: Watched) -> None:
    reads, waits = watched.remotes
    assert len(watched.look(3)) == 1
    reads.take()
    waits.send(0, LARGE)
    assert watched.look(3) == []
    reads.begin()
    assert len(watched.look(3)) == 1


def test_memory_in_use_is_not_told(watched: Watched) -> None:
    reads, waits = watched.remotes
    for _ in range(5):
        assert watched.look() == []
        reads.take()
        waits.send(0, LARGE)
        reads, waits = waits, reads
        waits.begin()


def test_message_that_arrives_slowly_is_not_told(watched: Watched) -> None:
    _, waits = watched.remotes
    for _ in range(5):
        assert watched.look() == []
        waits.send(0, LARGE, 10)


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def lines(watch: AbsentPeers, peers: dict[Any, Any], times: int = 1) -> list[str]:
    with LogRecorder() as log:
        for _ in range(times):
            watch.look(peers.values())
        return log.having("get waits", logging.WARNING)


def peer(id: uuid.UUID, *, connected: bool) -> dict[Any, Any]:
    return {id: SimpleNamespace(id=id, link=object() if connected else None)}


def test_get_of_absent_peer_is_told_once(inbox: Inbox) -> None:
    watch = AbsentPeers(inbox)
    inbox.enter(Waiter((A, B), lambda: None))
    assert lines(watch, peer(A, connected=False)) == []
    assert lines(watch, peer(A, connected=False), 5) == [
        f"get waits for {A} and 1 other: not connected; it goes on when one connects"
    ]


def test_get_of_absent_peer_is_told_again_the_next_time(inbox: Inbox) -> None:
    watch, thread = AbsentPeers(inbox), object()
    for _ in range(2):
        inbox.begin_polling(thread, (A,))
        assert len(lines(watch, {}, 5)) == 1
        assert lines(watch, peer(A, connected=True)) == []
    inbox.end_polling(thread)
    assert lines(watch, {}, 5) == []


def test_get_with_one_connected_peer_is_not_told(inbox: Inbox) -> None:
    inbox.enter(Waiter((A, B), lambda: None))
    assert lines(AbsentPeers(inbox), peer(B, connected=True), 5) == []


def test_get_of_any_peer_is_not_told(inbox: Inbox) -> None:
    inbox.enter(Waiter((), lambda: None))
    assert lines(AbsentPeers(inbox), {}, 5) == []
