"""Which clients are asked, which answers count, when a round ends, and when clients may send."""

from __future__ import annotations

import itertools
import math
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fl
import netq
from fl.envelope import Introduction, Job, Offer, Permit
from fl.messages import MESSAGES, Reply, Report, Task, Update
from fl.properties import title
from netq.testing.proxy import Proxy
from tests.fl.federation import IDS, QUICK, SHORT, SOON, A, B, C, D, Federation, adds, at, filled, gives, reasons, reply


class Gate:
    """A client whose training the test releases. `begun` counts the trainings that have started."""

    def __init__(self, value: float) -> None:
        self._value = value
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.rounds: list[int] = []

    def __call__(self, model: Any, config: Mapping[str, Any]) -> Update:
        self.rounds.append(config["round"])
        self.begun.release()
        assert self.go_on.acquire(timeout=SOON)
        return Update(filled(self._value), 1)

    def let_go(self, times: int = 1) -> None:
        self.go_on.release(times)


# Enough


def test_a_round_ends_when_enough_have_answered() -> None:
    slow = Gate(100)
    with Federation(strategy=fl.FedAvg(fraction=0.5, oversample=0.5)) as federation:
        federation.join(A, gives(2))
        federation.join(B, gives(4))
        federation.join(C, slow)
        federation.server._federation.strategy.select = lambda number, clients: [A, B, C]  # type: ignore[method-assign]
        federation.server.wait(3, SOON)
        federation.join(D, gives(50))
        report = federation.round(4)
        assert set(report.clients) == {A, B}
        assert report.failures == {C: fl.ClientFailure(fl.FailureKind.LATE, "enough others had answered")}
        assert federation.w == [3] * 3
        slow.let_go(10)


# Clients that skip


def skips(model: Any, config: Mapping[str, Any]) -> fl.Skip:
    return fl.Skip("no data yet")


def test_a_client_that_skips_has_not_failed_and_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with Federation(min_clients=1, evaluate=True, suspend_after=1) as federation:
        federation.join(A, gives(2), lambda model, config: fl.Report(1))
        federation.join(B, gives(4), lambda model, config: fl.Report(0))
        federation.join(C, skips)
        for _ in range(3):
            report = federation.round(3)
            assert (set(report.clients), report.failures, report.suspended) == ({A, B}, {}, ())
            assert report.skipped == {C: "no data yet"}
            assert (report.evaluation_skipped, report.evaluation_failures) == ({B: "it has no examples"}, {})
            assert ", 0 failed, 1 skipped, 1 evaluations skipped, " in str(report)
        assert not any(each.has_missed for each in federation.server._members)
    assert "left out" not in caplog.text


def test_a_round_of_too_few_others_does_not_count_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with Federation(min_clients=2, void_rounds=2, void_pause=0) as federation:
        federation.join(A, gives(2))
        federation.join(B, skips)
        federation.server.wait(2, SOON)
        with pytest.raises(
            fl.FederationStalled, match=r"1 clients failed and 1 skipped: client 1: .*; client 2: no data yet"
        ):
            list(federation.server.rounds(1))
    assert "round 1 does not count: 1 updates of 2, 1 skipped" in caplog.messages


def test_an_asynchronous_round_asks_a_client_that_skips_once() -> None:
    asked: list[int] = []
    slow = Gate(4)

    def counts(model: Any, config: Mapping[str, Any]) -> Any:
        asked.append(config["round"])
        return fl.Update(filled(1), 1) if asked.count(config["round"]) == 1 else fl.Skip("no more")

    with Federation(strategy=fl.FedBuff(3), min_clients=1) as federation:
        federation.join(A, counts)
        federation.join(B, slow)
        slow.let_go(10)
        report = federation.round(2)
        assert report.skipped in ({}, {A: "no more"})
        assert report.failures == {}
    assert asked.count(1) <= 2


# Which rounds and clients evaluate


def evaluators(rounds: int, **settings: Any) -> list[set[uuid.UUID]]:
    """Return who has evaluated each round. An evaluation says so in its metrics."""
    with Federation(min_clients=4, void_pause=0, **settings) as federation:
        for client in IDS:
            federation.join(client, gives(1), lambda model, config: fl.Report(1, {"round": config["round"]}))
        reports = [federation.round(4) for _ in range(rounds)]
    assert all(each.evaluation == ({"round": each.number} if each.evaluation_examples else {}) for each in reports)
    return [set(each.evaluation_examples) for each in reports]


def test_every_third_round_is_evaluated() -> None:
    assert [len(each) for each in evaluators(7, evaluate={"every": 3})] == [0, 0, 4, 0, 0, 4, 0]


def test_a_fraction_of_the_clients_evaluates_and_the_seed_chooses_it() -> None:
    half: dict[str, Any] = {"evaluate": {"fraction": 0.5}}
    first = evaluators(6, **half)
    assert [len(each) for each in first] == [2] * 6
    assert len({frozenset(each) for each in first}) > 1
    assert evaluators(6, **half) == first
    assert evaluators(6, **half, strategy=fl.FedAvg(seed=1)) != first
    assert [len(each) for each in evaluators(2, evaluate={"fraction": 0.01})] == [1, 1]


@pytest.mark.parametrize(
    ("evaluate", "named"),
    [
        (1, "Server.evaluate: 1; expected True, False, or a mapping"),
        ({"every": 0}, "Server.evaluate.every: 0; expected a whole number of 1 or more"),
        ({"fraction": 0}, "Server.evaluate.fraction: 0; expected a number above 0, and 1 at most"),
        ({"fraction": float("nan")}, "Server.evaluate.fraction: nan"),
        ({"fractions": 0.5}, "Server.evaluate: 'fractions'; did you mean fraction"),
        ({7: 0.5}, "Server.evaluate: 7"),
    ],
)
def test_a_wrong_evaluation_is_refused(evaluate: Any, named: str) -> None:
    with pytest.raises(netq.InvalidOption, match=named):
        fl.Server(filled(0), evaluate=evaluate)


# Late updates


@pytest.mark.slow
def test_a_late_update_is_stale_without_staleness() -> None:
    slow = Gate(100)
    with Federation(deadline=SHORT) as federation:
        federation.join(A, gives(2))
        federation.join(B, gives(4))
        federation.join(C, slow)
        assert federation.round(3).failures[C].why is fl.FailureKind.LATE
        federation.set_deadline(3 * SOON)
        federation.server._federation.strategy.select = lambda number, clients: [A, B]  # type: ignore[method-assign]
        slow.let_go(10)
        federation.server.wait(3, SOON)
        while C not in (failures := federation.round(3).failures):
            assert federation.w == [3] * 3
        assert failures == {
            C: fl.ClientFailure(fl.FailureKind.STALE, "it answered round 1 (train), which is not waited for any more")
        }


@pytest.mark.slow
def test_a_late_update_is_discounted_by_staleness() -> None:
    slow = Gate(12)
    with Federation(strategy=fl.FedAvg(staleness=fl.polynomial(1)), deadline=SHORT) as federation:
        federation.join(A, gives(2))
        federation.join(B, gives(4))
        federation.join(C, slow)
        first = federation.round(3)
        assert (set(first.clients), first.failures[C].why) == ({A, B}, fl.FailureKind.LATE)
        second = federation.round(3)
        assert (set(second.clients), second.failures) == ({A, B}, {})  # it was not asked
        waiting = Gate(4)
        federation.set_deadline(3 * SOON)
        federation.join(D, waiting)
        federation.server.wait(4, SOON)
        slow.let_go()
        threading.Timer(SHORT, waiting.let_go).start()
        report = federation.round(4)
        assert slow.rounds == [1]
        assert set(report.clients) == {A, B, C, D}
        assert report.staleness == {C: 2}
        assert "4 clients (1 late)" in str(report)
        weight = 1 / 3  # two rounds late
        expected = (2 + 4 + 4 + weight * 12) / (3 + weight)
        assert federation.w == pytest.approx([expected] * 3)
        slow.let_go(10)
        waiting.let_go(10)


@pytest.mark.slow
def test_a_late_client_is_not_asked_again_before_it_answers() -> None:
    slow = Gate(8)
    with Federation(strategy=fl.FedAvg(staleness=lambda late: 1.0), min_clients=1, deadline=SHORT) as federation:
        federation.join(A, gives(2))
        federation.join(B, slow)
        assert federation.round(2).failures[B].why is fl.FailureKind.LATE
        for _ in range(12):
            assert federation.round(2).failures == {}
        slow.let_go()
        while B not in (report := federation.round(2)).clients:
            assert report.failures == {}
        assert report.staleness == {B: report.number - 1}
        assert slow.rounds[0] == 1
        slow.let_go(10)


# Asynchronous strategies


def test_fedasync_asks_a_client_again_when_it_has_answered() -> None:
    slow, quick = Gate(100), Gate(8)
    with Federation(strategy=fl.FedAsync(0.5, lambda late: 0.5 if late == 3 else 0.1), min_clients=1) as federation:
        federation.join(A, quick)
        federation.join(B, slow)
        federation.server.wait(2, SOON)
        values = []
        for number in (1, 2, 3):
            quick.let_go()
            report = federation.round(2)
            assert (report.number, report.clients, report.failures) == (number, (A,), {})
            values.append(federation.w[0])
        assert values == [4, 6, 7]
        slow.let_go()
        report = federation.round(2)
        assert (report.clients, report.staleness) == ((B,), {B: 3})
        assert federation.w == [7 + 0.25 * 93] * 3
        for _ in range(4):
            assert quick.begun.acquire(timeout=SOON)
        assert (quick.rounds, slow.rounds) == ([1, 2, 3, 4], [1])
        quick.let_go(10)
        slow.let_go(10)


@pytest.mark.slow
def test_a_failed_client_is_asked_again_with_the_next_model() -> None:
    asked = []

    def fails(model: Any, config: Mapping[str, Any]) -> Update:
        asked.append(config["round"])
        raise ValueError("no data")

    good = Gate(8)
    with Federation(strategy=fl.FedAsync(1.0), min_clients=1) as federation:
        federation.join(A, good)
        federation.join(B, fails)
        federation.server.wait(2, SOON)
        for number in (1, 2):
            threading.Timer(SHORT, good.let_go).start()
            report = federation.round(2)
            assert report.failures == {B: fl.ClientFailure(fl.FailureKind.FAILED, "ValueError: no data")}
            assert asked == list(range(1, number + 1))
        good.let_go(10)


@pytest.mark.slow
def test_an_asynchronous_round_without_an_update_does_not_count() -> None:
    slow = Gate(8)
    strategy = fl.FedAsync(1.0, staleness=lambda late: 1.0)
    with Federation(strategy=strategy, min_clients=1, deadline=SHORT) as federation:
        federation.join(A, slow)
        report = federation.round(1)
        assert (report.clients, federation.w) == ((), [0] * 3)
        slow.let_go()
        report = federation.round(1)
        assert (report.clients, report.staleness, federation.w) == ((A,), {}, [8] * 3), "the model is the same"
        slow.let_go(10)


# Clients that do not answer


def test_a_client_that_never_answers_is_suspended_until_it_answers() -> None:
    """Its rounds close at the deadline, later ones without waiting. Its answer in time restores it."""
    hung = Gate(6)
    states: list[fl.ClientState] = []

    class States(fl.Callback):
        def client_is(self, client: uuid.UUID, state: fl.ClientState, size: int) -> None:
            if client == B:
                states.append(state)

    with Federation(min_clients=1, deadline=SHORT, suspend_after=2, callbacks=[States()]) as federation:
        federation.join(A, gives(2))
        federation.join(B, hung)
        for number in (1, 2):
            report = federation.round(2)
            assert report.failures[B].why is fl.FailureKind.LATE
            assert report.suspended == ((B,) if number == 2 else ())
        assert states[-1] is fl.ClientState.SUSPENDED
        federation.set_deadline(3 * SOON)  # a round that waits for B fails
        for _ in range(3):
            report = federation.round(2)
            assert (report.clients, report.failures, report.suspended) == ((A,), {}, (B,))
        hung.let_go(30)
        while B in (report := federation.round(2)).suspended:
            assert report.number < 60
        assert federation.round(2).failures == {}


def test_a_suspended_client_with_a_new_session_is_asked_and_not_waited_for() -> None:
    with Federation(min_clients=1, suspend_after=1) as federation:
        federation.join(A, gives(2))
        federation.server.wait(1, SOON)
        options = replace(at(federation.server.netloc, B), serialization=MESSAGES)
        with netq.new(purpose=netq.Purpose.CLIENT, options=options) as queue:
            queue.put(Introduction({}))
            round = federation.start(federation.round, 2)
            queue.put(reply(queue.get(timeout=SOON).data, Update(filled(math.nan), 1))).result(SOON)
            assert round.result(SOON).suspended == (B,)
        gate = Gate(4)
        federation.join(B, gate)
        report = federation.round(2)
        assert (report.clients, report.suspended) == ((A,), (B,))
        gate.let_go(30)
        while B in (report := federation.round(2)).suspended:
            assert report.number < 60
        assert federation.round(2).failures == {}


def test_a_round_closes_early_without_clients_that_have_never_answered() -> None:
    silent = Gate(6)
    with Federation(min_clients=1, close_early=True) as federation:
        federation.join(A, gives(2))
        assert federation.round(1).clients == (A,)
        federation.join(B, silent)
        for _ in range(2):
            report = federation.round(2)
            assert report.clients == (A,)
            assert reasons(report) == {B: "enough others had answered"}
        silent.let_go(10)
        while B not in federation.round(2).clients:
            assert federation.server.number < 1000


@pytest.mark.slow
@pytest.mark.parametrize("purpose", ["train", "evaluate"])
def test_a_round_closes_early_without_a_client_that_answers_now_and_then(purpose: str) -> None:
    """B answers every second task. The rounds in between wait for it a second longer than it took before."""
    is_known = threading.Event()  # B has answered in time; a round does not wait for a client that never has
    tasks = itertools.count()

    def now_and_then(task: Task) -> list[Any]:
        if task.job.purpose == purpose and is_known.is_set() and next(tasks) % 2:
            return []
        content = Update(filled(4), 1) if task.job.purpose == "train" else Report(1, {"accuracy": 1.0})
        return [reply(task, content)]

    settings: Any = {"min_clients": 1, "close_early": True, "evaluate": purpose == "evaluate", "suspend_after": 20}
    with Federation(deadline=6 * SOON, **settings) as federation:  # a round that lasts until its deadline fails
        federation.join(A, gives(2), lambda model, config: Report(1, {"accuracy": 1.0}))
        federation.round(1)  # from now on, rounds wait for A
        federation.join_raw(B, now_and_then)
        while B not in (report := federation.round(2)).clients or (
            purpose == "evaluate" and B not in report.client_evaluation
        ):
            assert federation.server.number < 1000
        is_known.set()
        silences = 0
        while silences < 2:
            report = federation.round(2)
            assert A in report.clients
            assert report.seconds < SOON
            silences += report.seconds > 1.0
            assert federation.server.number < 1000


def test_a_client_that_does_not_evaluate_is_suspended_for_evaluation(caplog: pytest.LogCaptureFixture) -> None:
    def answer(task: Task) -> list[Any]:
        return [reply(task, Update(filled(4), 1))] if task.job.purpose == "train" else []

    accuracy = Report(1, {"accuracy": 1.0})
    settings: Any = {"min_clients": 2, "deadline": SHORT, "suspend_after": 1, "evaluate": True}
    with Federation(**settings) as federation:
        federation.join(A, gives(2), lambda model, config: accuracy)
        federation.join_raw(B, answer)
        federation.round(2)
        federation.set_deadline(3 * SOON)  # a round that waits for B fails
        report = federation.round(2)
        assert (set(report.clients), report.evaluation) == ({A, B}, {"accuracy": 1.0})
    lost, suspended = [each.getMessage() for each in caplog.records if each.getMessage().startswith(title(B))]
    assert lost.startswith(f"{title(B)}: left out of the evaluation: no answer within ")
    assert suspended.startswith(f"{title(B)}: suspended: no good answer to 1 of its last 8 evaluations; ")


# Permission to send


class Raw:
    """A client whose messages the test sends."""

    def __init__(self, queue: netq.Communicator) -> None:
        self._queue = queue
        queue.put(Introduction({}))  # the server waits some seconds for it

    def task(self) -> Task:
        task = self._queue.get(timeout=SOON).data
        assert type(task) is Task
        return task

    def offer(self, task: Task, size: int) -> None:
        self._queue.put(Offer(task.job, size)).result(SOON)

    def send(self, task: Task, value: float) -> None:
        self.answer(task, Update(large(value), 1))

    def answer(self, task: Task, content: Any) -> None:
        self._queue.put(reply(task, content)).result(SOON)

    def permitted(self, task: Task, within: float = SOON) -> bool:
        try:
            permit = self._queue.get(timeout=within).data
        except TimeoutError:
            return False
        assert type(permit) is Permit
        assert permit.job == task.job
        return True

    def close(self) -> None:
        self._queue.close(SOON)


SIZE = 400  # bytes of `large`


def large(value: float) -> dict[str, Any]:
    """A model of 400 bytes. A server with a limit of 1,200 has room for one update of it."""
    return {"w": np.full(100, value, np.float32)}


@contextmanager
def raw(federation: Federation, count: int) -> Iterator[list[Raw]]:
    """Raw clients, connected to the federation's server."""
    queues = []
    try:
        for id in IDS[:count]:
            options = at(federation.server.netloc, id)
            options = netq.CommunicatorOptions(options.id, options.netloc, options.connection, MESSAGES)
            queues.append(netq.new(purpose=netq.Purpose.CLIENT, options=options))
        yield [Raw(queue) for queue in queues]
    finally:
        for queue in queues:
            queue.close(0)


@pytest.mark.slow
def test_updates_are_admitted_one_by_one_in_little_memory() -> None:
    with Federation(large(0), memory_limit=1200) as federation, raw(federation, 3) as clients:
        round = federation.start(federation.round, 3)
        tasks = [client.task() for client in clients]
        assert {task.unasked for task in tasks} == {400 // 3}
        for client, task in zip(clients, tasks, strict=True):
            client.offer(task, SIZE)
        assert clients[0].permitted(tasks[0])
        assert not clients[1].permitted(tasks[1], SHORT)
        for number, (client, task) in enumerate(zip(clients, tasks, strict=True)):
            assert number == 0 or client.permitted(task)
            client.send(task, number)
        assert set(round.result(SOON).clients) == {A, B, C}
    assert federation.w == [1] * 100


def test_a_lost_client_frees_its_permit() -> None:
    with Federation(large(0), memory_limit=1200, min_clients=1) as federation, raw(federation, 2) as clients:
        round = federation.start(federation.round, 2)
        tasks = [client.task() for client in clients]
        for client, task in zip(clients, tasks, strict=True):
            client.offer(task, SIZE)
        assert clients[0].permitted(tasks[0])
        clients[0].close()
        assert clients[1].permitted(tasks[1])
        clients[1].send(tasks[1], 7)
        report = round.result(SOON)
        assert (report.clients, reasons(report)) == ((B,), {A: "it has gone"})
    assert federation.w == [7] * 100


@pytest.mark.slow
def test_a_client_that_does_not_send_lets_others_pass() -> None:
    """Its permit is a promise: its update counts, whenever it comes."""
    with Federation(large(0), memory_limit=1200, min_clients=1, grace=0.1) as federation, raw(federation, 3) as clients:
        round = federation.start(federation.round, 3)
        tasks = [client.task() for client in clients]
        for client, task in zip(clients, tasks, strict=True):
            client.offer(task, SIZE)
        assert clients[0].permitted(tasks[0])
        assert clients[1].permitted(tasks[1])
        clients[1].send(tasks[1], 7)
        assert clients[2].permitted(tasks[2])
        clients[0].send(tasks[0], 5)
        clients[2].send(tasks[2], 6)
        report = round.result(SOON)
        assert (set(report.clients), report.failures) == ({A, B, C}, {})
    assert federation.w == [6] * 100


@pytest.mark.slow
def test_an_update_that_comes_by_drops_lets_others_pass_and_counts() -> None:
    """Its first bytes take no window of others, and the link that is cut for it costs nothing."""
    megabyte = {"w": np.zeros(250_000, np.float32)}
    settings: dict[str, Any] = {"memory_limit": 3_000_000, "min_clients": 3, "grace": 0.3}
    with Federation(megabyte, **settings) as federation, ExitStack() as stack:
        proxy = stack.enter_context(Proxy(federation.server.netloc))
        slow = netq.CommunicatorOptions(A, proxy.netloc, QUICK, MESSAGES)
        queue = stack.enter_context(netq.new(purpose=netq.Purpose.CLIENT, options=slow))
        for id in (B, C):
            federation.join(id, lambda model, config: Update({"w": model["w"] + np.float32(3)}, 1))
        round = federation.start(federation.round, 3)
        client = Raw(queue)
        task = client.task()
        client.offer(task, 10**6)
        assert client.permitted(task)
        proxy.hold(300_000)
        sent = queue.put(reply(task, Update({"w": np.full(250_000, 6, np.float32)}, 1)))
        figures = federation.server.statistics
        until = time.monotonic() + SOON
        while figures()[B].messages_in < 2 or figures()[C].messages_in < 2:  # their offers, and their updates
            assert time.monotonic() < until
        proxy.release()
        report = round.result(SOON)
        assert (set(report.clients), report.failures) == ({A, B, C}, {})
        sent.result(SOON)
        assert federation.w[:2] == [4, 4]
        queue.close(0)


@pytest.mark.slow
def test_what_was_permitted_in_an_attempt_is_taken_in_the_next() -> None:
    settings: dict[str, Any] = {"memory_limit": 1200, "min_clients": 2, "deadline": 0.5}
    with Federation(large(0), **settings) as federation, raw(federation, 2) as clients:
        round = federation.start(federation.round, 2)
        first = clients[0].task()
        clients[0].offer(first, SIZE)
        assert clients[0].permitted(first)
        clients[1].send(clients[1].task(), 5)  # without an offer: it is allowed 200 bytes
        report = round.result(SOON)
        assert (report.clients, report.failures[A].why) == ((), fl.FailureKind.LATE)
        federation.set_deadline(SOON)
        round = federation.start(federation.round, 2)
        again = clients[0].task()
        assert again.job == first.job
        clients[0].send(first, 5)
        task = clients[1].task()
        clients[1].offer(task, SIZE)
        assert clients[1].permitted(task)
        clients[1].send(task, 7)
        report = round.result(SOON)
        assert (set(report.clients), report.failures) == ({A, B}, {})
    assert federation.w == [6] * 100


@pytest.mark.slow
def test_an_unused_permit_of_an_old_round_is_freed() -> None:
    settings: dict[str, Any] = {"memory_limit": 1600, "min_clients": 1, "grace": 0.1, "deadline": 1.0}
    with Federation(large(0), **settings) as federation, raw(federation, 2) as clients:
        round = federation.start(federation.round, 2)
        tasks = [client.task() for client in clients]
        clients[0].offer(tasks[0], 2 * SIZE)
        assert clients[0].permitted(tasks[0])
        clients[1].send(tasks[1], 3)
        assert round.result(SOON).clients == (B,)  # at the deadline; A keeps its place
        federation.set_deadline(SOON)
        round = federation.start(federation.round, 2)
        tasks = [client.task() for client in clients]
        clients[1].offer(tasks[1], 2 * SIZE)
        assert clients[1].permitted(tasks[1])
        clients[1].send(tasks[1], 7)
        clients[0].offer(tasks[0], 2 * SIZE)
        assert clients[0].permitted(tasks[0])
        clients[0].send(tasks[0], 9)
        assert set(round.result(SOON).clients) == {A, B}
    assert federation.w == [8] * 100


def test_an_update_larger_than_permitted_is_refused() -> None:
    with Federation(large(0), memory_limit=1200, min_clients=1) as federation, raw(federation, 3) as clients:
        round = federation.start(federation.round, 3)
        tasks = [client.task() for client in clients]
        clients[0].send(tasks[0], 1)  # without an offer
        clients[1].offer(tasks[1], 200)
        assert clients[1].permitted(tasks[1])
        clients[1].send(tasks[1], 2)  # and this is 400
        clients[2].offer(tasks[2], 400)
        assert clients[2].permitted(tasks[2])
        clients[2].send(tasks[2], 3)
        report = round.result(SOON)
        assert reasons(report) == {
            A: "it sent 400 bytes, and might send 133; expected an offer first",
            B: "it sent 400 bytes, and might send 200; expected an offer first",
        }
    assert federation.w == [3] * 100


def test_an_update_sent_without_its_permit_does_no_harm() -> None:
    settings: dict[str, Any] = {"memory_limit": 2000, "min_clients": 3, "evaluate": True, "strategy": fl.FedAsync(1.0)}
    with Federation(large(0), **settings) as federation, raw(federation, 3) as clients:
        round = federation.start(federation.round, 3)
        tasks = [client.task() for client in clients]
        clients[0].offer(tasks[0], 3 * SIZE)
        assert clients[0].permitted(tasks[0])
        clients[1].offer(tasks[1], 3 * SIZE)  # waits
        clients[2].send(tasks[2], 3)
        question = clients[2].task()
        assert question.job.purpose == "evaluate"
        clients[0].send(tasks[0], 1)
        clients[1].send(tasks[1], 2)  # during an evaluation, in which training answers are not taken
        clients[2].answer(question, fl.Report(1))
        assert round.result(SOON).clients == (C,)
        found = []
        for client in (0, 1):
            round = federation.start(federation.round, 3)
            question = clients[client].task()
            assert question.job.purpose == "evaluate"
            clients[client].answer(question, fl.Report(1))
            found += round.result(SOON).clients
        assert found == [A, B]


@pytest.mark.slow
def test_an_offer_for_another_round_gets_no_permit() -> None:
    with Federation(large(0), memory_limit=1200, min_clients=1) as federation, raw(federation, 1) as (client,):
        round = federation.start(federation.round, 1)
        task = client.task()
        old = Task(Job(task.job.run, 0, "train"), {}, {})
        client.offer(old, SIZE)
        assert not client.permitted(old, SHORT)
        for _ in range(20):
            client.offer(task, SIZE)
        assert client.permitted(task)
        assert client.permitted(task), "the first offer may be of an attempt before, and its permit is dropped then"
        assert not client.permitted(task, SHORT), "two permits for a task at most"
        client.send(task, 7)
        assert round.result(SOON).clients == (A,)


def test_clients_send_without_permits_if_there_is_room_for_all() -> None:
    with Federation(large(0)) as federation, raw(federation, 2) as clients:
        round = federation.start(federation.round, 2)
        for client in clients:
            task = client.task()
            assert task.unasked > 400
            client.send(task, 3)
        assert set(round.result(SOON).clients) == {A, B}


def test_clients_offer_large_updates() -> None:
    model = {"w": np.zeros(1000, np.float32)}
    with Federation(model, memory_limit=12_000) as federation:
        for number, id in enumerate(IDS):
            federation.join(id, adds(number))
        for times in (1, 2):
            report = federation.round(4)
            assert (set(report.clients), report.failures) == (set(IDS), {})
            assert federation.w == [1.5 * times] * 1000


def test_the_memory_limit_is_at_least_three_models() -> None:
    with pytest.raises(netq.InvalidOption, match=r"Server\.memory_limit: 1199; expected 1200 bytes, three models"):
        fl.Server(large(0), memory_limit=1199)


def test_failures_have_a_kind() -> None:
    def fails(model: Any, config: Mapping[str, Any]) -> Update:
        raise ValueError("no data")

    with Federation(min_clients=1) as federation:
        federation.join(A, gives(2))
        federation.join(B, fails)
        federation.join(C, lambda model, config: Update(filled(np.nan), 1))
        federation.join_raw(D, lambda task: ["hello"])
        report = federation.round(4)
    assert report.clients == (A,)
    assert {peer: refusal.why for peer, refusal in report.failures.items()} == {
        B: fl.FailureKind.FAILED,
        C: fl.FailureKind.INVALID,
        D: fl.FailureKind.UNREADABLE,
    }
    assert isinstance(report.failures[C].reason, str)
    assert all(isinstance(peer, uuid.UUID) for peer in report.failures)


def test_a_reply_has_the_job_of_its_task() -> None:
    job = Job(1, 2, "train")
    assert Reply(job, Update({}, 1)).job == job


def test_fedbuff_gets_differences_from_the_model_each_client_had() -> None:
    slow = Gate(100)
    with Federation(strategy=fl.FedBuff(2, staleness=lambda late: 0.5), min_clients=1) as federation:
        federation.join(A, adds(6))
        federation.join(B, slow)
        assert federation.round(2).clients == (A,)  # twice
        assert federation.w == [6] * 3
        assert slow.begun.acquire(timeout=SOON)
        slow.let_go()
        federation.server._federation.strategy.select = lambda number, clients: [A][: number < 3]  # type: ignore[method-assign]
        while B not in (report := federation.round(2)).clients:
            pass
        assert report.staleness == {B: report.number - 1}
        slow.let_go(10)


def test_client_that_is_asked_again_with_the_same_model_is_told_how_many_updates_count() -> None:
    """Otherwise a device that was started again would answer with the update that it has stored."""
    asked = []

    def answer(task: Task) -> list[Reply]:
        asked.append((task.job.round, task.counted))
        return [reply(task, Update({"w": np.zeros(3, np.float32)}, 1))]

    with Federation(strategy=fl.FedBuff(3), min_clients=1) as federation:
        federation.join_raw(A, answer)
        for _ in range(2):
            federation.round(1)
    assert asked[:6] == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]


# State that must not leak into the next round


def test_a_used_permit_is_free_in_the_next_round() -> None:
    model = {"w": np.zeros(1000, np.float32)}
    strategy = fl.FedAvg(fraction=0.5)
    with Federation(model, strategy=strategy, memory_limit=12_000, deadline=SOON) as federation:
        for number, id in enumerate(IDS):
            federation.join(id, adds(number))
        federation.server.wait(4, SOON)
        reports = [federation.round(4) for _ in range(8)]
    assert all(len(report.clients) == 2 and not report.failures for report in reports)
    assert {client for report in reports for client in report.clients} == set(IDS)


def test_clients_lost_with_open_offers_block_no_others() -> None:
    with Federation(large(0), memory_limit=1200, min_clients=1) as federation, raw(federation, 4) as clients:
        round = federation.start(federation.round, 4)
        tasks = [client.task() for client in clients]
        for client, task in zip(clients[:3], tasks[:3], strict=True):
            client.offer(task, SIZE)
        assert clients[0].permitted(tasks[0])
        for client in clients[:3]:
            client.close()
        clients[3].offer(tasks[3], SIZE)
        assert clients[3].permitted(tasks[3])
        clients[3].send(tasks[3], 7)
        report = round.result(SOON)
        assert (report.clients, set(report.failures)) == ((D,), {A, B, C})


def test_an_offer_above_the_size_limit_is_refused() -> None:
    with Federation(large(0), memory_limit=1200, min_clients=1) as federation, raw(federation, 2) as clients:
        round = federation.start(federation.round, 2)
        tasks = [client.task() for client in clients]
        clients[0].offer(tasks[0], 2**62)
        clients[1].offer(tasks[1], SIZE)
        assert clients[1].permitted(tasks[1])
        clients[1].send(tasks[1], 7)
        report = round.result(SOON)
        assert reasons(report) == {A: f"it offers {2**62} bytes; expected 400 at most"}


@pytest.mark.slow
def test_a_round_without_idle_clients_waits_for_late_ones() -> None:
    first, second = Gate(2), Gate(4)
    with Federation(strategy=fl.FedAvg(staleness=lambda late: 1.0), deadline=SHORT) as federation:
        federation.join(A, first)
        federation.join(B, second)
        assert federation.round(2).clients == ()
        federation.set_deadline(3 * SOON)
        threading.Timer(SHORT, first.let_go).start()
        threading.Timer(2 * SHORT, second.let_go).start()
        report = federation.round(2)
        assert set(report.clients) == {A, B}
        assert report.staleness == {}, "the round before did not count, so the model is the same"
        assert (first.rounds, second.rounds) == ([1], [1])
        first.let_go(10)
        second.let_go(10)


@pytest.mark.slow
def test_busy_clients_count_towards_the_needed_updates() -> None:
    """One idle client must not make a model where three are needed."""
    slow = [Gate(4), Gate(6)]
    strategy = fl.FedAvg(staleness=lambda late: 1.0)
    with Federation(strategy=strategy, min_clients=3, deadline=SHORT) as federation:
        federation.join(A, gives(2))
        federation.join(B, slow[0])
        federation.join(C, slow[1])
        for _ in range(2):
            assert federation.round(3).clients == ()
        assert federation.w == [0] * 3
        for gate in slow:
            gate.let_go(20)


class Once(fl.FedAvg):
    """Fails in its first `fold`, as a full disk does."""

    failed = False

    def fold(self, model: Any, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        if not self.failed:
            self.failed = True
            raise OSError(28, "No space left on device")
        assert staleness == 0
        super().fold(model, update, client=client, staleness=staleness)


def test_an_interrupted_round_leaves_no_client_busy() -> None:
    slow = Gate(4)
    with Federation(strategy=Once()) as federation:
        federation.join(A, gives(2))
        federation.join(B, slow)
        federation.server.wait(2, SOON)
        with pytest.raises(OSError, match="No space left"):
            federation.server.round()
        slow.let_go(2)
        report = federation.round(2)
        assert (set(report.clients), report.staleness) == ({A, B}, {})
        assert federation.w == [3] * 3
        slow.let_go(10)


def test_an_interrupted_evaluation_leaves_no_client_busy() -> None:
    def evaluate(model: Any, config: Mapping[str, Any]) -> fl.Report:
        return fl.Report(1, {"accuracy": 0.5})

    class Interrupts(fl.Callback):
        asked = 0

        def client_is(self, client: uuid.UUID, state: fl.ClientState, size: int) -> None:
            self.asked += state is fl.ClientState.TRAINING
            if self.asked == 3:  # the first that is asked to evaluate
                self.asked = 100
                raise KeyboardInterrupt

    with Federation(evaluate=True, callbacks=[Interrupts()]) as federation:
        federation.join(A, adds(1), evaluate)
        federation.join(B, adds(1), evaluate)
        federation.server.wait(2, SOON)
        with pytest.raises(KeyboardInterrupt):
            federation.server.round()
        for number in (2, 3):
            report = federation.round(2)
            assert (set(report.clients), report.evaluation) == ({A, B}, {"accuracy": 0.5})
            assert federation.w == [number] * 3


def test_evaluations_do_not_mix_with_asynchronous_updates() -> None:
    def evaluate(model: Any, config: Mapping[str, Any]) -> fl.Report:
        return fl.Report(1, {"w": float(model["w"][0])})

    with Federation(strategy=fl.FedAsync(1.0, lambda late: 1.0), min_clients=1, evaluate=True) as federation:
        for number, id in enumerate(IDS):
            federation.join(id, gives(number + 1), evaluate)
        federation.server.wait(4, SOON)
        for _ in range(20):
            report = federation.round(4)
            (client,) = report.clients
            assert federation.w == [client.int] * 3, "each model is one client's"
            assert report.failures == {}


def test_a_model_that_is_not_finite_is_rejected() -> None:
    class Explodes(fl.FedAvg):
        def finish(self, model: Any, *, number: int) -> Any:
            result: Any = super().finish(model, number=number)
            return {name: array * np.float32(np.inf) for name, array in result.items()}

    with Federation(strategy=Explodes()) as federation:
        federation.join(A, gives(2))
        federation.join(B, gives(4))
        report = federation.round(2)
        assert report.clients == ()
        assert federation.w == [0] * 3
        assert all("NaN or infinity" in reason for reason in reasons(report).values())


@pytest.mark.parametrize("strategy", [fl.FedAvgM(), fl.FedAdam(), fl.Scaffold()], ids=lambda each: type(each).__name__)
def test_a_strategy_drops_state_that_is_not_finite(strategy: Any) -> None:
    """Otherwise no later model would be finite."""
    finish, update = type(strategy).finish, Update(filled(1), 1, extra=filled(1))

    def explodes(model: Any, *, number: int) -> Any:
        for array in strategy.state().get("velocity", strategy.state().get("first", strategy.state())).values():
            (array["w"] if isinstance(array, dict) else array)[:] = np.inf
        with np.errstate(all="ignore"):
            return {name: array * np.float32(np.inf) for name, array in finish(strategy, model, number=number).items()}

    with Federation(strategy=strategy, min_clients=1) as federation:
        federation.join(A, lambda model, config: update)
        assert federation.round(1).clients == (A,)
        strategy.finish = explodes
        assert set(reasons(federation.round(1))) == {A}
        del strategy.finish
        assert federation.round(1).clients == (A,)
        assert np.isfinite(federation.server.model["w"]).all()


def test_a_strategy_that_fails_to_finish_loses_one_round(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(fl.FedAvg):
        def finish(self, model: Any, *, number: int) -> Any:
            result = super().finish(model, number=number)
            if result["w"][0] == 3:
                raise ZeroDivisionError("by zero")
            return result

    values = iter((3, 4))
    with Federation(strategy=Fails(), min_clients=1) as federation:
        federation.join(A, lambda model, config: Update(filled(next(values)), 1))
        report = federation.round(1)
        why = "the round does not count: the strategy could not finish it: ZeroDivisionError: by zero"
        assert report.failures == {A: fl.ClientFailure(fl.FailureKind.VOID, why)}
        assert federation.w == [0] * 3
        assert federation.round(1).clients == (A,)
        assert federation.w == [4] * 3
    assert "test_round.py" in caplog.text, "its traceback is in the log"


def test_a_bug_in_fold_logs_one_traceback_a_round(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(fl.FedAvg):
        def fold(self, model: Any, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
            raise ZeroDivisionError("by zero")

    with Federation(strategy=Fails()) as federation:
        for id in IDS:
            federation.join(id, gives(1))
        for times in (1, 2):
            report = federation.round(4)
            assert {refusal.why for refusal in report.failures.values()} == {fl.FailureKind.ERROR}
            assert len(report.failures) == 4
            assert caplog.text.count("Traceback") == times


@pytest.mark.slow
def test_another_client_replaces_a_late_one() -> None:
    hung = Gate(1)
    strategy = fl.FedAsync(fraction=0.25)
    selected = iter([[A], [B], [B], [B]])
    strategy.select = lambda number, clients: next(selected)  # type: ignore[method-assign]
    with Federation(strategy=strategy, min_clients=2, deadline=SHORT) as federation:
        federation.join(A, hung)
        federation.join(B, gives(8))
        report = federation.round(2)
        assert (report.clients, report.failures[A].why) == ((), fl.FailureKind.LATE)
        for _ in range(3):
            report = federation.round(2)
            assert (report.clients, dict(report.failures)) == ((B,), {})
        hung.let_go(10)


@pytest.mark.slow
def test_undelivered_tasks_keep_few_old_models() -> None:
    """There is room for one old model. Clients on slow links were asked at different rounds: only the first keeps its
    task.
    """
    size = 4_000_000
    model = {"w": np.zeros(size // 4, np.float32)}
    strategy = fl.FedAsync()
    with ExitStack() as stack:
        federation = stack.enter_context(Federation(model, strategy=strategy, min_clients=1, memory_limit=3 * size))
        federation.join(A, lambda model, config: Update(model, 1))
        federation.server.wait(1, SOON)
        for count, id in enumerate([B, C, D], start=2):
            proxy = stack.enter_context(Proxy(federation.server.netloc))
            proxy.bandwidth = 100_000
            options = at(proxy.netloc, id)
            queue = netq.new(purpose=netq.Purpose.CLIENT, options=replace(options, serialization=MESSAGES))
            stack.callback(queue.close, 0)
            queue.put(Introduction({}))
            federation.server.wait(count, SOON)
            assert federation.round(count).clients == (A,)
        federation.round(4)
        tasks = {job.round for peer, job in federation.server._members.busy.items() if peer != A}
        assert len(tasks - {federation.server.number}) == 1


def test_as_many_clients_work_as_the_strategy_selects() -> None:
    gates = {id: Gate(1) for id in IDS}
    strategy = fl.FedBuff(2, fraction=0.5, seed=1)
    begun: list[uuid.UUID] = []

    class Begun(fl.Callback):
        def client_is(self, client: uuid.UUID, state: fl.ClientState, size: int) -> None:
            if state is fl.ClientState.TRAINING:
                begun.append(client)

    with Federation(strategy=strategy, min_clients=1, callbacks=[Begun()]) as federation:
        for id, gate in gates.items():
            federation.join(id, gate)
            gate.let_go(100)
        federation.server.wait(4, SOON)
        for _ in range(10):
            before = len(begun)
            busy = len(federation.server._members.busy)
            report = federation.round(4)
            assert not report.failures
            assert busy + len(begun) - before == 2 + 1, "two at work, and one more when the first had answered"
    assert set(begun) == set(IDS), "each has its turn"


def test_a_flood_of_stale_replies_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def flood(task: Task) -> list[Any]:
        old = Job(task.job.run - 1, 9, "train")
        floods = [Reply(old, "\x1b[2Jno\ndisk")] * 10 + [Reply(old, Update(filled(9), 1))] * 10
        return [*floods, reply(task, Update(filled(4), 1))]

    with Federation() as federation:
        federation.join(A, gives(2))
        federation.join_raw(B, flood)  # these may be answers to a server before this one
        assert set(federation.round(2).clients) == {A, B}
        assert federation.w == [3] * 3
    assert caplog.text.count("is not waited for (any more)") == 1
    assert "\x1b" not in caplog.text
    assert "no\\ndisk" in caplog.text


@pytest.mark.parametrize("limit", [1e9, True, "1200"])
def test_a_memory_limit_is_a_whole_number(limit: Any) -> None:
    with pytest.raises(netq.InvalidOption, match=r"Server\.memory_limit"):
        fl.Server(large(0), memory_limit=limit)


def test_an_evaluation_that_is_interrupted_abandons_no_updates() -> None:
    calls: list[str] = []

    class Counts(fl.FedAvg):
        def finish(self, model: Any, *, number: int) -> Any:
            calls.append("finish")
            return super().finish(model, number=number)

        def abandon(self) -> None:
            calls.append("abandon")
            super().abandon()

        def examples(self, number: int) -> int:
            if calls:  # of an evaluation
                raise KeyboardInterrupt
            return super().examples(number)

    with Federation(strategy=Counts(), min_clients=1, evaluate=True) as federation:
        federation.join(A, gives(2), lambda model, config: fl.Report(1))
        federation.server.wait(1, SOON)
        with pytest.raises(KeyboardInterrupt):
            federation.server.round()
        assert (federation.server.number, federation.w) == (1, [2] * 3)
        assert calls == ["finish"]
