"""SaveBest and EarlyStopping: the best round, and the end of the rounds."""

from __future__ import annotations

import json
import logging
import math
import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fl
import netq
from fl.callbacks.best import is_low
from fl.callbacks.jsonl import Measured
from netq.errors import InvalidOption
from tests.fl.aggregation.test_update_store import disk_of
from tests.fl.federation import A, Federation, filled

LOCAL = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))


def report(number: int, **evaluation: float) -> fl.RoundReport:
    return fl.RoundReport(number, (A,), {}, {"loss": 9.0}, evaluation, 1.0, 10, 20)


def begun(callback: Any, *, evaluate: bool = True) -> Any:
    callback.federation_begins({"evaluate": evaluate})
    return callback


def saved(callback: Any, path: Path, rounds: Iterable[float], first: int = 1) -> list[float]:
    """Return what the file holds after each round; the model of a round is its value."""
    found = []
    begun(callback)
    for number, value in enumerate(rounds, first):
        callback.round_ends(report(number, accuracy=value), filled(value))
        with np.load(path) as model:
            found.append(round(float(model["w"][0]), 3))
    return found


@pytest.mark.parametrize(("lowest", "kept"), [(False, [0.5, 0.7, 0.7, 0.8]), (True, [0.5, 0.5, 0.2, 0.2])])
def test_the_best_model_is_kept(tmp_path: Path, lowest: bool, kept: list[float]) -> None:
    path = tmp_path / "best.npz"
    assert saved(fl.SaveBest(path, "accuracy", lowest=lowest), path, [0.5, 0.7, 0.2, 0.8]) == kept
    record = json.loads((tmp_path / "best.json").read_text())
    assert record == {"round": 3 if lowest else 4, "metric": "accuracy", "source": "evaluation", "value": kept[-1]}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["best.json", "best.npz"]


def test_a_resumed_server_goes_on_and_a_new_federation_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "best.npz"
    saved(fl.SaveBest(path, "accuracy"), path, [0.5, 0.7])
    assert saved(fl.SaveBest(path, "accuracy"), path, [0.6, 0.8], first=3) == [0.7, 0.8]
    assert saved(fl.SaveBest(path, "accuracy"), path, [0.1], first=1) == [0.1]
    (tmp_path / "best.json").write_text("no JSON")
    assert saved(fl.SaveBest(path, "accuracy"), path, [0.05], first=2) == [0.05]


@pytest.mark.parametrize(
    ("names", "low"),
    [
        ("loss val_loss server_loss valLoss testLoss2 LOSS losses log-loss mean_error error_rate top5_error", True),
        ("rmse RMSE val.MAE nll perplexity brier_score negative_log_likelihood eval/loss_1", True),
        ("accuracy top5_accuracy valAUC f1 f1_macro recall_negative neg_log_loss neg_mean_squared_error", False),
        ("log_likelihood R2", False),
        ("lossless_share terror blossoms merry distance 准确率 _ 7", None),
    ],
)
def test_the_words_of_a_name_say_which_values_are_better(names: str, low: bool | None) -> None:
    assert {name: is_low(name) for name in names.split()} == dict.fromkeys(names.split(), low)


def test_the_lowest_loss_is_the_best_without_an_option(tmp_path: Path) -> None:
    early = begun(fl.EarlyStopping("loss", patience=3))
    best = begun(fl.SaveBest(tmp_path / "best.npz", "loss"))
    for number in range(1, 51):
        for callback in (early, best):
            callback.round_ends(report(number, loss=1 / number), filled(number))
        assert not early.stop
    assert json.loads((tmp_path / "best.json").read_text())["round"] == 50


@pytest.mark.parametrize(
    ("metric", "lowest", "said"),
    [
        ("val_loss", False, "the highest 'val_loss' is to be the best, and by its name the lowest is; leave out"),
        ("accuracy", True, "the lowest 'accuracy' is to be the best, and by its name the highest is; leave out"),
        ("val_loss", True, ""),
        ("distance", True, ""),
    ],
)
def test_a_direction_that_contradicts_the_name_is_a_warning(
    metric: str, lowest: bool, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun(fl.EarlyStopping(metric, lowest=lowest))
    assert len(caplog.messages) == bool(said)
    assert said in "".join(caplog.messages)


def test_a_mean_of_few_finite_values_is_no_value(caplog: pytest.LogCaptureFixture) -> None:
    early = begun(fl.EarlyStopping("accuracy"), evaluate=False)
    few = of_clients(1, 0.9, math.nan, math.inf)
    assert early._watched.improves(replace(few, metrics={"accuracy": 0.9})) is None
    text = (
        "round 1: 1 of 3 clients have a finite 'accuracy' of the training; expected half of them at least (said once)"
    )
    assert caplog.messages == [text]
    assert early._watched._value(replace(of_clients(1, 0.5, 0.7, math.nan), metrics={"accuracy": 0.6})) == 0.6
    assert early._watched._value(of_clients(1, 0.1, 0.2, 0.3, 0.4, 0.5, math.nan)) == 0.3


def test_an_array_is_no_value(caplog: pytest.LogCaptureFixture) -> None:
    matrices = replace(of_clients(1, 0.5), metrics={"accuracy": np.zeros((3, 3))})
    assert begun(fl.EarlyStopping("accuracy"), evaluate=False)._watched.improves(matrices) is None
    assert caplog.messages == [
        "round 1: 'accuracy' of the training has the shape (3, 3); expected a number (said once)"
    ]


def test_a_sum_is_the_sum_and_no_median() -> None:
    clients = {uuid.UUID(int=client): {"right": fl.Sum(float(client))} for client in range(6)}
    summed = replace(of_clients(1, 0.5), metrics={"right": 15.0}, client_metrics=clients)
    assert begun(fl.EarlyStopping("right", of="median"), evaluate=False)._watched._value(summed) == 15.0


def test_a_value_that_is_not_finite_is_said_to_be_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begun(fl.SaveBest(tmp_path / "b.npz", "server_loss")).round_ends(report(1, server_loss=math.nan), filled(1))
    assert caplog.messages == ["round 1: 'server_loss' of the evaluation is nan; expected a finite number (said once)"]


def test_rounds_without_the_metric_keep_the_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "best.npz"
    callback = fl.SaveBest(path, "accuracy")
    saved(callback, path, [0.5])
    for number in (2, 3):
        callback.round_ends(report(number, other=1.0), filled(9))
    callback.round_ends(report(4, accuracy=math.nan), filled(9))
    assert json.loads((tmp_path / "best.json").read_text())["round"] == 1
    assert caplog.messages == ["round 2 has no metric 'accuracy' of the evaluation; it has: other (said once)"]


def test_a_server_refuses_a_model_that_the_file_cannot_hold(tmp_path: Path) -> None:
    model = {"w": torch.zeros(3, dtype=torch.bfloat16)}
    best = fl.SaveBest(tmp_path / "best.npz", "accuracy")
    for callbacks in ([best], [Measured(lambda model: {}, [best])]):
        with pytest.raises(InvalidOption, match=r"SaveBest\.path: 'w' is bfloat16 of .*; \.safetensors has bfloat16"):
            fl.Server(model, LOCAL, callbacks=callbacks, checkpoint=tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_the_best_model_in_bfloat16(tmp_path: Path) -> None:
    best = fl.SaveBest(tmp_path / "best.safetensors", "accuracy")
    model = {"w": torch.ones(3, dtype=torch.bfloat16)}
    with fl.Server(model, LOCAL, callbacks=[best]):
        pass
    best.round_ends(report(1, accuracy=0.5), model)
    assert torch.equal(load_file(tmp_path / "best.safetensors")["w"], model["w"])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["best.json", "best.safetensors"]


@pytest.mark.parametrize(
    ("options", "values", "rounds"),
    [
        ({"patience": 2}, [0.1, 0.2, 0.3, 0.3, 0.3, 0.9], 5),
        ({"patience": 2, "min_delta": 0.15}, [0.1, 0.2, 0.3, 0.31, 0.32, 0.9], 5),
        ({"patience": 1, "lowest": True}, [0.3, 0.2, 0.1, 0.2, 0.0], 4),
        ({"patience": 3}, [0.3, 0.2, 0.1], 3),
    ],
)
def test_early_stopping(options: Any, values: list[float], rounds: int) -> None:
    callback = begun(fl.EarlyStopping("accuracy", **options))
    done = 0
    for number, value in enumerate(values, 1):
        callback.round_ends(report(number, accuracy=value), {})
        done += 1
        if callback.stop:
            break
    assert done == rounds
    assert callback.stop is (options != {"patience": 3})


def of_clients(number: int, *values: float, **evaluation: float) -> fl.RoundReport:
    """A round whose clients report these accuracies after their training."""
    clients = {uuid.UUID(int=client): {"accuracy": value} for client, value in enumerate(values)}
    means = {"accuracy": sum(values) / len(values)}
    of_one = {next(iter(clients)): evaluation} if evaluation else {}
    each = {**{peer: {} for peer in clients}, **of_one}
    return fl.RoundReport(
        number, tuple(clients), {}, means, evaluation, 1.0, 10, 20, client_metrics=clients, client_evaluation=each
    )


LIE = 3.4e38  # about the largest value that a client can claim


@pytest.mark.parametrize(
    ("values", "of", "watched"),
    [
        ((0.1, 0.2, 0.3, 0.4, LIE), None, 0.3),
        ((0.1, 0.2, 0.3, LIE, LIE), None, 0.3),
        ((-LIE, 0.2, 0.3, 0.4, -LIE, 0.6), None, 0.25),
        ((0.1, 0.2, 0.3, LIE), None, LIE / 4),  # fewer than five: the mean
        ((0.1, 0.2, LIE), "median", 0.2),
        ((1.0, 1.0, 1.0, 1.0, 6.0), "mean", 2.0),
        ((0.1, LIE), "median", LIE / 2),  # half of the clients
    ],
)
def test_fewer_than_half_of_the_clients_do_not_move_a_median(
    tmp_path: Path, values: tuple[float, ...], of: Any, watched: float
) -> None:
    best = begun(fl.SaveBest(tmp_path / "best.npz", "accuracy", of=of), evaluate=False)
    best.round_ends(of_clients(1, *values), filled(1))
    assert json.loads((tmp_path / "best.json").read_text())["value"] == pytest.approx(watched)


def test_one_liar_ends_no_federation(tmp_path: Path) -> None:
    path = tmp_path / "best.npz"
    early, best = fl.EarlyStopping("accuracy", patience=3), fl.SaveBest(path, "accuracy")
    begun(early, evaluate=False)
    begun(best, evaluate=False)
    for number in range(1, 11):
        lie = LIE if number == 1 else 0.0
        for callback in (early, best):
            callback.round_ends(of_clients(number, lie, *[number / 100] * 4), filled(number))
        assert not early.stop
    record = json.loads((tmp_path / "best.json").read_text())
    assert record == {"round": 10, "metric": "accuracy", "source": "training", "value": 0.1}


@pytest.mark.parametrize("evaluate", [False, True])
def test_a_metric_of_one_client_in_three_is_no_value(evaluate: bool) -> None:
    watched = begun(fl.EarlyStopping("accuracy"), evaluate=evaluate)._watched
    assert watched._value(of_clients(1, 0.5, 0.5, 0.5, accuracy=LIE)) == (None if evaluate else 0.5)


def test_the_source_is_that_of_the_whole_federation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A round whose evaluation fails has no value: the metric of training is another quantity."""
    caplog.set_level(logging.INFO)

    def train(model: Any, config: Any) -> fl.Update:
        return fl.Update(filled(1), 1, {"accuracy": 0.99})

    def evaluate(model: Any, config: Any) -> fl.Report:
        if config["round"] == 3:
            raise OSError("share away")
        return fl.Report(1, {"accuracy": 0.6 + 0.01 * config["round"]})

    early, best = fl.EarlyStopping("accuracy", patience=4), fl.SaveBest(tmp_path / "best.npz", "accuracy")
    with Federation(min_clients=1, evaluate=True, callbacks=[early, best]) as federation:
        federation.join(A, train, evaluate)
        reports = list(federation.server.rounds(8))
    assert json.loads((tmp_path / "best.json").read_text())["round"] == 8
    assert [each.number for each in reports if each.evaluation_failures] == [3]
    assert str(reports[2].evaluation_failures[A]) == "OSError: share away"
    for name in ("SaveBest", "EarlyStopping"):
        assert caplog.messages.count(f"{name}: takes 'accuracy' of the evaluation; the highest is the best") == 1


@pytest.mark.parametrize(
    ("metric", "source", "evaluate", "taken"),
    [
        ("accuracy", None, False, "training"),
        ("accuracy", None, True, "evaluation"),
        ("accuracy", "training", True, "training"),
        ("server_accuracy", None, False, "evaluation"),
    ],
)
def test_the_server_decides_the_source_unless_the_user_does(
    tmp_path: Path, metric: str, source: Any, evaluate: bool, taken: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    begun(fl.SaveBest(tmp_path / "best.npz", metric, source=source), evaluate=evaluate)
    assert caplog.messages == [f"SaveBest: takes {metric!r} of the {taken}; the highest is the best"]


def test_a_round_that_is_not_evaluated_counts_as_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    early = begun(fl.EarlyStopping("accuracy", patience=2))
    values = {5: 0.5, 10: 0.6, 15: 0.6, 20: 0.6}
    for number in range(1, 21):
        evaluation = {"accuracy": values[number]} if number in values else {}
        early.round_ends(report(number, **evaluation), filled(number))
        assert early.stop is (number == 20)
    assert "no metric" not in caplog.text


def test_an_evaluation_that_never_comes_is_said_at_once(caplog: pytest.LogCaptureFixture) -> None:
    begun(fl.EarlyStopping("accuracy", source="evaluation"), evaluate=False)
    (line,) = caplog.messages
    assert line.startswith("EarlyStopping: the server does not evaluate, so no round has a value: set its evaluate")


def test_a_best_value_of_the_other_source_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "best.npz"
    saved(fl.SaveBest(path, "accuracy"), path, [0.9])
    trained = begun(fl.SaveBest(path, "accuracy"), evaluate=False)
    trained.round_ends(of_clients(2, 0.5), filled(2))
    assert json.loads((tmp_path / "best.json").read_text())["value"] == 0.5


def test_a_record_without_a_finite_value_is_none(tmp_path: Path) -> None:
    for text in ("[" * 100_000, '{"metric": "accuracy", "value": Infinity}'):
        (tmp_path / "best.json").write_text(text)
        best = begun(fl.SaveBest(tmp_path / "best.npz", "accuracy"), evaluate=False)
        best.round_ends(of_clients(2, 0.5), filled(1))
        assert json.loads((tmp_path / "best.json").read_text())["value"] == 0.5


def test_what_the_server_measures_is_no_median(tmp_path: Path) -> None:
    measured = fl.Measured(
        lambda model: {"accuracy": 0.75}, [fl.SaveBest(tmp_path / "best.npz", "server_accuracy", of="median")]
    )
    measured.round_ends(of_clients(1, *[0.5] * 5), filled(1))
    assert json.loads((tmp_path / "best.json").read_text())["value"] == 0.75


def test_a_round_that_could_not_be_saved_is_not_the_best(tmp_path: Path) -> None:
    path = tmp_path / "best.npz"
    callback = fl.SaveBest(path, "accuracy")
    saved(callback, path, [0.5])
    with disk_of(100), pytest.raises(OSError, match="too large"):
        callback.round_ends(report(2, accuracy=0.9), filled(0.9))
    assert saved(callback, path, [0.4, 0.7], first=3) == [0.5, 0.7]


def test_a_callback_ends_the_rounds_of_a_server() -> None:
    values = iter([1.0, 2.0, 2.0, 2.0, 3.0])
    early = fl.EarlyStopping("server_sum", patience=2)
    with Federation(min_clients=1, callbacks=[fl.Measured(lambda model: {"sum": next(values)}, [early])]) as federation:
        federation.join(A, lambda model, config: fl.Update(filled(1), 1))
        federation.server.wait(1, 10.0)
        assert [report.number for report in federation.server.rounds(100)] == [1, 2, 3, 4]


def test_a_resumed_server_knows_that_a_callback_has_ended_the_rounds(tmp_path: Path) -> None:
    early = fl.EarlyStopping("loss", patience=1)
    path = tmp_path / "c"
    with Federation(min_clients=1, callbacks=[early], checkpoint=path) as federation:
        federation.join(A, lambda model, config: fl.Update(filled(1), 1, {"loss": 1.0}))
        federation.server.wait(1, 10.0)
        assert not federation.server.is_over
        assert len(list(federation.server.rounds(100))) == 2
        assert federation.server.is_over
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
    with fl.Server.resume(path, options, min_clients=1) as server:
        assert (server.number, server.is_over) == (2, True)


def test_attempts_that_do_not_count_are_not_rounds(tmp_path: Path) -> None:
    """Neither is their model measured, nor kept as the best, nor do they use up patience."""
    measured: list[Any] = []
    early = fl.EarlyStopping("server_loss", patience=2)
    best = fl.SaveBest(tmp_path / "best.npz", "server_loss")

    def measure(model: Any) -> dict[str, float]:
        measured.append(model)
        return {"loss": 1.0}

    callback = fl.Measured(measure, [early, best])
    for attempt in range(1, 5):
        callback.round_ends(fl.RoundReport(1, (), {}, {}, {}, 1.0, 10, 20, attempt=attempt), {"w": np.zeros(3)})
    assert measured == []
    assert not early.stop
    assert list(tmp_path.iterdir()) == []
    callback.round_ends(report(1), {"w": np.zeros(3)})
    assert len(measured) == 1
    assert (tmp_path / "best.npz").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.SaveBest("best.npz", "loss", source="both"), "SaveBest.source: 'both'"),  # type: ignore[arg-type]
        (lambda: fl.SaveBest("best.npz", ""), "SaveBest.metric: ''"),
        (lambda: fl.SaveBest("best.bin", "loss"), "SaveBest.path: 'best.bin'; expected a name that ends in .npz or"),
        (lambda: fl.SaveBest("best.npz", "loss", lowest=1), "SaveBest.lowest: 1"),  # type: ignore[arg-type]
        (lambda: fl.SaveBest("best.npz", "loss", of="max"), "SaveBest.of: 'max'"),  # type: ignore[arg-type]
        (lambda: fl.EarlyStopping("loss", 0), "EarlyStopping.patience: 0"),
        (lambda: fl.EarlyStopping("loss", min_delta=-1), "EarlyStopping.min_delta: -1"),
    ],
)
def test_wrong_options_are_named(make: Any, message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        make()
    assert message in str(caught.value)
