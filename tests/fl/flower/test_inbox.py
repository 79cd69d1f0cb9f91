"""A node's inbox in its conversation: each message gets its reply, and a missing app is asked for once."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict

import netq
from fl.conversation import Conversation, KnownServer
from fl.envelope import End, Finished, Leave
from fl.flower import messages
from fl.flower.envelope import ENVELOPES, RAISED, UNAVAILABLE, VERSION, Failure, Fetch, Files, OtherApp
from fl.flower.inbox import Inbox
from fl.flower.messages import MESSAGES, Ask, Reply, read
from fl.membership import Membership
from netq.testing.log import LogRecorder
from tests.fl.flower.federation import QUICK, SOON, at

RUN = 7
NODE = uuid.UUID(int=5)


class Session:
    """Both ends of a session: what the test puts for the grid, and the conversation of the node."""

    def __init__(self, grid: netq.Communicator, node: netq.Communicator) -> None:
        self._grid = grid
        self._node = node
        self.membership = Membership("run", None, [grid.netloc])
        self.membership.connected(grid.id)

    def converse(self, version: str = "", has: Callable[[str], bool] | None = None, **options: Any) -> Conversation:
        inbox = Inbox(self._node, version, has, **options)
        return Conversation(self._node, self.membership, KnownServer(), inbox=inbox)

    def ask(self, batch: int, app: str = "") -> None:
        self.send(Ask(batch, RUN, {}, "query", "", 0.0, 60.0, app, RecordDict()))

    def send(self, plain: Any) -> None:
        self._grid.put(plain, NODE).result(SOON)

    def sent(self) -> Any:
        """Return what the node has sent next."""
        return read(self._grid.get(timeout=SOON).data)


@pytest.fixture
def session() -> Iterator[Session]:
    begun: SimpleQueue[uuid.UUID] = SimpleQueue()
    limited, events = replace(QUICK, message_size=10_000), netq.EventOptions(ini=begun.put)
    options = at(("127.0.0.1", 0), serialization=MESSAGES, connection=limited, events=events)
    with netq.new(purpose=netq.Purpose.SERVER, options=options) as grid:
        options = at(grid.netloc, NODE, serialization=ENVELOPES)
        with netq.new(purpose=netq.Purpose.CLIENT, options=options) as node:
            assert begun.get(timeout=SOON) == NODE
            yield Session(grid, node)


def next_of(conversation: Conversation) -> Any:
    task = conversation.next_task()
    assert task is not None
    return task


def batch_of(task: Any) -> int:
    run, batch = task.job
    assert run == RUN
    return int(batch)


def finished(task: Any, reply: Any) -> Finished:
    message = MESSAGES.dump(reply)
    return Finished(task.job, message, message.nbytes)


def test_messages_are_returned_oldest_first_until_the_end(session: Session) -> None:
    conversation = session.converse()
    for batch in (3, 1, 2):
        session.ask(batch)
    session.send(End(0))
    found = []
    while (task := conversation.next_task()) is not None:
        found.append(batch_of(task))
        conversation.reply(task, f"no {found[-1]}")
    assert found == [3, 1, 2]
    assert session.membership.over
    assert [session.sent() for _ in found] == [Failure(batch, f"no {batch}") for batch in found]


def test_reply_that_has_arrived_is_delivered(session: Session) -> None:
    conversation = session.converse()
    session.ask(1)
    task = next_of(conversation)
    assert conversation.delivered is None
    delivery = conversation.reply(task, finished(task, Reply(1, RecordDict())))
    assert session.sent() == Reply(1, RecordDict())
    assert delivery is not None
    delivery.result(SOON)
    deadline = time.monotonic() + SOON
    while conversation.delivered is None and time.monotonic() < deadline:
        pass  # the conversation is told in a thread of netq, which may be later
    assert conversation.delivered == (RUN, 1)


def test_reply_that_is_too_large_is_replaced_by_the_reason(session: Session) -> None:
    conversation = session.converse()
    session.ask(1)
    task = next_of(conversation)
    conversation.reply(task, finished(task, np.zeros(10_000)))
    failure = session.sent()
    assert (failure.batch, failure.code) == (1, RAISED)
    assert failure.reason.startswith("its answer cannot be sent: ")
    assert conversation.delivered is None


def test_missing_app_is_fetched_once_and_its_messages_wait(session: Session) -> None:
    here = {"a"}
    conversation = session.converse(has=here.__contains__)
    for batch, app in ((1, "b"), (2, "a"), (3, "b"), (4, "c")):
        session.ask(batch, app)
    for version in ("b", "c", "d"):  # it has not asked for the last one
        session.send(messages.Files(version, None, b""))
    first, files = conversation.next_task(), conversation.next_task()
    assert batch_of(first) == 2
    assert isinstance(files, Files)
    here.add(files.version)
    conversation.reply(files, finished(files, None))
    assert [batch_of(conversation.next_task()) for _ in range(2)] == [1, 3]
    refused = conversation.next_task()
    assert isinstance(refused, Files)
    with LogRecorder() as log:
        conversation.reply(refused, "this node refuses the app c")
        session.ask(5, "c")
        session.ask(6)
        here.add("")
        assert batch_of(conversation.next_task()) == 6
        assert log.having("the files of the app d, for which this node did not ask")
    assert [session.sent() for _ in range(4)] == [
        Fetch("b"),
        Fetch("c"),
        Failure(4, "this node refuses the app c"),
        Fetch("c"),  # for the next message: the server may deliver another one by then
    ]


def test_a_step_of_secure_aggregation_does_not_wait_for_an_app(session: Session) -> None:
    conversation = session.converse(has=lambda _: False)
    session.ask(1, "b")
    session.send(Ask(2, RUN, {}, "query", "", 0.0, 60.0, "", RecordDict(), secure={"step": "keys"}))
    assert batch_of(next_of(conversation)) == 2
    assert session.sent() == Fetch("b")


@pytest.mark.parametrize(("room", "kept"), [(2**30, 100), (615, 3), (1, 1)], ids=["count", "bytes", "one"])
def test_messages_that_wait_for_an_app_are_bounded(session: Session, room: int, kept: int) -> None:
    here = {""}
    conversation = session.converse(has=here.__contains__, room=room)
    for batch in range(110):
        session.ask(batch, "b")  # 205 to 207 bytes
    session.send(messages.Files("b", None, b""))
    files = next_of(conversation)
    assert session.sent() == Fetch("b")
    for batch in range(kept, 110):
        refused = session.sent()
        assert (refused.batch, refused.code) == (batch, UNAVAILABLE)
        assert refused.reason.startswith(f"node {NODE}: {kept} messages of ")
        assert refused.reason.endswith(" bytes wait here for the files of apps already")
    conversation.reply(files, finished(files, None))
    assert [batch_of(next_of(conversation)) for _ in range(kept)] == [*range(kept)]


def test_other_version_is_reported_once(session: Session) -> None:
    conversation = session.converse(version="mine")
    for batch, app in enumerate(("", "mine", "theirs", "theirs")):
        session.ask(batch, app)
    assert [batch_of(conversation.next_task()) for _ in range(4)] == [0, 1, 2, 3]
    conversation.leave("it is too hot")
    assert [session.sent() for _ in range(2)] == [OtherApp("mine"), Leave("it is too hot")]


def test_unreadable_message_is_reported_without_its_batch(session: Session) -> None:
    conversation = session.converse()
    session.send({"type": "Ask", "protocol": "netq-flower/1"})
    session.ask(2)
    assert batch_of(conversation.next_task()) == 2
    failure = session.sent()
    assert (failure.batch, failure.code) == (None, UNAVAILABLE)
    reason = f"cannot read what it was sent: the version of a message: expected {VERSION}; install the same netq"
    assert failure.reason == f"node {NODE}: {reason}"


def test_unreadable_messages_are_one_line(session: Session) -> None:
    conversation = session.converse()
    with LogRecorder() as log:
        for _ in range(50):
            session.send(("hello",))
        session.ask(2)
        assert batch_of(conversation.next_task()) == 2
        assert len(log.having("a message of the grid cannot be read", logging.INFO)) == 1
        assert len(log.having("a message of the grid cannot be read")) == 50


def test_idle_is_called_before_each_wait(session: Session) -> None:
    def idle() -> float:
        calls.append(None)
        if len(calls) == 3:
            raise KeyError
        return 0.0

    calls: list[None] = []
    with pytest.raises(KeyError):
        session.converse().next_task(idle)
