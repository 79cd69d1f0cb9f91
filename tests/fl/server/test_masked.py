"""Secure aggregation over a network: the model is that of plain federated averaging, and no update is in a message."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
import netq
from fl.messages import Answered, Masked, Reply, Task, Update
from fl.secure.layout import vector_bytes
from fl.secure.masker import Masker
from fl.secure.participant import Masking
from fl.server.dispatcher import TaskDispatcher
from netq.security import certificates
from netq.testing.log import LogRecorder
from tests.fl.federation import SOON, Federation, at

IDS = [uuid.UUID(int=number) for number in range(1, 6)]
SECURE = fl.SecureAggregation(metrics=("loss",))
STRATEGIES: dict[str, Callable[..., fl.Strategy]] = {
    name: getattr(fl, name) for name in ("FedAvg", "FedProx", "FedAvgM", "FedAdagrad", "FedAdam", "FedYogi")
}


def model() -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {
        "w": random.normal(size=(40, 30)),
        "bn.running_mean": random.normal(size=30).astype(np.float32),
        "bn.num_batches_tracked": np.array(7, np.int64),
        "mask": np.array([True, False]),
    }


def trains(number: int) -> Callable[[Any, Mapping[str, Any]], fl.Update]:
    """A client whose update depends on its number, the round and the model, which it changes in place."""

    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        random = np.random.default_rng([number, config["round"]])
        for name in ("w", "bn.running_mean"):
            model[name] += random.normal(size=model[name].shape).astype(model[name].dtype)
        model["bn.num_batches_tracked"] += number
        return fl.Update(model, 10 + number, {"loss": 0.5 + number, "secret": 3.0})

    return train


def evaluates(number: int) -> Any:
    return lambda model, config: fl.Report(10 + number, {"loss": float(number)})


@contextmanager
def federation(strategy: fl.Strategy, secure: Any, clients: int = 5, **settings: Any) -> Iterator[Federation]:
    settings = {"roles": {"mask": "constant"}, "min_clients": clients, **settings}
    with Federation(model(), strategy=strategy, secure=secure, **settings) as found:
        for number, id in enumerate(IDS[:clients]):
            found.join(id, trains(number), evaluates(number))
        yield found


def result(strategy: fl.Strategy, secure: Any) -> tuple[dict[str, Any], list[fl.RoundReport]]:
    with federation(strategy, secure, evaluate=True) as found:
        reports = list(found.server.rounds(3))
        return dict(found.server.model), reports


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("most", [100, "equal"])
def test_the_model_is_that_of_a_federation_without_masks(name: str, most: Any) -> None:
    plain, others = result(STRATEGIES[name](max_examples=most), None)
    found, reports = result(STRATEGIES[name](max_examples=most), SECURE)
    for tensor, value in plain.items():
        assert found[tensor].dtype == value.dtype
        assert found[tensor] == pytest.approx(value, abs=1e-4), tensor  # an adaptive optimizer enlarges a rounding
    for report, other in zip(reports, others, strict=True):
        assert sorted(report.clients) == sorted(other.clients)
        assert report.metrics == {"loss": pytest.approx(other.metrics["loss"])}
        assert report.evaluation == {"loss": pytest.approx(other.evaluation["loss"])}
        assert report.masked == fl.MaskedSum(5 if most == "equal" else 60, 0.0)
        assert report.failures == report.evaluation_failures == {}
        assert all(each == {} for each in report.client_metrics.values())
        assert ", masked, 0.00% clipped" in str(report)


def test_metrics_that_no_client_has_are_told_once(log: LogRecorder) -> None:
    secure = fl.SecureAggregation(metrics=("loss", "nll"))
    with federation(fl.FedAvg(max_examples=100), secure, clients=3) as found:
        assert [set(report.metrics) for report in found.server.rounds(2)] == [{"loss"}] * 2
    assert len(log.having("no client has the metrics 'nll'; expected names that train or evaluate returns")) == 1


def test_what_the_server_receives_has_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[Any] = []
    read = TaskDispatcher._get

    def get(self: Any, *peers: Any, timeout: float) -> bool:
        receive = self._receive

        def noted(peer: uuid.UUID, message: Any) -> bool:
            received.append(message)
            return bool(receive(peer, message))

        self._receive = noted
        try:
            return read(self, *peers, timeout=timeout)
        finally:
            self._receive = receive

    monkeypatch.setattr(TaskDispatcher, "_get", get)
    with federation(fl.FedAvg(max_examples="equal"), SECURE) as found:
        list(found.server.rounds(1))
    replies = [each.content for each in received if isinstance(each, Reply) and each.job.purpose == "train"]
    assert len(replies) == 5
    assert all(isinstance(each, Masked) for each in replies)
    assert {name for each in replies for name in vars(each)} == {
        *("session", "number", "vector", "packets", "shares", "secrets")
    }


def test_a_round_goes_on_without_a_client_that_is_lost_in_it() -> None:
    gone = threading.Event()

    def fails(model: Any, config: Any) -> Any:
        gone.set()
        raise RuntimeError("no camera")

    with federation(fl.FedAvg(max_examples="equal"), SECURE, clients=4, min_clients=4) as found:
        found.join(IDS[4], fails)
        found.server.wait(5, SOON)
        report = next(found.server.rounds(1))
        assert gone.is_set()
        assert sorted(report.clients) == IDS[:4]
        assert list(report.failures) == [IDS[4]]
        numbers = [trains(number)(model(), {"round": 1}).model["w"] for number in range(4)]
        assert found.server.model["w"] == pytest.approx(np.mean(numbers, axis=0), abs=1e-6)


def test_without_recovery_a_round_with_a_lost_client_is_repeated() -> None:
    def fails(model: Any, config: Any) -> Any:
        raise RuntimeError("no camera")

    secure = fl.SecureAggregation(recovers=False)
    strategy = fl.FedAvg(max_examples="equal")
    with federation(strategy, secure, clients=3, min_clients=3, void_pause=0.01) as found:
        found.join(IDS[4], fails)
        found.server.wait(4, SOON)
        void, counted = found.server.rounds(1)
        assert void.clients == ()
        assert "with recovers=False a sum without cannot be opened" in str(void.failures[IDS[0]])
        assert sorted(counted.clients) == IDS[:3]  # one that has just failed is not asked again


@pytest.mark.parametrize("recovers", [True, False])
def test_a_vector_of_an_attempt_before_is_dropped_and_the_next_one_counts(recovers: bool) -> None:
    """The late client sends both: that of the void attempt would be in no sum, and the other one is right."""
    masker = Masker(fl.SecurePolicy(), netq.CommunicatorOptions())
    masker.is_client(IDS[3])
    late: list[Reply] = []

    def answers(task: Task) -> list[Reply]:
        begun = masker.begin(task)
        if not isinstance(begun, Masking):
            assert isinstance(begun, Answered)
            return [Reply(task.job, begun)]
        trained = trains(3)(dict(task.model), {"round": task.job.round})
        del trained.model["mask"]  # a constant
        late.append(Reply(task.job, begun.mask(trained)))
        return late if len(late) == 2 else []

    secure = fl.SecureAggregation(recovers=recovers)
    with federation(fl.FedAvg(max_examples="equal"), secure, clients=3, min_clients=4) as found:
        found.join_raw(IDS[3], answers)
        found.server.wait(4, SOON)
        found.set_deadline(0.3)
        assert found.server.round().clients == ()
        found.set_deadline(SOON)
        assert sorted(found.server.round().clients) == IDS[:4]
        assert len(late) == 2


def test_a_vector_of_no_attempt_fails_at_once() -> None:
    """Its client owes no other one."""
    masker = Masker(fl.SecurePolicy(), netq.CommunicatorOptions())
    masker.is_client(IDS[3])

    def answers(task: Task) -> list[Reply]:
        begun = masker.begin(task)
        wrong = Masked(task.secure["session"], 77, np.zeros(8, np.uint8))
        return [Reply(task.job, begun if isinstance(begun, Answered) else wrong)]

    with federation(fl.FedAvg(max_examples="equal"), SECURE, clients=3) as found:
        found.join_raw(IDS[3], answers)
        report = found.round(4)
        assert sorted(report.clients) == IDS[:3]
        assert "a vector of the masked round 77; expected 1" in str(report.failures[IDS[3]])


def test_a_client_that_joins_later_takes_part_from_then_on() -> None:
    with federation(fl.FedAvg(max_examples="equal"), SECURE, clients=3) as found:
        rounds = found.server.rounds(2)
        assert len(next(rounds).clients) == 3
        found.join(IDS[3], trains(3))
        found.server.wait(4, SOON)
        assert len(next(rounds).clients) == 4


def test_a_client_that_is_started_again_takes_part_in_the_next_round() -> None:
    def exits(model: Any, config: Any) -> Any:
        raise SystemExit

    with federation(fl.FedAvg(max_examples="equal"), SECURE, clients=3, grace=0.1) as found:
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(fl.Client(exits).run, at(found.server.netloc, IDS[3]))
            found.server.wait(4, SOON)
            rounds = found.server.rounds(2)
            assert sorted(next(rounds).clients) == IDS[:3]
            assert isinstance(ended.exception(SOON), SystemExit)
        found.join(IDS[3], trains(3))
        found.server.wait(4, SOON)
        assert sorted(next(rounds).clients) == IDS[:4]


def test_a_client_without_masks_is_refused() -> None:
    def raw(task: Task) -> list[Any]:
        return [Reply(task.job, Update(dict(task.model), 1))]

    with federation(fl.FedAvg(max_examples="equal"), SECURE, clients=3) as found:
        found.join_raw(IDS[3], raw)
        found.server.wait(4, SOON)
        report = next(found.server.rounds(1))
        assert sorted(report.clients) == IDS[:3]
        assert str(report.failures[IDS[3]]) == "it answered with Update; expected Answered"


def test_a_client_that_wants_masks_sends_nothing_without() -> None:
    client = fl.Client(trains(1), secure=fl.SecurePolicy(required=True))
    with Federation(model(), roles={"mask": "constant"}, min_clients=1, void_pause=0.01, void_rounds=1) as found:
        found.start(client.run, at(found.server.netloc, IDS[0]))
        found.server.wait(1, SOON)
        report = found.server.round()
        assert "answers under secure aggregation only" in str(report.failures[IDS[0]])


def test_a_client_that_wants_more_clients_takes_no_part() -> None:
    with federation(fl.FedAvg(max_examples="equal"), SECURE, clients=3) as found:
        found.start(fl.Client(trains(3), secure=fl.SecurePolicy(min_clients=10)).run, at(found.server.netloc, IDS[3]))
        found.server.wait(4, SOON)
        report = next(found.server.rounds(1))
        assert sorted(report.clients) == IDS[:3]
        assert "a session of 4 clients; this client wants 10 at least" in str(report.failures[IDS[3]])


def test_clients_with_compression_of_their_own_are_told() -> None:
    with federation(fl.FedAvg(max_examples="equal"), SECURE, clients=3) as found:
        found.start(fl.Client(trains(3), compression="int8").run, at(found.server.netloc, IDS[3]))
        found.server.wait(4, SOON)
        report = next(found.server.rounds(1))
        assert "compression" in str(report.failures[IDS[3]])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"strategy": fl.Krum(byzantine=1)}, "Krum looks at single updates"),
        ({"strategy": fl.QFedAvg(max_examples="equal")}, "QFedAvg looks at single updates"),
        ({"strategy": fl.Scaffold()}, "Scaffold looks at single updates"),
        ({"strategy": fl.FedBuff(2)}, "FedBuff looks at single updates"),
        ({"strategy": fl.FedAvg()}, "no bound of the examples of a client; expected max_examples"),
        ({"strategy": fl.FedAvg(max_examples=9, compression="int8")}, "cannot be packed"),
        ({"strategy": fl.FedAvg(max_examples=9, staleness="hinge(10, 4)")}, "masks fit those of one round only"),
        ({"secure": True}, "expected an object, as in fl.SecureAggregation"),
    ],
)
def test_what_cannot_be_combined_is_refused(settings: Any, reason: str) -> None:
    with pytest.raises(netq.InvalidOption, match=f"Server.secure: .*{reason}"):
        fl.Server(model(), **{"secure": SECURE, "strategy": fl.FedAvg(max_examples=9), **settings})


@pytest.mark.parametrize("dtype", [np.float16, np.uint8, np.bool_])
@pytest.mark.parametrize("bound", [True, False])
def test_a_vector_that_is_larger_than_four_models_has_room(dtype: Any, bound: bool) -> None:
    size = 6_000_000
    start = {"w": np.zeros(size, dtype)}
    vector = vector_bytes(start, {"w": "trained"}, ())
    least = start["w"].nbytes + 2 * vector + 20_000_000
    settings: dict[str, Any] = {"memory_limit": least} if bound else {}
    secure, strategy = fl.SecureAggregation(), fl.FedAvg(max_examples="equal")
    if bound:
        with pytest.raises(netq.InvalidOption, match=f"memory_limit: {least - 1}; expected {least} bytes"):
            fl.Server(start, secure=secure, strategy=strategy, memory_limit=least - 1)
    with Federation(start, strategy=strategy, secure=secure, min_clients=3, **settings) as found:
        for id in IDS[:3]:
            found.join(id, lambda model, config: fl.Update(model, 1))
        assert len(next(found.server.rounds(1)).clients) == 3


def test_a_model_with_infinity_is_refused() -> None:
    infinite = {"w": np.zeros(2, np.float32), "range.activation_post_process.min_val": np.full(2, np.inf)}
    with pytest.raises(netq.InvalidOption, match="holds infinity, whose change is no number"):
        fl.Server(infinite, secure=SECURE, strategy=fl.FedAvg(max_examples=9))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"min_clients": 2}, "min_clients: 2; expected 3 or more"),
        ({"clip": 0}, "clip: 0; expected a number"),
        ({"clip": float("nan")}, "clip"),
        ({"step": 0}, "step"),
        ({"metrics": "loss"}, "metrics: 'loss'; expected 100 names at most"),
        ({"metrics": [f"m{number}" for number in range(101)]}, "metrics: .*; expected 100 names at most"),
        ({"recovers": 1}, "recovers"),
    ],
)
def test_options_that_are_not_valid_are_refused(options: Any, reason: str) -> None:
    with pytest.raises(netq.InvalidOption, match=f"SecureAggregation.{reason}"):
        fl.SecureAggregation(**options)


# With certificates


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certificates.init(tmp_path)
    for name in "abcd":
        certificates.issue(tmp_path, name)
    return tmp_path


def options(folder: Path, name: str) -> netq.SecurityOptions:
    files = [folder / f"{name}-key.pem", folder / f"{name}.pem", folder / "authority.pem"]
    return netq.SecurityOptions(key=files[0], certificate=files[1], authority=files[2])


def test_certificates_prove_the_keys_of_the_others(folder: Path, log: LogRecorder) -> None:
    settings: dict[str, Any] = {"roles": {"mask": "constant"}, "min_clients": 3}
    strategy = fl.FedAvg(max_examples="equal")
    with Federation(model(), strategy=strategy, secure=SECURE, security=options(folder, "server"), **settings) as found:
        for number, name in enumerate("abc"):
            its = netq.CommunicatorOptions(netloc=found.server.netloc, security=options(folder, name))
            found.start(fl.Client(trains(number)).run, its)
        report = next(found.server.rounds(1))
        assert len(report.clients) == 3
    assert not log.having("without certificates")
