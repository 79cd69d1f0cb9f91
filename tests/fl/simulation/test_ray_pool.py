"""The engine "ray". Its tests run in the environment of Flower, whose simulation brings Ray."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
from fl.simulation import ray_pool
from netq import InvalidOption

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed here: make flower")
pytestmark = [  # of Ray's own processes
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
START = {"w": np.zeros(3, np.float32)}


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A Ray that the program has begun: a simulation leaves it as it is."""
    os.environ.update(ray_pool.ENVIRONMENT)
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Instead of that for all tests: Ray keeps connections as it likes, but no actor of ours may stay."""
    yield
    until = time.monotonic() + 60.0
    while (left := actors()) and time.monotonic() < until:
        threading.Event().wait(0.05)
    assert not left


def actors() -> list[str]:
    """Return the processes of our actors."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [str(path)] * path.read_bytes().startswith(b"ray::_Actor")
    return found


def noisy(model: Any, config: Mapping[str, Any]) -> fl.Update:
    state = config["state"]
    state["trained"] = state.get("trained", 0) + 1
    moved = model["w"] + np.random.normal(size=3).astype(np.float32)
    return fl.Update({"w": moved}, 1 + config["partition"], {"trained": state["trained"]})


def w(result: Any) -> list[float]:
    found: list[float] = result.model["w"].tolist()
    return found


@needs_ray
@pytest.mark.parametrize("strategy", [fl.FedAvg, fl.FedMedian, lambda: fl.FedBuff(4), fl.FedAdam])
def test_result_is_that_of_processes_for_any_number_of_actors(ray: Any, strategy: Any) -> None:
    def run(**settings: Any) -> Any:
        return fl.simulate(START, [noisy] * 10, 3, strategy=strategy(), seed=1, **settings)

    results = [run(engine="ray", processes=count) for count in (1, 2)]
    expected = run()
    assert w(results[0]) == w(results[1]) == w(expected)
    assert [r.metrics for r in results[0].reports] == [r.metrics for r in expected.reports]
    assert ray.is_initialized()


@needs_ray
def test_actor_that_dies_costs_its_chunk(ray: Any, caplog: pytest.LogCaptureFixture) -> None:
    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        if (config["round"], config["partition"]) == (2, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        return noisy(model, config)

    result = fl.simulate(START, [train] * 9, 3, engine="ray", processes=2)
    assert [len(report.clients) for report in result.reports] == [9, 8, 9]
    ((client, failure),) = result.reports[1].failures.items()
    assert (client.int, failure.why) == (3, fl.FailureKind.LOST)
    assert "an actor of Ray has died; its 1 clients are lost" in caplog.text


@needs_ray
def test_error_of_a_function_ends_the_simulation(ray: Any) -> None:
    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        raise ValueError("no such digit")

    with pytest.raises(fl.SimulationError, match=r"(?s)^client \d: round 1: train failed: .*no such digit"):
        fl.simulate(START, [train] * 4, engine="ray")


@needs_ray
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"actors": {"num_gpus": 0.5}}, r"simulate\.actors: .*num_gpus.*; expected no more than Ray has"),
        ({"actors": {"gpus": 0.5}}, r"simulate\.actors: .*gpus.*; expected options of an actor of Ray"),
        ({"actors": {"num_cpus": "two"}}, r"simulate\.actors: .*two.*; expected options of an actor of Ray"),
        ({"actors": [1]}, r"simulate\.actors: \[1\]; expected a dict"),
        ({"processes": 5}, r"simulate\.processes: 5 actors with .*; expected 2 at most"),
    ],
)
def test_more_than_ray_has_is_refused(ray: Any, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        fl.simulate(START, [noisy] * 4, engine="ray", **settings)


@needs_ray
def test_function_that_cannot_be_pickled_is_named(ray: Any) -> None:
    lock = threading.Lock()

    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        with lock:
            return noisy(model, config)

    with pytest.raises(InvalidOption, match=r"simulate\.clients: cannot be pickled: .*lock"):
        fl.simulate(START, [train] * 2, engine="ray")


def test_ray_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidOption, match=r"'ray' needs Ray .*: pip install 'netq-fl\[ray\]', or engine='processes'"):
        fl.simulate(START, [noisy] * 2, engine="ray")


@needs_ray
def test_cluster_that_is_not_there_is_named() -> None:
    """In a process of its own: a program has one Ray at a time."""
    program = "import fl, numpy; fl.simulate({'w': numpy.zeros(3)}, [print] * 2, engine='ray', address='127.0.0.1:9')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert re.search(
        r"InvalidOption: simulate\.address: '127\.0\.0\.1:9': .*expected the address of a Ray", done.stderr
    )
