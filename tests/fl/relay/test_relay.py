"""A relay answers for its clients with one sum: whose result is that of a server without relays."""

from __future__ import annotations

import functools
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
import fl.membership
import fl.relay.relay
import netq
from fl.server.dispatcher import TaskDispatcher
from netq.testing.fixtures import LIMIT
from netq.testing.log import LogRecorder
from tests.fl.federation import at, filled
from tests.fl.relay.tree import HERE, Shape, Tree
from tests.servers import ports

FLAT: Shape = [0, 1, 2, 3, 4, 5, 6, 7]
TWO: Shape = [[0, 1, 2, 3], [4, 5, 6, 7]]
THREE: Shape = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
STRATEGIES: dict[str, Callable[[], fl.Strategy]] = {
    "FedAvg": fl.FedAvg,
    "FedProx": fl.FedProx,
    "FedAvgM": fl.FedAvgM,
    "FedAdagrad": fl.FedAdagrad,
    "FedAdam": fl.FedAdam,
    "FedYogi": fl.FedYogi,
    "QFedAvg": lambda: fl.QFedAvg(q=1.0, learning_rate=0.1),
    "FedNova": fl.FedNova,
    "Scaffold": fl.Scaffold,
}


def model() -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {
        "w": random.normal(size=(40, 30)),  # of float64: an optimizer may enlarge the rounding of a mean
        "bn.running_mean": random.normal(size=30).astype(np.float32),
        "bn.num_batches_tracked": np.array(7, np.int64),
        "range.activation_post_process.min_val": np.full(3, np.inf, np.float32),
    }


def trains(number: int) -> Callable[[Any, Mapping[str, Any]], fl.Update]:
    """A client whose update depends on its number, the round and the model."""

    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        random = np.random.default_rng([number, config["round"]])
        start = {name: value.copy() for name, value in model.items()}
        for name in ("w", "bn.running_mean"):
            model[name] += random.normal(size=model[name].shape).astype(model[name].dtype)
        model["bn.num_batches_tracked"] += number
        model["range.activation_post_process.min_val"][number % 2] = -number
        extra = {"w": 0.1 * (model["w"] - start["w"])} if "control" in config else {}
        return fl.Update(model, 10 + number, {"loss": 0.5 + number, "steps": 1 + number, "n": fl.Sum(1)}, extra)

    return train


def distance(one: Any, other: Any) -> float:
    """Return the largest difference by the largest value. Both are infinite in the same places."""
    finite = np.isfinite(other)
    assert np.array_equal(one[~finite], other[~finite])
    known = other[finite].astype(float)
    return float(np.abs(one[finite] - known).max(initial=0) / (np.abs(known).max(initial=0) or 1))


def result(shape: Shape, strategy: Callable[[], fl.Strategy]) -> tuple[Mapping[str, Any], list[fl.RoundReport]]:
    with Tree(shape, trains, model(), strategy) as tree:
        reports = tree.rounds(3)
        return dict(tree.server.model), reports


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_tree_of_eight_clients_gives_the_model_of_a_flat_federation(name: str) -> None:
    flat, reports = result(FLAT, STRATEGIES[name])
    for shape in (TWO, THREE):
        found, others = result(shape, STRATEGIES[name])
        for tensor, value in flat.items():
            assert distance(found[tensor], value) <= 1e-6, (shape, tensor)
        for one, other in zip(reports, others, strict=True):
            assert sorted(one.clients) == sorted(other.clients)
            assert one.num_examples == other.num_examples
            assert one.metrics == pytest.approx(other.metrics)
            assert {id: name for id, name in other.names.items() if id in one.names} == one.names
            assert other.failures == {}


def test_evaluations_and_the_last_model_pass_a_relay() -> None:
    def evaluates(number: int) -> Any:
        return lambda model, config: fl.Report(1 + number, {"w": float(model["w"][0])})

    def gives(number: int) -> Any:
        return lambda model, config: fl.Update(filled(number), 1)

    with Tree([[[0, 1]], [2, 3]], gives, evaluate=evaluates) as tree:
        [report] = tree.rounds(1)
    assert report.evaluation == {"w": 1.5}
    assert sum(report.evaluation_examples.values()) == 10
    finals = [found for run in tree.runs if (found := run.result(0)) is not None]
    assert [final["w"].tolist() for final in finals] == [[1.5] * 3] * 4


def test_clients_that_fail_or_skip_are_in_the_servers_report_by_kind() -> None:
    def trains(number: int) -> Any:
        def train(model: Any, config: Any) -> Any:
            if number == 0:
                raise RuntimeError("no camera")
            return fl.Skip("no data") if number == 1 else fl.Update(filled(number), 1)

        return train

    with Tree([[0, 1, 2, 3], 4], trains, min_clients=2, relay={"min_clients": 2}) as tree:
        [report] = tree.rounds(1)
        assert tree.server.model["w"].tolist() == [3.0] * 3
    assert {id.int for id in report.clients} == {2, 3, 4}
    assert {id.int: each.why for id, each in report.failures.items()} == {0: fl.FailureKind.FAILED}
    assert {id.int: why for id, why in report.skipped.items()} == {1: "no data"}


def test_a_relay_with_too_few_updates_has_none_and_says_why() -> None:
    def trains(number: int) -> Any:
        def train(model: Any, config: Any) -> Any:
            if number == 0:
                raise RuntimeError("no camera")
            return fl.Update(filled(number), 1)

        return train

    with Tree([[0, 1], 2], trains, min_clients=1, wait=2) as tree:
        [report] = tree.rounds(1)
        assert tree.server.model["w"].tolist() == [2.0] * 3
    whys = {id.int: each.why for id, each in report.failures.items() if id.int < 3}
    assert whys == {0: fl.FailureKind.FAILED, 1: fl.FailureKind.VOID}
    assert sum("none of its clients" in str(each) for each in report.failures.values()) == 1


def test_deadlines_shrink_on_the_way_down(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines: list[float] = []
    real = TaskDispatcher.ask

    def ask(self: Any, parts: Any, limit: float, **others: Any) -> None:
        deadlines.append(limit)
        real(self, parts, limit, **others)

    monkeypatch.setattr(TaskDispatcher, "ask", ask)
    with Tree([[[0]]], trains, patience=fl.Patience(deadline=600.0), model=model()) as tree:
        tree.rounds(1)
    root, *others = deadlines  # of those, what has passed is taken off
    assert root == 600
    assert [0.9 * most < found < most for most, found in zip((480, 384), others, strict=True)] == [True, True]


@pytest.mark.parametrize(
    ("strategy", "of_relay", "error"),
    [
        (
            lambda: fl.QFedAvg(q=0.2),
            lambda: fl.QFedAvg(q=0.1),
            "folds by QFedAvg(max_examples=None, q=0.1, learning_rate=0.1, loss='loss'), its server by QFedAvg(max_exa",
        ),
        (lambda: fl.FedAvg(max_examples=9), fl.FedAdam, "its server by FedAvg(max_examples=9): give the relay the"),
    ],
)
def test_a_relay_that_folds_otherwise_than_its_server_ends(
    strategy: Callable[[], fl.Strategy], of_relay: Callable[[], fl.Strategy], error: str
) -> None:
    settings: dict[str, Any] = {"strategy": strategy(), "min_clients": 1, "relays": True}
    with fl.Server(model(), at(HERE), **settings) as server, ThreadPoolExecutor(1) as pool:
        run = pool.submit(fl.Relay(at(server.netloc), at(HERE), strategy=of_relay()).run)
        while not run.done():
            server._members.read()
        with pytest.raises(fl.RelayError) as found:
            run.result()
    assert error in str(found.value)


@pytest.mark.parametrize(
    ("relays", "error"),
    [
        (False, "the server calls this relay 'north', and has it not among its `relays`: name it there"),
        (["south"], "has it not among its `relays`: name it there"),
    ],
)
def test_a_relay_that_the_server_does_not_know_ends(relays: Any, error: str) -> None:
    with fl.Server(model(), at(HERE), min_clients=1, relays=relays) as server, ThreadPoolExecutor(1) as pool:
        run = pool.submit(fl.Relay(at(server.netloc), at(HERE), name="north").run)
        while not run.done():
            server._members.read()
        with pytest.raises(fl.RelayError) as found:
            run.result()
    assert error in str(found.value)


def test_a_relay_that_is_above_its_parent_ends() -> None:
    us = uuid.uuid4()
    with fl.Server(model(), at(HERE), min_clients=1, relays=True) as server, ThreadPoolExecutor(2) as pool:
        parent = fl.Relay(at(server.netloc, us), at(HERE), relays=True, linger=0)
        above = pool.submit(parent.run)
        while parent.server is None:
            server._members.read()
        below = pool.submit(fl.Relay(at(parent.server.netloc, us), at(HERE)).run)
        while not below.done():
            server._members.read()
        with pytest.raises(fl.RelayError, match="is above its own parent: a cycle; give it the address of the server"):
            below.result()
        server.close()
        above.result(LIMIT)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"strategy": fl.FedAvg(staleness="polynomial(0.5)")}, "Relay.strategy: FedAvg has the option staleness"),
        ({"strategy": fl.Krum()}, "Relay.strategy: Krum needs each update, and a relay sends one sum"),
        ({"strategy": "FedAvg"}, "Relay.strategy: 'FedAvg'; expected an object, as in fl.FedAvg()"),
        ({"min_clients": 0}, "Relay.min_clients: 0; expected 1 or more"),
        ({"relays": "north"}, "Relay.relays: 'north'; expected True, False, or a list of names or ids"),
        ({"fallback": ["b:1"]}, "Relay: fallback: ['b:1']; expected a list of hosts and ports"),
        ({"fallback": [("localhost", 5)]}, "Relay.fallback: localhost:5 is where this relay listens; expected an add"),
        ({"parent": at(netq.NetworkLocation("0.0.0.0", 5))}, "Relay.parent: 0.0.0.0:5 is where this relay listens"),
        ({"linger": -1}, "Relay.linger: -1; expected seconds, 0 or more"),
        ({"name": 5}, "Relay.name: 5; expected"),
        ({"parent": None}, "Relay.parent: None; expected a netq.CommunicatorOptions"),
    ],
)
def test_wrong_arguments(change: dict[str, Any], error: str) -> None:
    place = netq.NetworkLocation("127.0.0.1", 5)
    arguments = {"parent": at(netq.NetworkLocation("127.0.0.1", 4)), "options": at(place), **change}
    with pytest.raises(netq.InvalidOption) as found:
        fl.Relay(**arguments)
    assert error in str(found.value)


def test_a_client_goes_on_to_the_next_relay_and_counts_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fl.membership, "_MOVE", 1.5)
    with socket.create_server(("127.0.0.1", 0)) as listens:  # and does not answer
        silent = netq.NetworkLocation(*listens.getsockname())
        with Tree([[1, 2]], trains, model=model(), relay={"min_clients": 3}) as tree:

            def moves() -> None:
                fl.Client(trains(0)).run(at(silent, uuid.UUID(int=9)), fallback=[tree.netloc_of(0)])

            tree.start(moves)
            [report] = tree.rounds(1)
    assert {id.int for id in report.clients} == {1, 2, 9}


def test_the_end_of_the_federation_ends_the_round_of_a_relay(log: LogRecorder) -> None:
    begun, gate = threading.Event(), threading.Event()

    def waits(number: int) -> Any:
        def train(model: Any, config: Any) -> Any:
            begun.set()
            gate.wait(LIMIT)
            return fl.Skip("it is over")

        return train

    with Tree([[0]], waits, patience=fl.Patience(deadline=100 * LIMIT)) as tree:
        rounds = ThreadPoolExecutor(1)
        run = rounds.submit(tree.rounds, 1)
        assert begun.wait(LIMIT)
        tree.server.close(0.1)
        log.wait("the parent has gone on")
        gate.set()
        assert isinstance(run.exception(LIMIT), netq.Closed)
        rounds.shutdown()


def test_relays_that_are_each_others_fallback_find_the_server_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: LogRecorder
) -> None:
    monkeypatch.setattr(fl.membership, "_MOVE", 1.5)
    monkeypatch.setattr(fl.relay.relay, "_ALONE", 0.6)
    places = [netq.NetworkLocation(*ports.free()) for _ in range(3)]
    pool = ThreadPoolExecutor(6)

    def serve(rounds: int, make: Callable[..., fl.Server], *arguments: Any) -> list[fl.RoundReport]:
        with make(*arguments, at(places[0]), min_clients=1, wait=2, relays=True) as server:
            found = [report for report in server.rounds(rounds) if len(report.clients) == 2]
            if rounds == 1:
                raise InterruptedError  # its clients wait for the next server
        return found

    path = tmp_path / "federation.ckpt"
    first = pool.submit(serve, 1, functools.partial(fl.Server, checkpoint=path), model())
    runs: list[Future[Any]] = []
    for number, (here, other) in enumerate((places[1:], places[:0:-1])):
        relay = fl.Relay(at(places[0]), at(here), relays=True, fallback=[other])
        runs.append(pool.submit(relay.run))
        runs.append(pool.submit(fl.Client(trains(number)).run, at(here, uuid.UUID(int=number))))
    with pytest.raises(InterruptedError):
        first.result(LIMIT)
    for place in places[1:]:  # each has its client, and now the other relay
        log.wait(f"127.0.0.1:{place.port}: connected", 2)
    assert pool.submit(serve, 2, fl.Server.resume, path).result(LIMIT)
    for run in runs:
        run.result(LIMIT)
    pool.shutdown()


def test_a_relay_goes_on_from_a_parent_that_does_not_take_it(monkeypatch: pytest.MonkeyPatch, log: LogRecorder) -> None:
    with fl.Server(model(), at(HERE), min_clients=1) as other, Tree([0], trains, model=model()) as tree:
        relay = fl.Relay(at(other.netloc), at(HERE), fallback=[tree.server.netloc], name="north")
        run = tree.start(relay.run)
        while relay.server is None:
            other._members.read()
            tree.server._members.read()
        tree.start(fl.Client(trains(1)).run, at(relay.server.netloc, uuid.UUID(int=1)))
        tree.server.wait(2, LIMIT)
        [report] = tree.rounds(1)
        assert {id.int for id in report.clients} == {0, 1}
        log.wait("and has it not among its `relays`: name it there; going on to")
        log.wait("gets no task: it is a relay, and not among the server's `relays`")
    assert run.done()


def test_a_relay_that_starts_after_the_end_tells_its_clients() -> None:
    with ThreadPoolExecutor(3) as pool, fl.Server(model(), at(HERE), min_clients=1, relays=True) as server:
        relay = fl.Relay(at(server.netloc), at(HERE), linger=2.0)
        run = pool.submit(relay.run)
        pool.submit(server.linger, 1.0)
        while relay.server is None:
            assert not run.done()
        client = pool.submit(fl.Client(trains(0)).run, at(relay.server.netloc))
        final = client.result(LIMIT)
        assert final is not None
        assert final["w"].shape == (40, 30)
        run.result(LIMIT)


def test_clients_answer_a_relay_that_was_started_again_in_the_round() -> None:
    place = netq.NetworkLocation(*ports.free())
    with ThreadPoolExecutor(5) as pool, fl.Server(model(), at(HERE), min_clients=1, relays=True) as server:
        relays: list[fl.Relay] = []
        begun = threading.Event()

        def begin() -> None:
            relays.append(fl.Relay(at(server.netloc), at(place), min_clients=2))
            relays[-1].run()

        def restarts(number: int) -> Callable[..., Any]:
            def train(model: Any, config: Any) -> Any:
                if number == 0 and len(relays) == 1:
                    assert begun.wait(LIMIT)
                    relays[0].server.close(0.0)  # type: ignore[union-attr]
                    pool.submit(begin)
                begun.set()
                return trains(number)(model, config)

            return train

        first = pool.submit(begin)
        runs = [pool.submit(fl.Client(restarts(n)).run, at(place, uuid.UUID(int=n))) for n in range(2)]
        reports = [report for report in server.rounds(1) if report.clients]
        with pytest.raises(fl.RelayError, match="is closed: make another relay"):
            first.result(LIMIT)
        server.__exit__(None, None, None)
        for run in runs:
            run.result(LIMIT)
    assert {id.int for id in reports[0].clients} == {0, 1}


def test_a_client_of_two_relays_costs_one_sum_and_is_left_out_then(log: LogRecorder) -> None:
    with Tree([[0, 9], [1, 9]], trains, model=model(), min_clients=1, wait=2) as tree:
        first, *others = tree.rounds(3)
        assert {id.int for id in first.clients} in ({0, 9}, {1, 9})
        for report in others:
            assert {id.int for id in report.clients} == {0, 1}
            assert report.suspended == ()
    log.wait("(client 9): has answered through two relays, and takes no part in 16 rounds")


@pytest.mark.parametrize("arrays", [False, True])
def test_metrics_that_not_all_clients_have(arrays: bool) -> None:
    def measures(number: int) -> Any:
        found: dict[str, Any] = {"auc": float("nan") if number == 0 else float(number), "loss": 1.0}
        if number != 1:
            found["few"] = float(number)
        if arrays:  # each of two clients of three, and so more than one message may have
            found |= {f"{group}{n}": [1.0, 2.0] for group in ((0, 1), (1, 2), (2, 0))[number % 3] for n in range(50)}
        return lambda model, config: fl.Update(filled(number), 10 + number, found)

    flat, tree = (metrics_of(shape, measures) for shape in ([0, 1, 2, 3, 4, 5], [[0, 1, 2], [3, 4, 5]]))
    assert tree[0].keys() <= flat[0].keys()
    assert tree[0].keys() >= {"auc", "loss", "few"}
    for name in ("auc", "loss", "few"):
        assert tree[0][name] == pytest.approx(flat[0][name])
    assert tree[1] == flat[1] == {"auc": 1}


def metrics_of(shape: Shape, measures: Any) -> tuple[Mapping[str, Any], Mapping[str, int]]:
    with Tree(shape, measures) as tree:
        [report] = tree.rounds(1)
    return report.metrics, report.not_finite


@pytest.mark.parametrize("dtype", ["float16", "int64", "bool", "int8"])
def test_a_sum_that_is_wider_than_the_model_finds_room(dtype: str) -> None:
    large = {"w": np.zeros(2_500_000, dtype)}

    def gives(number: int) -> Any:
        return lambda model, config: fl.Update(model, 1)

    with Tree([[0], 1], gives, model=large) as tree:
        [report] = tree.rounds(1)
    assert len(report.clients) == 2


def test_a_relay_whose_clients_skip_has_skipped() -> None:
    def skips(number: int) -> Any:
        return lambda model, config: fl.Skip("no data") if number < 2 else fl.Update(filled(3.0), 1)

    with Tree([[0, 1], 2], skips, min_clients=1, wait=2, relay={"min_clients": 2}) as tree:
        [report] = tree.rounds(1)
    assert not report.failures
    assert sorted(report.skipped.values()) == ["its clients have nothing for it", "no data", "no data"]
