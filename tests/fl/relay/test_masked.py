"""Clients behind relays take part in secure aggregation: a relay carries their steps, and adds their vectors."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
import fl.membership
import netq
from fl.column_statistics import Column
from fl.messages import Answered, Reply, Task
from fl.relay.carried import Carried
from fl.secure.masker import Masker
from fl.secure.participant import Masking
from fl.secure.summing import Summing
from fl.secure.words import Words
from fl.server.leaves import Leaves, parted
from fl.subtotal import Subtotal
from netq.security import certificates
from netq.testing.fixtures import LIMIT
from netq.testing.log import LogRecorder
from tests.fl.federation import SOON, Federation, at
from tests.fl.relay.test_relay import distance
from tests.fl.relay.tree import HERE, Listens, Shape, Tree
from tests.fl.secure.circle import Circle

FLAT: Shape = [0, 1, 2, 3, 4, 5, 6, 7]
TWO: Shape = [[0, 1, 2], [3, 4, 5], 6, 7]
NESTED: Shape = [[[0, 1], 2], [3, 4, 5], 6, 7]
RELAY = uuid.UUID(int=90)


def model() -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {
        "w": random.normal(size=(40, 30)).astype(np.float32),
        "bn.running_mean": random.normal(size=30).astype(np.float32),
        "bn.num_batches_tracked": np.array(7, np.int64),
    }


def trains(number: int) -> Callable[[Any, Mapping[str, Any]], fl.Update]:
    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        random = np.random.default_rng([number, config["round"]])
        for name in ("w", "bn.running_mean"):
            model[name] = model[name] + random.normal(size=model[name].shape).astype(np.float32)
        model["bn.num_batches_tracked"] += number
        return fl.Update(model, 10 + number, {"loss": 0.5 + number})

    return train


def evaluates(number: int) -> Callable[[Any, Any], fl.Report]:
    return lambda model, config: fl.Report(10 + number, {"loss": float(number)})


def tree(shape: Shape, train: Any = trains, secure: Any = None, **settings: Any) -> Tree:
    secure = secure or fl.SecureAggregation(metrics=("loss",))
    return Tree(shape, train, model(), lambda: fl.FedAvg(max_examples=20), secure=secure, **settings)


@pytest.mark.parametrize("shape", [TWO, NESTED])
def test_the_model_is_that_of_a_federation_without_masks_and_relays(shape: Shape) -> None:
    with Tree(FLAT, trains, model(), lambda: fl.FedAvg(max_examples=20), evaluate=evaluates) as plain:
        reports = plain.rounds(3)
    with tree(shape, evaluate=evaluates) as masked:
        found = masked.rounds(3)
        assert [each.updates for each in masked.server.members()] == [3] * 4
    for name, value in plain.server.model.items():
        assert distance(masked.server.model[name], value) <= (1e-6 if name == "w" else 1e-5), name
    for one, other in zip(reports, found, strict=True):
        assert other.masked is not None
        assert sorted(one.clients) == sorted(other.clients)
        assert not other.failures
        assert other.masked.examples == sum(one.num_examples.values())
        assert other.metrics["loss"] == pytest.approx(one.metrics["loss"], abs=1e-5)
        assert other.evaluation["loss"] == pytest.approx(one.evaluation["loss"], abs=1e-5)
        assert other.names.keys() >= set(other.clients)


def summed(circle: Circle, task: Task, summing: Summing, clients: Sequence[str]) -> dict[str, Any]:
    """Return what a relay of these clients sends."""
    its = Summing(summing.terms, summing.roster, summing._layout)
    for each in clients:
        its.add(each, circle.update(each, task))
    return its.partial()


@pytest.mark.parametrize("absent", [0, 1])
def test_the_sums_of_relays_are_exact(absent: int) -> None:
    circle = Circle(8)
    task, summing, _ = circle.begin()
    ids = summing.terms.clients
    for group in (ids[:3], ids[3 : 6 - absent]):
        summing.merge(summed(circle, task, summing, group), group)
    for each in ids[6:]:
        summing.add(each, circle.update(each, task))
    plain = circle.plain(summing)
    circle.open(summing)
    assert len(summing.present) == 8 - absent
    assert bytes(summing._words.memory) == bytes(plain.memory)


def test_the_sum_of_one_relay_stays_under_masks() -> None:
    """Also for a server that takes off all masks that it has learnt: those of pairs behind two relays remain."""
    circle = Circle(6)
    task, summing, _ = circle.begin()
    groups = summing.terms.clients[:3], summing.terms.clients[3:]
    sent = [summed(circle, task, summing, group) for group in groups]
    known = Words(sent[0]["vector"].copy(), summing._words.small.size)
    for partial, group in zip(sent, groups, strict=True):
        summing.merge(partial, group)
    circle.open(summing)
    known.mask([], [summing._secret(each, 0) for each in groups[0]])
    summing.present = list(groups[0])
    assert np.mean(known.small == circle.plain(summing).small) < 0.1


def changed(sent: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {**sent, **values}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda sent, ids: changed(sent, number=9), "a vector of the masked round 9; expected 1"),
        (lambda sent, ids: changed(sent, session="x"), "of another session"),
        (lambda sent, ids: changed(sent, clients=ids[:3]), "those for which the relay answers"),
        (lambda sent, ids: changed(sent, vector=sent["vector"][8:]), "a vector of .* bytes; expected"),
        (lambda sent, ids: changed(sent, packets=sent["packets"][1:]), "its packets and hashes have .* bytes"),
        (lambda sent, ids: changed(sent, packets=[]), "the sum of a relay of secure aggregation is not valid"),
        (lambda sent, ids: {"strategy": {}}, "the sum of a relay of secure aggregation is not valid"),
    ],
)
def test_a_sum_of_another_form_is_refused_with_nothing_changed(change: Any, error: str) -> None:
    circle = Circle(6)
    task, summing, _ = circle.begin()
    ids = summing.terms.clients
    sent = summed(circle, task, summing, ids[:2])
    with pytest.raises(fl.InvalidUpdate, match=error):
        summing.merge(change(sent, ids), ids[:2])
    assert not summing.present
    assert not summing._words.memory.any()
    summing.merge(sent, ids[:2])
    with pytest.raises(fl.InvalidUpdate, match=f"the vector of client {ids[0]}, which is not asked in this round, or"):
        summing.merge(sent, ids[:2])  # twice


def crashes(monkeypatch: pytest.MonkeyPatch, number: int, when: Callable[[Task], bool]) -> None:
    """Have the run of a client end at a task."""
    begin = Masker.begin

    def begins(self: Masker, task: Task) -> Any:
        if self._client == uuid.UUID(int=number) and when(task):
            raise InterruptedError
        return begin(self, task)

    monkeypatch.setattr(Masker, "begin", begins)


@pytest.mark.parametrize("step", [None, "agree", "open"])
def test_a_client_that_is_lost_before_its_vector_or_after_it(monkeypatch: pytest.MonkeyPatch, step: str | None) -> None:
    crashes(monkeypatch, 1, lambda task: task.secure.get("step") == step and task.job.purpose in ("train", "secure"))
    patience = fl.Patience(grace=0.5)
    with tree(TWO, patience=patience, relay={"patience": patience, "min_clients": 2}) as found:
        [report] = found.rounds(1)
        assert {each.int for each in report.clients} == set(FLAT) - ({1} if step is None else set())
        numbers = {each: trains(each)(model(), {"round": 1}) for each in FLAT if each != 1 or step}
        total = sum(each.num_examples for each in numbers.values())
        mean = sum(each.model["w"].astype(float) * each.num_examples for each in numbers.values()) / total
        assert found.server.model["w"] == pytest.approx(mean, abs=1e-5)
        assert report.masked == fl.MaskedSum(total, 0.0)


def hangs(monkeypatch: pytest.MonkeyPatch, number: int, where: str) -> threading.Event:
    """Have a client hang at its first vector, or at a step, until the event is set."""
    begin, goes_on = Masker.begin, threading.Event()

    def begins(self: Masker, task: Task) -> Any:
        if self._client == uuid.UUID(int=number) and task.secure.get("step", task.job.purpose) == where:
            assert goes_on.wait(LIMIT)
        return begin(self, task)

    monkeypatch.setattr(Masker, "begin", begins)
    return goes_on


def test_an_opening_waits_for_no_client_that_has_sent_no_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = hangs(monkeypatch, 1, "train")
    secure, patience = fl.SecureAggregation(step=10 * LIMIT), fl.Patience(deadline=6.0)
    with tree(TWO, secure=secure, patience=patience, relay={"min_clients": 2}) as found:
        [report] = found.rounds(1)
        goes_on.set()
    assert len(report.clients) == 7
    assert report.failures[uuid.UUID(int=1)].why is fl.FailureKind.LATE


def test_a_relay_goes_on_with_its_parent_when_a_client_answers_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = hangs(monkeypatch, 0, "agree")
    secure, patience = fl.SecureAggregation(step=10 * LIMIT), fl.Patience(deadline=6.0)
    with tree([[0, 1], *FLAT[2:]], secure=secure, patience=patience, relay={"min_clients": 1}) as found:
        assert len(found.rounds(1)[0].clients) == 8
        assert {each.int for each in found.rounds(1)[0].clients} == set(FLAT[1:])
        goes_on.set()


def test_a_client_that_is_started_again_behind_a_relay_has_new_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = fl.Patience(grace=0.5, void_pause=0.01)
    with tree(TWO, patience=patience, relay={"patience": patience, "min_clients": 3}) as found:
        started: list[int] = []

        def again(task: Task) -> bool:
            if task.job.purpose != "train" or task.job.round != 2 or started:
                return False
            started.append(1)
            place = at(found.netloc_of(0), uuid.UUID(int=1))
            found.start(fl.Client(trains(1)).run, place)
            return True

        crashes(monkeypatch, 1, again)
        assert [len(report.clients) for report in found.rounds(3)] == [8, 8, 8]
        assert started


def test_a_client_that_fails_is_named() -> None:
    def fails(number: int) -> Any:
        def train(model: Any, config: Any) -> Any:
            raise RuntimeError("no camera")

        return train if number == 1 else trains(number)

    with tree(TWO, fails, relay={"min_clients": 2}) as found:
        [report] = found.rounds(1)
    assert "no camera" in str(report.failures[uuid.UUID(int=1)])
    assert len(report.clients) == 7


def test_a_client_that_fails_in_the_set_up_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Masker.begin

    def begins(self: Masker, task: Task) -> Any:
        if self._client == uuid.UUID(int=1) and task.secure.get("step") == "keys":
            raise fl.InvalidUpdate("no randomness")
        return begin(self, task)

    monkeypatch.setattr(Masker, "begin", begins)
    with tree(TWO) as found:
        [report] = found.rounds(1)
    assert str(report.failures[uuid.UUID(int=1)]).endswith(": no randomness")
    assert str(report.failures[uuid.UUID(int=1)]).startswith("behind r0 (")
    assert len(report.clients) == 7


def test_a_relay_that_changes_a_word_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Summing.partial

    def changes(self: Summing) -> dict[str, Any]:
        sent = right(self)
        monkeypatch.setattr(Summing, "partial", right)
        sent["vector"][5] ^= 1
        return sent

    monkeypatch.setattr(Summing, "partial", changes)
    with tree(TWO, patience=fl.Patience(void_pause=0.01)) as found:
        void, counted = found.server.rounds(1)
    assert "the masked vectors have no valid sum" in str(void.failures[uuid.UUID(int=0)])
    assert len(counted.clients) == 8


def by_hand(replies: Callable[[Task, Subtotal], list[Reply]]) -> Callable[[Task], list[Reply]]:
    """Return what a relay with client 9 answers. replies: with which sums."""
    masker, carried = Masker(fl.SecurePolicy(), netq.CommunicatorOptions()), Carried(Leaves(None))  # type: ignore[arg-type]
    client = uuid.UUID(int=9)
    masker.is_client(client)

    def answers(task: Task) -> list[Reply]:
        asked = dict(task.secure)
        if asked.get("step") == "clients":
            return [Reply(task.job, Answered({"clients": {str(client): [9.0, ""]}}))]
        if "step" in asked:
            [question] = parted(asked).values()
            carried._note(asked["step"], asked["session"], question)
            told = masker.begin(replace(task, secure={**asked, **question}))
            assert isinstance(told, Answered)
            return [Reply(task.job, Answered({"answers": {str(client): told.values}, "failures": {}}))]
        begun, its = masker.begin(task), carried.begin(task)
        assert isinstance(begun, Masking)
        its.add(str(client), begun.mask(trains(9)(dict(task.model), {"round": 1})))  # type: ignore[arg-type]
        return replies(task, Subtotal(its.partial(), {client: 1}))

    return answers


@contextmanager
def with_relay(answers: Callable[[Task], list[Reply]], **settings: Any) -> Iterator[Federation]:
    """A federation of clients 0, 1 and 2, and of a relay by hand, 90."""
    settings = {"secure": fl.SecureAggregation(), "relays": True, **settings}
    with Federation(model(), strategy=fl.FedAvg(max_examples=20), **settings) as found:
        for number in range(3):
            found.join(uuid.UUID(int=number), trains(number))
        found.join_raw(RELAY, answers)
        found.server.wait(4, SOON)
        found.server._members.of(RELAY).session.is_relay = True
        yield found


def test_a_sum_of_an_attempt_before_is_dropped_and_the_next_one_counts() -> None:
    """The late relay sends both sums."""
    late: list[Reply] = []

    def twice(task: Task, summed: Subtotal) -> list[Reply]:
        late.append(Reply(task.job, summed))
        return late if len(late) == 2 else []

    with with_relay(by_hand(twice), min_clients=4) as found:
        found.set_deadline(0.5)
        assert found.server.round().clients == ()
        found.set_deadline(SOON)
        assert {each.int for each in found.server.round().clients} == {0, 1, 2, 9}
    assert len(late) == 2


def test_a_relay_that_says_that_its_sum_has_the_client_of_another_keeps_none_out() -> None:
    """Its sum comes after that of the client, who would count twice, and be left out of the next rounds."""
    counted = threading.Event()

    class Waits(fl.Callback):
        def client_is(self, client: uuid.UUID, state: fl.ClientState, size: int) -> None:
            if client.int == 1 and state is fl.ClientState.DONE:
                counted.set()

    def claims(task: Task, summed: Subtotal) -> list[Reply]:
        assert counted.wait(LIMIT)
        return [Reply(task.job, replace(summed, clients={**summed.clients, uuid.UUID(int=1): 1}))]

    with with_relay(by_hand(claims), min_clients=3, callbacks=[Waits()]) as found:
        for _ in range(2):
            counted.clear()
            report = found.server.round()
            assert {each.int for each in report.clients} == {0, 1, 2}
            assert (
                str(report.failures[RELAY])
                == f"its sum has client {uuid.UUID(int=1)}, which is not behind it in this round"
            )


def test_a_client_of_two_relays_is_left_out_and_named() -> None:
    with tree([[9], [3, 4, 9], 6, 7], min_clients=3, wait=4) as found:
        for report in found.rounds(2):
            assert {each.int for each in report.clients} == {3, 4, 6, 7}
            assert "both say that it is their client" in str(report.failures.pop(uuid.UUID(int=9)))  # type: ignore[attr-defined]
            assert [str(each) for each in report.failures.values()] == ["none of its clients takes part in this round"]


def test_a_relay_does_not_wait_for_a_suspended_client() -> None:
    """The client is late in its first round, and in the next one for which it is asked again."""
    gates, calls = [threading.Event(), threading.Event()], list[int]()

    def slow(number: int) -> Any:
        def train(model: Any, config: Any) -> Any:
            if number == 1:
                calls.append(number)
                assert gates[len(calls) - 1].wait(LIMIT)
            return trains(number)(model, config)

        return train

    patience = fl.Patience(deadline=lambda number: 6.0 if number == 1 else 10 * LIMIT)
    with tree(
        TWO, slow, patience=patience, relay={"min_clients": 2, "patience": fl.Patience(suspend_after=1)}
    ) as found:
        for report in found.server.rounds(10):
            assert len(report.clients) == 7
            gates[0].set()
            if len(calls) == 2:
                assert report.failures[uuid.UUID(int=1)].why is fl.FailureKind.LATE
                break
        gates[1].set()
    assert len(calls) == 2


@pytest.mark.parametrize("lost", [2, 3])
def test_a_relay_that_is_lost_in_the_middle_of_a_round(monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    """Of 8 clients the sum needs 6. Those of the lost relay go on to the server."""
    monkeypatch.setattr(fl.membership, "_MOVE", 1.5)
    gone: list[int] = []

    def closes(number: int) -> Any:
        def train(model: Any, config: Any) -> Any:
            if number == 0 and not gone:
                gone.append(number)
                found.relays[0].server.close(0.0)  # type: ignore[union-attr]
            return trains(number)(model, config)

        return train

    def moves(number: int) -> Any:
        client, place = fl.Client(closes(number)), at(found.netloc_of(0), uuid.UUID(int=number))
        return client.run(place, fallback=[found.server.netloc])

    patience = fl.Patience(grace=0.5, void_pause=0.01)
    shape: Shape = [[], *FLAT[lost:]]
    settings: dict[str, Any] = {"relay": {"min_clients": lost}, "patience": patience, "min_clients": 6 - lost}
    with tree(shape, closes, **settings, wait=9 - lost) as found:
        for number in range(lost):
            found.start(moves, number)
        reports = list(found.server.rounds(1))
        with pytest.raises(fl.RelayError):
            found.runs.pop(0).result(LIMIT)
        found.server.wait(8, LIMIT)
        assert {each.int for each in found.rounds(1)[0].clients} == set(FLAT)
    if lost == 2:
        assert {each.int for each in reports[0].clients} == set(FLAT[2:])
    else:
        assert not reports[0].clients
        assert "a sum of 5 clients; expected 6 at least" in str(reports[0].failures)
        assert {each.int for each in reports[-1].clients} >= set(FLAT[3:])


def test_the_policy_of_a_client_sees_all_clients_of_the_round() -> None:
    policy = {"secure": fl.SecurePolicy(required=True, min_clients=8)}
    secure = fl.SecureAggregation(min_clients=8)
    with tree(TWO, secure=secure, client=lambda number: policy) as found:
        [report] = found.rounds(1)
    assert len(report.clients) == 8


def test_noise_of_the_clients_passes_relays() -> None:
    def adds(number: int) -> Any:
        return lambda model, config: fl.Update({"w": model["w"] + 0.01}, 1)

    private = fl.DifferentialPrivacy(clip=1.0, noise_multiplier=0.1)
    settings: dict[str, Any] = {"privacy": private, "secure": fl.SecureAggregation()}
    with Tree(TWO, adds, {"w": np.zeros(100, np.float32)}, **settings) as found:
        [report] = found.rounds(1)
        assert found.server.model["w"].mean() == pytest.approx(0.01, abs=0.02)
        assert found.server.model["w"].std() > 0
    assert report.privacy is not None
    assert not report.privacy.trusts_server


def test_statistics_pass_relays_under_masks() -> None:
    def gives(number: int) -> dict[str, Any]:
        return {"columns": lambda config: {"age": np.full(20, 40.0 + number)}}

    with tree(TWO, client=gives) as found:
        report = found.server.statistics_of({"age": Column(0.0, 100.0)})
        assert report.columns["age"].count == 160
        assert report.columns["age"].mean == pytest.approx(43.5, abs=0.01)
        assert len(report.clients) == 8
        assert not report.failures
        assert len(found.rounds(1)[0].clients) == 8


def test_certificates_prove_the_keys_of_clients_behind_a_relay(tmp_path: Path, log: LogRecorder) -> None:
    certificates.init(tmp_path, ["127.0.0.1"])
    for name in "rabc":
        certificates.issue(tmp_path, name)

    def by(name: str, place: netq.NetworkLocation = HERE) -> netq.CommunicatorOptions:
        key, certificate = tmp_path / f"{name}-key.pem", tmp_path / f"{name}.pem"
        security = netq.SecurityOptions(key=key, certificate=certificate, authority=tmp_path / "authority.pem")
        return netq.CommunicatorOptions(netloc=place, security=security)

    policy, place = fl.SecurePolicy(certificates=True), Future[netq.NetworkLocation]()
    settings: dict[str, Any] = {"min_clients": 2, "relays": ["r"], "secure": fl.SecureAggregation()}
    with ThreadPoolExecutor(4) as pool:
        strategy = fl.FedAvg(max_examples=20)
        with fl.Server(model(), by("server"), strategy=strategy, **settings) as server:
            relay = fl.Relay(
                *(by("r", server.netloc), by("server")), strategy=strategy, min_clients=2, callbacks=[Listens(place)]
            )
            pool.submit(relay.run)
            pool.submit(fl.Client(trains(1), secure=policy).run, by("c", server.netloc))
            for name in "ab":
                client = fl.Client(trains(2), secure=policy)
                pool.submit(lambda its=client, who=name: its.run(by(who, place.result(LIMIT))))  # type: ignore[misc]
            [report] = server.rounds(1)
    assert sorted(report.names[each] for each in report.clients) == ["a", "b", "c"]
    assert not log.having("without certificates")
