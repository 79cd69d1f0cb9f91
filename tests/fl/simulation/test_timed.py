"""Training by a virtual clock: which updates count at which time, by hand-made numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import fl
import netq
from fl.simulation.simulate import Result, simulate

START = {"w": np.zeros(250_000, np.float32)}  # a megabyte
QUICK = {"w": np.zeros(2, np.float32)}


def trains(model: Any, config: Mapping[str, Any]) -> fl.Update:
    return fl.Update({"w": model["w"] + 1}, 1 + config["partition"], {"round": config["round"]})


def run(devices: fl.Devices, clients: int = 4, rounds: int = 3, **settings: Any) -> Result:
    return simulate(QUICK, [trains] * clients, rounds, devices=devices, seed=1, processes=2, **settings)


def seconds(result: Result) -> list[float]:
    return [round(report.seconds, 6) for report in result.reports]


def counted(result: Result) -> list[list[int]]:
    return [sorted(id.int for id in report.clients) for report in result.reports]


def test_a_round_takes_as_long_as_its_slowest_client() -> None:
    result = run(fl.Devices([1, 2, 3, 7]))
    assert seconds(result) == [7, 7, 7]
    assert counted(result) == [[0, 1, 2, 3]] * 3


def test_links_and_examples_take_their_time() -> None:
    result = simulate(START, [trains] * 2, 1, devices=fl.Devices(1, per_example=0.5, down=8, up=4), seed=1)
    assert seconds(result) == [1 + 1 + 0.5 * 2 + 2]


def test_a_client_is_late_by_the_deadline_and_suspended_after_three() -> None:
    result = run(fl.Devices([1, 1, 1, 60]), rounds=5, patience=fl.Patience(deadline=10, void_pause=0))
    assert seconds(result) == [10, 10, 10, 1, 1]
    assert counted(result) == [[0, 1, 2]] * 5
    reasons = [str(failure) for report in result.reports for failure in report.failures.values()]
    assert reasons == ["no answer within 10 s (deadline)"] * 3
    assert [id.int for id in result.reports[-1].suspended] == [3]


def test_close_early_waits_three_times_the_last_answer_and_a_second() -> None:
    slow_once = fl.Devices([1, 1, 1, 5])
    result = run(slow_once, rounds=2, patience=fl.Patience(close_early=True, void_pause=0), min_clients=4)
    assert seconds(result) == [5, 5]
    result = run(slow_once, rounds=2, patience=fl.Patience(close_early=True, void_pause=0), min_clients=3)
    assert seconds(result)[0] == 1  # a client that has never answered is not waited for


def test_oversampled_round_ends_when_enough_have_answered() -> None:
    result = run(fl.Devices([1, 2, 3, 4]), rounds=1, strategy=fl.FedAvg(fraction=0.5, oversample=1.0))
    assert (seconds(result), counted(result)) == ([2], [[0, 1]])
    assert {str(each) for each in result.reports[0].failures.values()} == {"enough others had answered"}


def test_late_updates_count_by_their_staleness() -> None:
    strategy = fl.FedAvg(fraction=0.5, oversample=1.0, staleness="polynomial(1)")
    result = run(fl.Devices([1, 1, 1.5, 5]), rounds=2, strategy=strategy)
    assert seconds(result) == [1, 1]
    # The second round has two clients to choose from, and needs one: the other one's update is the next round's.
    assert [len(report.clients) for report in result.reports] == [2, 2]
    assert {id.int: late for id, late in result.reports[1].staleness.items()} == {2: 1}


def test_fedbuff_makes_a_model_of_every_two_updates() -> None:
    result = run(fl.Devices([1, 2, 5, 50]), rounds=4, strategy=fl.FedBuff(2))
    # Of equal times first the task that was given first. At 2, client 0 has an update of the first model, which is
    # late; it is asked again, and has one of the second model at 3.
    assert np.cumsum(seconds(result)).tolist() == [2, 3, 4, 5]
    assert counted(result) == [[0, 1], [0], [0, 1], [0, 2]]
    assert {id.int: late for id, late in result.reports[3].staleness.items()} == {2: 3}


def test_an_asynchronous_strategy_has_a_clock_by_default() -> None:
    one, other = (simulate(QUICK, [trains] * 7, 6, strategy=fl.FedAsync(), seed=1, processes=count) for count in (1, 3))
    assert one.model["w"].tolist() == other.model["w"].tolist()
    assert seconds(one) == [1, 0, 0, 0, 0, 0]


def test_a_device_that_fails_is_lost_after_the_grace() -> None:
    result = run(fl.Devices(4, failures=[0, 0, 0, 1]), patience=fl.Patience(grace=10, void_pause=0), rounds=1)
    (failure,) = result.reports[0].failures.values()
    assert (failure.why, str(failure)) == (fl.FailureKind.LOST, "its device has failed")
    assert 10 < result.reports[0].seconds < 14


def test_hours_decide_who_is_there_and_what_is_lost() -> None:
    hours = [(8, 10), (8, 10), (8, 10), (9, 10)]
    patient = fl.Patience(deadline=9000, grace=0, void_pause=0)
    result = run(fl.Devices(1500, hours=hours, begin=7), rounds=4, patience=patient)
    assert seconds(result) == [3600 + 1500, 1500, 1500, 1500]
    assert counted(result) == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2, 3]]
    result = run(fl.Devices(3601, hours=(8, 10)), rounds=2, patience=patient)
    assert [(report.attempt, len(report.clients)) for report in result.reports] == [(1, 4), (1, 0), (2, 2)]
    assert {str(failure) for failure in result.reports[1].failures.values()} == {"its hours have ended"}
    assert seconds(result) == [8 * 3600 + 3601, 3599, 22 * 3600 + 3601]


def test_hours_that_never_overlap_are_an_error() -> None:
    with pytest.raises(netq.InvalidOption, match=r"^Devices\.hours: 2 clients are needed .* never there at once"):
        run(fl.Devices(hours=[(1, 2), (3, 4)]), clients=2)


def test_times_do_not_depend_on_the_machine() -> None:
    def some(processes: int) -> Any:
        devices = fl.Devices(lambda draw: draw.lognormvariate(0, 1), up=0.001, failures=0.2, seed=3)
        strategy = fl.FedBuff(3, staleness="hinge(10, 4)", compression="int8")
        result = simulate(QUICK, [trains] * 20, 9, devices=devices, strategy=strategy, seed=1, processes=processes)
        return result.model["w"].tolist(), [(report.seconds, report.clients) for report in result.reports]

    assert some(1) == some(3)


def test_robust_strategy_by_the_clock() -> None:
    assert counted(run(fl.Devices([1, 1, 1, 30]), strategy=fl.FedMedian(), rounds=1)) == [[0, 1, 2, 3]]


def test_evaluation_takes_no_time() -> None:
    def evaluates(model: Any, config: Mapping[str, Any]) -> fl.Report:
        return fl.Report(1, {"w": model["w"][0]})

    clients = [fl.Client(trains, evaluates) for _ in range(3)]
    result = simulate(QUICK, clients, 2, devices=fl.Devices(3), evaluate=True, seed=1)
    assert seconds(result) == [3, 3]
    assert [report.evaluation["w"] for report in result.reports] == [1, 2]


def test_what_arrives_between_two_attempts_turns_no_clock_back() -> None:
    patience = fl.Patience(deadline=0.5, void_pause=7)
    result = run(fl.Devices(1), 2, 2, strategy=fl.FedBuff(1), patience=patience)
    assert seconds(result) == [0.5, 7, 0]  # an update that has come meanwhile counts at once


def test_a_suspended_client_pays_what_it_owes_although_no_round_waits_for_it() -> None:
    patience = fl.Patience(deadline=lambda number: 1.5 if number < 4 else 20, void_pause=0)
    result = run(fl.Devices([1, 1, 1, 2]), rounds=22, patience=patience)
    assert [len(report.suspended) for report in result.reports[2:20]] == [1] * 16 + [0] * 2
    assert len(result.reports[-1].clients) == 4
