"""When a message that is put leaves: at once, or with others."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from netq.errors import Closed
from netq.options import ConnectionOptions
from netq.protocol.codec import Outgoing
from netq.protocol.memory import Memory
from netq.protocol.sender import SMALL as LARGEST_SMALL
from netq.protocol.session import Session
from netq.runtime.peer import Peer

SMALL = bytes(64)


class ALoop:
    """Notes what a peer asks of its loop."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.baton = self
        self.unflushed: dict[object, float] = {}
        self.needs_wake = False

    def call(self, function: Callable[..., object], *args: object) -> None:
        self.asked.append("call")

    def try_run(self, function: Callable[[], object]) -> bool:
        self.asked.append("try_run")
        worker = cast(Any, function).__self__
        self.unflushed.pop(worker, None)
        for sender in worker.session.senders.values():
            sender.sent.extend(worker.session.outbox)
        worker.session.outbox.clear()
        return True

    def flush_later(self, worker: Peer, *, more: bool = False) -> None:
        self.asked.append("flush_later")
        self.unflushed.setdefault(worker, 0.0)

    def flush_soon(self, worker: Peer) -> None:
        self.asked.append("flush_soon")
        self.unflushed[worker] = -math.inf


class Failing(Outgoing):
    """Notes its failure."""

    def __init__(self, data: bytes, failed: list[Exception]) -> None:
        super().__init__(data)
        self._failed = failed

    def fail(self, error: Exception) -> bool:
        self._failed.append(error)
        return True


@pytest.fixture
def loop() -> ALoop:
    return ALoop()


@pytest.fixture
def peer(loop: ALoop) -> Peer:
    options = ConnectionOptions()
    session = Session(b"token", options, Memory())
    session.senders[0] = session._sender(0)
    peer = Peer(cast(Any, None), cast(Any, loop), options, session)
    peer.link = cast(Any, SimpleNamespace(inline=True, connection=SimpleNamespace(open=True)))
    return peer


def post(peer: Peer, count: int = 1, data: bytes = SMALL, **options: Any) -> None:
    for _ in range(count):
        peer.post(Outgoing(data, **options))


def test_a_message_leaves_at_once(peer: Peer, loop: ALoop) -> None:
    post(peer)
    assert (loop.asked, len(peer.session.outbox)) == (["try_run"], 0)


def test_a_message_leaves_at_once_though_an_ack_waits(peer: Peer, loop: ALoop) -> None:
    loop.flush_later(peer)  # what has come has not been acknowledged yet
    post(peer)
    assert (loop.asked, len(peer.session.outbox)) == (["flush_later", "try_run"], 0)


def test_messages_behind_unacknowledged_ones_wait_for_more(peer: Peer, loop: ALoop) -> None:
    post(peer, 4)
    loop.asked.clear()
    post(peer, 20)
    assert (loop.asked, len(peer.session.outbox)) == (["flush_later"], 20)
    post(peer, 44)
    assert (loop.asked, len(peer.session.outbox)) == (["flush_later", "try_run"], 0)


def test_a_loop_parked_for_long_is_woken_each_time(peer: Peer, loop: ALoop) -> None:
    post(peer, 4)
    loop.asked.clear()
    loop.needs_wake = True  # another thread may not have woken it yet
    post(peer, 3)
    assert loop.asked == ["flush_later"] * 3


def test_a_message_to_several_peers_waits_for_more(peer: Peer, loop: ALoop) -> None:
    audience = uuid.uuid4(), uuid.uuid4()
    post(peer, data=bytes(LARGEST_SMALL + 1), audience=audience)
    post(peer, 62, audience=audience)
    assert (loop.asked, len(peer.session.outbox)) == (["flush_later"], 63)
    post(peer, audience=audience)
    assert (loop.asked, len(peer.session.outbox)) == (["flush_later", "try_run"], 0)


def test_a_large_message_leaves_at_once(peer: Peer, loop: ALoop) -> None:
    post(peer, 4)
    loop.asked.clear()
    post(peer, data=bytes(LARGEST_SMALL + 1))
    assert loop.asked == ["try_run"]


@pytest.mark.parametrize("gone", [True, False])
def test_the_loops_thread_sends_without_an_inline_link(peer: Peer, loop: ALoop, gone: bool) -> None:
    if gone:
        peer.link = None
    else:
        cast(Any, peer.link).inline = False
    post(peer)
    assert loop.asked == ["flush_soon"]


def test_a_message_that_still_waits_in_the_outbox_fails_at_the_end(peer: Peer) -> None:
    peer._listener = cast(Any, SimpleNamespace(ended=lambda peer, error: None))
    peer.link = None
    failed: list[Exception] = []
    message = Failing(SMALL, failed)
    peer.session.outbox.append(message)
    peer.end(Closed(None, "the end"))
    assert [str(error) for error in failed] == [str(Closed(None, "the end"))]
