"""Tests of fl/conversation.py: which tasks a client does, and which replies it sends."""

from __future__ import annotations

import logging
import uuid
from concurrent.futures import Future
from typing import Any, NamedTuple

import pytest

import netq
from fl.conversation import Conversation, KnownServer
from fl.envelope import Finished, Job, Offer, Permit, Task
from netq.utils.stream import Stream

SERVER = uuid.UUID(int=1)
NOTHING = Stream()


class Message(NamedTuple):
    peer: uuid.UUID
    data: Any


class Queue:
    """A communicator whose messages the test gives. What is put is in `sent`, with its future."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.sent: list[tuple[Any, Future[None]]] = []

    def get(self, timeout: float | None) -> Message:
        if not self.waiting:
            raise TimeoutError if timeout == 0 else netq.Closed(SERVER, "the session is over")
        return Message(SERVER, self.waiting.pop(0))

    def put(self, data: Any) -> Future[None]:
        self.sent.append((data, Future()))
        return self.sent[-1][1]

    def statistics(self) -> dict[uuid.UUID, Any]:
        return {}


class Membership:
    moves, addresses = False, ("here",)

    def until_look(self, queue: Any) -> None:
        return None

    def greet_with(self, greet: Any) -> None:
        pass

    def asked(self, peer: uuid.UUID) -> None:
        pass

    def session_ended(self, error: Exception) -> None:
        pass


def begun(link: KnownServer) -> tuple[Queue, Conversation]:
    queue = Queue()
    return queue, Conversation(queue, Membership(), link)  # type: ignore[arg-type]


def task(number: int = 1, *, counted: int = 0, answered: int = 0, deadline: float = 1e9) -> Task:
    return Task(Job(7, number, "train"), 10, counted, answered, deadline, NOTHING)


def begun_task(queue: Queue, conversation: Conversation) -> Task:
    """Give the client its first task, and return it."""
    queue.waiting = [task()]
    first = conversation.next_task()
    assert isinstance(first, Task)
    return first


def finished(each: Task, size: int = 4) -> Finished:
    return Finished(each.job, Stream([bytes(size)]), size)


def offers(queue: Queue) -> list[Offer]:
    return [data for data, _ in queue.sent if isinstance(data, Offer)]


@pytest.mark.parametrize("text", [False, True])
def test_a_task_whose_reply_is_on_its_way_is_not_done_again(text: bool) -> None:
    queue, conversation = begun(KnownServer())
    first = begun_task(queue, conversation)
    conversation.reply(first, "no memory" if text else finished(first))
    queue.waiting = [task(answered=0), task(answered=1)]
    again = conversation.next_task()
    assert again is not None
    assert again.answered == 1  # the server has it, and asks again


def test_the_next_update_to_one_model_is_another_task() -> None:
    queue, conversation = begun(KnownServer())
    first = begun_task(queue, conversation)
    conversation.reply(first, finished(first))
    queue.waiting = [task(counted=1, answered=1)]
    assert conversation.next_task() == task(counted=1, answered=1)


def test_a_reply_that_was_not_delivered_does_not_count() -> None:
    link = KnownServer()
    queue, conversation = begun(link)
    first = begun_task(queue, conversation)
    conversation.reply(first, finished(first))
    queue.sent[-1][1].set_exception(netq.Closed(SERVER, "the session is over"))
    queue, conversation = begun(link)
    queue.waiting = [task()]
    assert conversation.next_task() == task()


def test_a_delivered_reply_counts_in_the_next_session() -> None:
    link = KnownServer()
    queue, conversation = begun(link)
    first = begun_task(queue, conversation)
    conversation.reply(first, finished(first))
    queue.sent[-1][1].set_result(None)
    queue, conversation = begun(link)
    queue.waiting = [task(), task(2)]
    assert conversation.next_task() == task(2)


def test_an_offered_reply_is_offered_to_the_next_attempt() -> None:
    queue, conversation = begun(KnownServer())
    first = begun_task(queue, conversation)
    conversation.reply(first, finished(first, 100))
    queue.waiting = [task(), Permit(first.job)]
    assert conversation.next_task() is None
    assert [each.size for each in offers(queue)] == [100, 100]
    assert queue.sent[-1][0].nbytes == 100


@pytest.mark.parametrize("size", [4, 100])
def test_a_task_under_masks_is_done_again_in_each_attempt(size: int) -> None:
    """The vector of the attempt before fits no other one, offered or on its way."""
    queue, conversation = begun(KnownServer())
    again = task()._replace(is_secure=True)
    queue.waiting = [again]
    first = conversation.next_task()
    assert first == again
    conversation.reply(first, finished(first, size))
    count = len(queue.sent)
    queue.waiting = [again, Permit(first.job)]
    assert conversation.next_task() == again
    queue.waiting = [Permit(first.job)]
    assert conversation.next_task() is None
    assert len(queue.sent) == count  # the permit was for what is dropped


def test_an_offered_reply_is_dropped_with_its_round() -> None:
    queue, conversation = begun(KnownServer())
    first = begun_task(queue, conversation)
    conversation.reply(first, finished(first, 100))
    queue.waiting = [task(2), Permit(first.job)]
    assert conversation.next_task() == task(2)
    assert len(offers(queue)) == len(queue.sent) == 1


def test_a_reply_after_the_deadline_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    queue, conversation = begun(KnownServer())
    with caplog.at_level(logging.WARNING):
        for number, deadline in ((1, 0.0), (2, 0.0), (3, 1e9), (4, 0.0)):
            queue.waiting = [task(number, deadline=deadline)]
            each = conversation.next_task()
            assert each is not None
            conversation.reply(each, finished(each))
    assert [line.getMessage()[:41] for line in caplog.records] == [
        f"round {number}: train: the reply was ready after" for number in (1, 4)
    ]
