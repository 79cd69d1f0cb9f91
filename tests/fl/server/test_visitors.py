"""A client that only asks what tasks are like gets the answer, and no task."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fl
import netq
from fl.envelope import Describe
from fl.messages import MESSAGES, Description, Reply, Task
from fl.server import members
from tests.fl.federation import SHORT, SOON, Federation, adds, reply

MODEL = {"w": np.ones((3, 2), np.float32), "count": np.array(5)}
ID = uuid.UUID(int=9)


@contextlib.contextmanager
def visitor(federation: Federation, id: uuid.UUID = ID) -> Iterator[netq.Communicator]:
    options = netq.CommunicatorOptions(id=id, netloc=federation.server.netloc, serialization=MESSAGES)
    with netq.new(purpose="client", options=options) as queue:
        queue.put(Describe("a test"))
        yield queue


def described(queue: netq.Communicator) -> Description:
    found = queue.get(timeout=SOON).data
    assert isinstance(found, Description)
    return found


def test_server_describes_its_task_while_it_waits() -> None:
    with Federation(MODEL, config={"rate": 0.5}, strategy=fl.FedAvg(compression="int8")) as federation:
        waiting = federation.start(federation.server.wait, 2)
        with visitor(federation) as queue:
            found = described(queue)
        federation.join(uuid.uuid4(), adds(1))
        federation.join(uuid.uuid4(), adds(1))
        waiting.result(SOON)
    assert found.tensors == {"w": ((3, 2), "float32", False), "count": ((), "int64", False)}
    assert (found.round, found.config, found.compression["dtype"]) == (1, {"rate": 0.5}, "int8")
    assert abs(found.time - time.time()) < SOON


def test_visitor_gets_no_task() -> None:
    with Federation(min_clients=1) as federation:
        federation.join(uuid.UUID(int=1), adds(1))
        federation.server.wait(1, SOON)
        waiting = federation.start(federation.server.wait, 3)
        with visitor(federation) as queue:
            described(queue)
            assert federation.server.clients == (uuid.UUID(int=1),)
            assert federation.round(1).clients == (uuid.UUID(int=1),)
            assert not waiting.done()
            with pytest.raises(TimeoutError):
                queue.get(timeout=0)
        for number in (2, 3):
            federation.join(uuid.UUID(int=number), adds(1))
        waiting.result(SOON)


def test_server_describes_its_task_between_two_attempts() -> None:
    """Rounds may not count just because of the device that is looked at."""

    def fails(model: Any, config: Any) -> fl.Update:
        raise ValueError("no data")

    def run_again() -> None:
        with contextlib.suppress(netq.Closed):  # at the end of the test
            next(rounds)

    with Federation(min_clients=1, void_pause=3 * SOON) as federation:
        federation.join(uuid.UUID(int=1), fails)
        rounds = federation.server.rounds(1)
        assert federation.start(next, rounds).result(SOON).clients == ()
        pausing = federation.start(run_again)
        with visitor(federation) as queue:
            assert described(queue).round == 1
        assert not pausing.done()


def test_server_describes_its_task_during_a_round() -> None:
    has_task, may_answer = threading.Event(), threading.Event()

    def answer(task: Task) -> list[Any]:
        has_task.set()
        assert may_answer.wait(SOON)
        return [reply(task, fl.Update(dict(task.model), 1))]

    with Federation(min_clients=1) as federation:
        federation.join_raw(uuid.UUID(int=1), answer)
        federation.server.wait(1, SOON)
        report = federation.start(federation.server.round)
        assert has_task.wait(SOON)
        with visitor(federation) as queue:
            assert described(queue).round == 1
        may_answer.set()
        assert report.result(SOON).failures == {}


def test_visitor_that_comes_again_as_a_client_gets_tasks() -> None:
    with Federation(min_clients=1) as federation:
        waiting = federation.start(federation.server.wait, 3)
        with visitor(federation) as queue:
            described(queue)
        for id in (ID, uuid.UUID(int=1), uuid.UUID(int=2)):
            federation.join(id, adds(1))
        waiting.result(SOON)
        assert ID in federation.round(3).clients


def test_many_questions_get_one_answer() -> None:
    with Federation(min_clients=1) as federation:
        federation.join(uuid.UUID(int=1), adds(1))
        waiting = federation.start(federation.server.wait, 3)
        with visitor(federation) as queue:
            for _ in range(20):
                queue.put(Describe("again"))
            described(queue)
            assert federation.round(1).clients == (uuid.UUID(int=1),)
            assert federation.server.statistics()[ID].messages_out == 1
        for number in (2, 3):
            federation.join(uuid.UUID(int=number), adds(1))
        waiting.result(SOON)


def test_attempts_that_begin_with_a_visitor_do_not_end_the_federation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its question takes longer than the server waits after its connection."""
    monkeypatch.setattr(members, "_INTRODUCTION", SHORT)
    with Federation(min_clients=2, void_rounds=1, void_pause=0) as federation:
        federation.join(uuid.UUID(int=1), adds(1))
        rounds = federation.server.rounds(1)
        for number in (10, 11, 12):
            options = netq.CommunicatorOptions(
                id=uuid.UUID(int=number), netloc=federation.server.netloc, serialization=MESSAGES
            )
            with netq.new(purpose="client", options=options) as queue:
                report = federation.start(next, rounds)
                assert isinstance(queue.get(timeout=SOON).data, Task)
                queue.put(Describe("a test"))
                described(queue)
                task = federation.server._members.busy[queue.id]
                queue.put(Reply(task, "this is a test, which does no tasks"))
                assert report.result(SOON).clients == ()
        federation.join(uuid.UUID(int=2), adds(1))
        assert next(rounds).clients


def test_question_of_an_earlier_session_is_none_of_the_next() -> None:
    with Federation(min_clients=1) as federation:
        options = netq.CommunicatorOptions(id=ID, netloc=federation.server.netloc, serialization=MESSAGES)
        with netq.new(purpose="client", options=options) as queue:
            queue.put(Describe("the server is busy")).result(SOON)
        federation.join(ID, adds(1))
        until = time.monotonic() + SOON
        while ID not in federation.server.statistics():
            assert time.monotonic() < until
            threading.Event().wait(0.01)
        assert federation.round(1).clients == (ID,)


class Failing(fl.FedAvg):
    fails = True

    def config(self, number: int) -> dict[str, Any]:
        if self.fails:
            raise IndexError(number)
        return {}


def test_strategy_that_fails_does_not_stop_the_server(caplog: pytest.LogCaptureFixture) -> None:
    strategy = Failing()
    with Federation(min_clients=1, strategy=strategy) as federation:
        waiting = federation.start(federation.server.wait, 3)
        with visitor(federation) as queue:
            until = time.monotonic() + SOON
            while "the next task cannot be described" not in caplog.text:
                assert time.monotonic() < until
                with pytest.raises(TimeoutError):
                    queue.get(timeout=0.05)
        strategy.fails = False
        for number in (1, 2, 3):
            federation.join(uuid.UUID(int=number), adds(1))
        waiting.result(SOON)
        assert len(federation.round(3).clients) == 3
