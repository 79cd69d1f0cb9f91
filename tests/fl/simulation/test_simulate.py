"""A federation in processes of this machine: what it comes to, and that nothing is left of it, however it ends.

Processes, threads and descriptors that stay fail each of these tests (tests/conftest.py).
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
import netq
from fl.errors import SimulationError
from fl.messages import Report, Update
from fl.simulation import calls
from fl.simulation.arguments import Engine
from fl.simulation.calls import Calls
from fl.simulation.processes import WorkerPool
from fl.simulation.simulate import Result, simulate
from fl.simulation.worker import Start
from netq.testing.fixtures import LIMIT
from tests.fl.federation import SOON, adds, gives, zeros
from tests.pages import Page

ROOT = Path(__file__).parents[3]
SETTINGS: dict[str, Any] = {"processes": 2, "patience": fl.Patience(deadline=3 * SOON, void_pause=0.0)}


@pytest.fixture(autouse=True)
def no_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not look for random generators among all objects of this process: test_calls.py does."""
    monkeypatch.setattr(calls, "_generators", list)


def w(result: Result) -> list[float]:
    found: list[float] = result.model["w"].tolist()
    return found


def moves(model: Any, config: Mapping[str, Any]) -> Update:
    """A client whose sum with others depends on their order."""
    rng = np.random.default_rng([config["partition"], config["round"]])
    return Update({"w": model["w"] + rng.standard_normal(3).astype(np.float32)}, 1 + config["partition"])


def in_round(number: int, function: Callable[[], Any], partition: int = 1) -> Any:
    def train(model: Any, config: Mapping[str, Any]) -> Update:
        if (config["round"], config["partition"]) == (number, partition):
            function()
        return moves(model, config)

    return train


class Order(fl.FedAvg):
    """FedAvg that remembers whose updates it folded, by num_examples."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.folded: list[int] = []

    def fold(self, model: Any, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        self.folded.append(update.num_examples - 1)
        super().fold(model, update, client=client, staleness=staleness)


# What it comes to


every_engine = pytest.mark.parametrize("engine", ["processes", "network"])


@every_engine
@pytest.mark.parametrize("strategy", [fl.FedAvg, fl.FedMedian])
def test_clients_may_train_in_one_array(engine: Engine, strategy: type[fl.Strategy]) -> None:
    memory = zeros()["w"]

    def train(model: Any, config: Mapping[str, Any]) -> Update:
        memory[:] = config["partition"]
        return Update({"w": memory}, 1)

    result = simulate(zeros(), [train] * 33, 1, engine=engine, strategy=strategy(), **SETTINGS)
    assert w(result) == pytest.approx([16] * 3)


@dataclass
class Gives:
    value: float = field(compare=False)

    def __call__(self, model: Any, config: Mapping[str, Any]) -> Update:
        return Update({"w": np.full(3, self.value, np.float32)}, 1)


@every_engine
def test_clients_may_be_objects_that_are_equal_and_have_no_hash(engine: Engine) -> None:
    clients = [Gives(value) for value in (1, 2, 9)]
    assert w(simulate(zeros(), clients, 1, engine=engine, **{**SETTINGS, "processes": 1})) == [4, 4, 4]


@every_engine
def test_a_client_for_which_there_is_no_config_has_no_task(engine: Engine) -> None:
    def config(client: fl.ClientInfo) -> Mapping[str, Any]:
        if client.id.int == 1:
            raise LookupError("which?")
        return {}

    (report,) = simulate(zeros(), [moves] * 4, 1, engine=engine, config=config, **SETTINGS).reports
    assert len(report.clients) == 3
    assert [(each.why.name, id.int) for id, each in report.failures.items()] == [("INVALID", 1)]


@pytest.mark.parametrize("devices", [None, fl.Devices()])
def test_a_strategy_may_select_a_client_that_is_not_there(devices: fl.Devices | None) -> None:
    class More(fl.FedAvg):
        def select(self, number: int, clients: Any) -> Any:
            return [*clients, uuid.UUID(int=77)]

    (report,) = simulate(zeros(), [moves] * 4, 1, strategy=More(), devices=devices, **SETTINGS).reports
    assert len(report.clients) == 4
    assert [(each.why.name, id.int) for id, each in report.failures.items()] == [("LOST", 77)]


@every_engine
def test_a_client_that_changes_its_config_changes_that_of_no_other(engine: Engine) -> None:
    def train(model: Any, config: Mapping[str, Any]) -> Update:
        config["many"].append(1)
        config["array"][:] += 1
        return Update({"w": np.full(3, len(config["many"]) + config["array"][0], np.float32)}, 1)

    config = {"many": [], "array": np.zeros(1)}
    assert w(simulate(zeros(), [train] * 5, 2, engine=engine, config=config, **SETTINGS)) == [2, 2, 2]


@every_engine
def test_lambdas_are_clients_with_numbers_as_ids(engine: Engine) -> None:
    result = simulate(zeros(), [adds(value) for value in (1, 2, 3)], 2, engine=engine, **SETTINGS)
    assert w(result) == [4, 4, 4]
    assert [report.number for report in result.reports] == [1, 2]
    assert {id.int for id in result.reports[1].clients} == {0, 1, 2}
    assert result.measured == []


@every_engine
def test_config_has_partition_and_number_of_partitions(engine: Engine) -> None:
    def train(model: Any, config: Mapping[str, Any]) -> Update:
        facts = [config["partition"], config["partitions"], config["seed"]]
        return Update({"w": np.array(facts, np.float32)}, 1)

    assert w(simulate(zeros(), [train] * 5, 1, engine=engine, config={"seed": 7}, **SETTINGS)) == [2, 5, 7]


def test_measure_gets_the_model_after_each_round() -> None:
    result = simulate(zeros(), [adds(1)] * 2, 3, measure=lambda model: float(model["w"][0]), **SETTINGS)
    assert result.measured == [1, 2, 3]


def test_one_client_is_enough() -> None:
    assert w(simulate(zeros(), [adds(1)], 2)) == [2, 2, 2]


@every_engine
def test_evaluation_needs_no_turn(engine: Engine) -> None:
    def evaluate(model: Any, config: Mapping[str, Any]) -> Report:
        return Report(1, {"w": float(model["w"][0]), "partition": config["partition"]})

    clients = [fl.Client(adds(value), evaluate, compression="zstd=1") for value in (1, 3)]
    result = simulate(zeros(), clients, 3, engine=engine, evaluate=True, **SETTINGS)
    assert [report.evaluation for report in result.reports] == [{"w": 2 * n, "partition": 0.5} for n in (1, 2, 3)]


def test_evaluation_that_no_client_can_do_is_refused() -> None:
    with pytest.raises(netq.InvalidOption, match=r"simulate.evaluate: True; expected .*fl.Client\(train, evaluate\)"):
        simulate(zeros(), [adds(1)] * 2, 3, evaluate=True, **SETTINGS)


@pytest.mark.slow
def test_digits_equal_the_reference_loop() -> None:
    from examples.digits import data  # not at the top: a spawned process imports this module, and need not these
    from examples.digits import model as digits
    from examples.digits.reference import largest_difference, reference

    result = simulate(digits.initial(0), [digits.train] * 4, 5, config={"seed": 0}, **SETTINGS)
    assert largest_difference(result.model, reference(5, digits, 4)) < 1e-5
    assert digits.measure(result.model, data.held_out())[0] > 0.7


def of_seven(**settings: Any) -> list[float]:
    return w(simulate(zeros(), [moves] * 7, 4, strategy=fl.FedAdam(fraction=0.7), **settings))


@functools.cache
def of_seven_processes(engine: Engine) -> list[float]:
    return of_seven(engine=engine, processes=7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        ("processes", {"processes": 1}),
        ("processes", {"processes": 3}),
        ("processes", {"processes": 2, "start": "spawn"}),
        ("network", {"processes": 1}),
        ("network", {"processes": 3, "protocol": netq.Protocol.SHM}),
        ("network", {"processes": 2, "start": "spawn"}),
    ],
)
def test_model_is_bit_equal_for_any_processes_of_an_engine(engine: Engine, settings: dict[str, Any]) -> None:
    assert of_seven(engine=engine, **settings) == of_seven_processes(engine)


@pytest.mark.slow
def test_random_rounding_is_reproducible() -> None:
    def run(clients: Any, seed: int | None = 5, **settings: Any) -> Any:
        return w(simulate({"w": np.zeros(100, np.float32)}, clients, 3, seed=seed, **{**SETTINGS, **settings}))

    def climbs(model: Any, config: Mapping[str, Any]) -> Update:
        return Update({"w": model["w"] + np.linspace(0, 1, 100, dtype=np.float32)}, 1)

    def own(seed: int) -> list[fl.Client]:
        return [fl.Client(climbs, compression="int4", seed=seed + part) for part in range(3)]

    packed = run([climbs] * 3, strategy=fl.FedAvg(compression="int4"))
    clients = [fl.Client(climbs) for _ in range(3)]
    assert packed == run(clients, strategy=fl.FedAvg(compression="int4"), processes=1)
    assert packed != run([climbs] * 3, None, strategy=fl.FedAvg(compression="int4"))
    assert packed != run([climbs] * 3)
    assert run(own(1), None) == run(own(1), None) != run(own(9), None)


@every_engine
def test_updates_are_folded_in_order_of_selection(engine: Engine) -> None:
    """The first cannot answer before the last has trained."""
    gate_out, gate_in = os.pipe()
    order = [id.int for id in fl.FedAvg().select(1, [uuid.UUID(int=part) for part in range(5)])]

    def train(model: Any, config: Mapping[str, Any]) -> Update:
        if config["partition"] == order[0]:
            os.read(gate_out, 1)
        if config["partition"] == order[-1]:
            os.write(gate_in, b"!")
        return moves(model, config)

    strategy = Order()
    settings: dict[str, Any] = {"engine": engine, "processes": 5, "patience": fl.Patience(deadline=SOON)}
    simulate(zeros(), [train] * 5, 1, strategy=strategy, **settings)
    os.close(gate_out)
    os.close(gate_in)
    assert strategy.folded == order


@every_engine
def test_early_end_of_a_round_passes_the_turns_on(engine: Engine) -> None:
    strategies = [Order(fraction=0.5, oversample=0.5) for _ in range(2)]
    one, other = (
        simulate(zeros(), [moves] * 6, 5, strategy=strategy, engine=engine, **SETTINGS) for strategy in strategies
    )
    assert [len(report.clients) for report in one.reports] == [3] * 5
    assert (w(one), strategies[0].folded) == (w(other), strategies[1].folded)


@every_engine
def test_refused_client_passes_its_turn_on(engine: Engine) -> None:
    clients = [adds(1), gives(np.nan), adds(1)]
    result = simulate(zeros(), clients, 3, engine=engine, **SETTINGS)
    assert w(result) == [3, 3, 3]
    assert [[id.int for id in report.failures] for report in result.reports] == [[1]] * 3


@pytest.mark.slow
def test_asynchronous_strategy_needs_no_turns() -> None:
    result = simulate(zeros(), [adds(1)] * 4, 5, strategy=fl.FedBuff(2), engine="network", **SETTINGS)
    assert len(result.reports) == 5
    assert w(result)[0] > 1


def test_one_client_of_a_process_trains_at_a_time() -> None:
    training = threading.Lock()

    def train(model: Any, config: Mapping[str, Any]) -> Update:
        assert training.acquire(blocking=False)
        update = moves(model, config)
        training.release()
        return update

    assert len(simulate(zeros(), [train] * 8, 5, processes=1, patience=fl.Patience(deadline=SOON)).reports) == 5


# What goes wrong


@every_engine
def test_a_client_without_data_ends_no_simulation(engine: Engine) -> None:
    def empty(model: Any, config: Mapping[str, Any]) -> Update:
        return Update(model, 0)

    def skips(model: Any, config: Mapping[str, Any]) -> Update:
        raise fl.Skip("no data")

    result = simulate(zeros(), [adds(1), empty, adds(1), skips], 3, engine=engine, **SETTINGS)
    assert result.model["w"].tolist() == [3, 3, 3]
    for report in result.reports:
        assert {peer.int: why for peer, why in report.skipped.items()} == {1: "it has no examples", 3: "no data"}


@every_engine
def test_client_error_ends_the_simulation_with_its_traceback(engine: Engine) -> None:
    def fail() -> None:
        raise ValueError("no such digit")

    with pytest.raises(SimulationError, match=r"^client 1: round 2: train failed") as caught:
        simulate(zeros(), [in_round(2, fail)] * 3, 20, engine=engine, **SETTINGS)
    assert "in fail\n" in str(caught.value)
    assert str(caught.value).endswith("ValueError: no such digit")


@pytest.mark.slow
def test_client_error_in_the_last_round_is_raised() -> None:
    def fail() -> None:
        raise ValueError("no such digit")

    for _ in range(5):  # the error may arrive before or after the end of the round
        with pytest.raises(SimulationError, match=r"^client 1: round 1: train failed"):
            simulate(zeros(), [in_round(1, fail)] * 3, 1, engine="network", **SETTINGS)


def test_an_error_of_a_client_stands_before_what_a_round_makes_of_it() -> None:
    class Fails:
        def run(self, options: netq.CommunicatorOptions, protocol: netq.Protocol) -> None:
            raise ValueError("no such digit")

    closed = threading.Event()
    begin = Start(netq.NetworkLocation("127.0.0.1", 1), netq.Protocol.TCP, 1, ordered=True, strict=True)

    def run() -> None:
        with WorkerPool([{0: Fails()}], Calls(1)) as workers:
            workers.start("fork")
            with workers.run(begin, lambda seconds: closed.set()):
                assert closed.wait(LIMIT)
                raise SimulationError("round 1: no client has a valid update; client 0: it has gone")

    with pytest.raises(SimulationError, match=r"(?s)^client 0: .*no such digit"):
        run()


def test_wrong_return_type_ends_the_simulation() -> None:
    wrong: Any = lambda model, config: {}  # noqa: E731
    with pytest.raises(SimulationError, match=r"returned dict; expected fl\.Update"):
        simulate(zeros(), [adds(1), wrong], 20, **SETTINGS)


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"^the process of client 1, 3 was ended by SIGKILL"),
        (lambda: os._exit(3), r"^the process of client 1, 3 ended with status 3"),
        (lambda: sys.exit("enough"), r"(?s)^client 1: Traceback.*SystemExit: enough"),
    ],
)
def test_death_of_a_worker_ends_the_simulation(end: Callable[[], Any], how: str) -> None:
    with pytest.raises(SimulationError, match=how):
        simulate(zeros(), [in_round(2, end)] * 4, 20, engine="network", **SETTINGS)


@pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(3)])
def test_worker_that_ends_costs_its_chunk(end: Callable[[], Any]) -> None:
    """Nine clients are chunks of one; the second round has lost one, and the third has all of them."""
    result = simulate(zeros(), [in_round(2, end)] * 9, 3, **SETTINGS)
    assert [len(report.clients) for report in result.reports] == [9, 8, 9]
    ((client, failure),) = result.reports[1].failures.items()
    assert (client.int, failure.why) == (1, fl.FailureKind.LOST)
    assert re.match("its process (was ended by SIGKILL|ended with status 3); its log", failure.reason)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of 3.12: the workers' parent has threads
def test_program_of_a_worker_that_ends_holds_nothing_up() -> None:
    until, let_end = os.pipe()

    def last_words() -> None:
        fork(until)
        os._exit(3)

    try:
        result = simulate(zeros(), [in_round(1, last_words)] * 4, 2, **SETTINGS)
    finally:
        os.write(let_end, b"!")
        os.close(until)
        os.close(let_end)
    assert [len(report.clients) for report in result.reports] == [3, 4]


def test_simulation_whose_workers_all_end_is_an_error() -> None:
    with pytest.raises(SimulationError, match=r"^round 1: no client has a valid update; client 0: its process ended"):
        simulate(zeros(), [lambda model, config: os._exit(3)] * 2, 3, **SETTINGS)


def test_exit_of_a_function_ends_the_simulation() -> None:
    with pytest.raises(SimulationError, match=r"(?s)^client 1: Traceback.*SystemExit: enough"):
        simulate(zeros(), [in_round(2, lambda: sys.exit("enough"))] * 4, 20, **SETTINGS)


def counts(model: Any, config: Mapping[str, Any]) -> Update:
    """A client that keeps how often it has trained, but for one; and a local tensor, which the first model lacks."""
    state, own = config["state"], model.get("own", np.zeros(1))
    state["trained"] = state.get("trained", 0) + (config["partition"] != 1)
    return Update({"w": model["w"], "own": own + 1}, 1, {"trained": state["trained"], "own": own[0]})


@pytest.mark.parametrize("in_folder", [False, True])
def test_clients_keep_their_state_and_their_local_tensors(in_folder: bool, tmp_path: Path) -> None:
    folder = tmp_path / "kept" if in_folder else None
    start = {"w": np.zeros(3), "own": np.zeros(1)}
    result = simulate(start, [counts] * 3, 4, roles={"own": "local"}, keep=folder, processes=2)
    kept = [result.reports[-1].client_metrics[uuid.UUID(int=client)] for client in range(3)]
    assert kept == [{"trained": 4, "own": 3}, {"trained": 0, "own": 3}, {"trained": 4, "own": 3}]
    assert folder is None or {path.name for path in folder.iterdir()} == {"0", "1", "2"}


def test_state_that_cannot_be_kept_is_an_error() -> None:
    def train(model: Any, config: Mapping[str, Any]) -> Update:
        config["state"]["lock"] = threading.Lock()
        return Update(model, 1)

    with pytest.raises(
        SimulationError, match=r"^client 0: what it keeps in config\['state'\] cannot be pickled: .*lock"
    ):
        simulate(zeros(), [train], 3)


def test_config_by_client_and_properties_select() -> None:
    clients = [fl.Client(gives_rate, properties={"region": region}) for region in ("eu", "us", "eu")]
    strategy = fl.FedAvg(where={"region": "eu"})
    config = lambda client: {"rate": 1.0 + client.id.int}  # noqa: E731
    assert w(simulate(zeros(), clients, 1, strategy=strategy, config=config)) == [2, 2, 2]


def gives_rate(model: Any, config: Mapping[str, Any]) -> Update:
    return Update({"w": np.full(3, config["rate"], np.float32)}, 1)


def test_robust_strategy_gets_updates_and_names_the_one_that_it_refuses() -> None:
    clients = [adds(1), adds(2), gives(np.nan), adds(3)]
    result = simulate(zeros(), clients, 2, strategy=fl.FedMedian(), **SETTINGS)
    assert w(result) == [4, 4, 4]
    assert [[id.int for id in report.failures] for report in result.reports] == [[2]] * 2


def test_compressed_updates_and_their_residuals_are_the_same_in_any_process() -> None:
    def climbs(model: Any, config: Mapping[str, Any]) -> Update:
        return Update({"w": model["w"] + np.linspace(0, 1, 100, dtype=np.float32)}, 1)

    def run(processes: int) -> list[float]:
        strategy = fl.FedAvg(compression="int4, top_k=0.3")
        return w(
            simulate({"w": np.zeros(100, np.float32)}, [climbs] * 9, 4, strategy=strategy, seed=1, processes=processes)
        )

    assert run(1) == run(3)


def test_oversampled_clients_are_there_for_those_that_skip() -> None:
    def train(model: Any, config: Mapping[str, Any]) -> Update:
        if config["partition"] < 3:
            raise fl.Skip("no data")
        return moves(model, config)

    result = simulate(zeros(), [train] * 10, 1, strategy=fl.FedAvg(fraction=0.5, oversample=1.0), **SETTINGS)
    (report,) = result.reports
    assert len(report.clients) == 5
    assert {id.int for id in report.skipped} <= {0, 1, 2}


def test_checkpoint_of_a_simulation_is_a_servers(tmp_path: Path) -> None:
    path = tmp_path / "federation.ckpt"
    simulate(zeros(), [adds(1)] * 2, 3, checkpoint=path, strategy=fl.FedAdam())
    with fl.Server.resume(
        path, netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0)), strategy=fl.FedAdam()
    ) as server:
        assert server.number == 3
        server.close(0.0)


def test_error_of_measure_is_raised() -> None:
    def measure(model: Any) -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        simulate(zeros(), [adds(1)] * 3, measure=measure, **SETTINGS)


def test_refused_model_ends_the_workers() -> None:
    with pytest.raises(fl.InvalidUpdate):
        simulate({"w": np.array(["a"])}, [adds(1)] * 3)


def test_ctrl_c_during_training_ends_the_simulation() -> None:
    """Ctrl-C reaches all processes of the terminal; here the first to train stands for it."""

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)  # as if from the terminal: it is not for this process
        os.kill(os.getppid(), signal.SIGINT)
        threading.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        simulate(zeros(), [in_round(1, interrupt)] * 4, processes=4, patience=fl.Patience(deadline=SOON))


def fork(until: int) -> None:
    """Start a process as a data loader does; it ends when there is something to read."""
    multiprocessing.get_context("fork").Process(target=os.read, args=(until, 1)).start()


def fail() -> None:
    raise ValueError("no such digit")


def interrupt() -> None:
    os.kill(os.getppid(), signal.SIGINT)
    threading.Event().wait()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of 3.12: the clients' processes have threads
@pytest.mark.parametrize(
    ("end", "error", "why"),
    [
        (fail, SimulationError, "no such digit"),
        (interrupt, KeyboardInterrupt, "^$"),
    ],
)
def test_grandchild_does_not_delay_the_end(end: Callable[[], Any], error: type[BaseException], why: str) -> None:
    until, let_end = os.pipe()

    def last_words() -> None:
        fork(until)
        end()

    try:
        with pytest.raises(error, match=why):
            simulate(zeros(), [in_round(1, last_words)] * 4, **SETTINGS)
    finally:
        os.write(let_end, b"!" * 4)  # one for each that a client may have started
        os.close(until)
        os.close(let_end)


def starts_a_program(model: Any, config: Mapping[str, Any]) -> Update:
    """Leave it all that can be inherited."""
    subprocess.Popen(["cat", config["until"]], close_fds=False)
    os._exit(3)


@pytest.mark.slow
def test_program_started_by_a_spawned_worker_does_not_delay_the_end(tmp_path: Path) -> None:
    os.mkfifo(until := tmp_path / "until")
    with pytest.raises(SimulationError, match="ended with status 3"):
        simulate(zeros(), [starts_a_program], 1, start="spawn", config={"until": str(until)})
    until.write_bytes(b"")  # somebody is there to read it, and so it has outlived them


SCRIPT = """
import numpy as np, os, threading
from fl.simulation.simulate import simulate

def train(model, config):
    os.write(1, b"%d\\n" % config["partition"])
    threading.Event().wait()

simulate({"w": np.zeros(3, np.float32)}, [train] * 3, processes=3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_when_the_parent_is_killed(end: signal.Signals, tmp_path: Path) -> None:
    """Each of them has the script's output; it is closed when the last has ended."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(ROOT)}) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline() for _ in range(3)) == ["0\n", "1\n", "2\n"]
        process.send_signal(end)
        out, _ = process.communicate(timeout=SOON)
    assert (out, process.returncode) == ("", -end)


def test_spawn_refuses_functions_that_cannot_be_pickled() -> None:
    with pytest.raises(netq.InvalidOption, match=r"clients: cannot be pickled.*start='fork'"):
        simulate(zeros(), [lambda model, config: Update(model, 1)], start="spawn")


def test_spawn_reports_functions_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "moves", moves, raising=False)
    monkeypatch.setattr(moves, "__module__", "__main__")
    with pytest.raises(SimulationError, match=r"(?s)can be imported, or start='fork'.*attribute 'moves'"):
        simulate(zeros(), [moves] * 2, start="spawn")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"clients": []}, "there are none"),
        ({"clients": [adds(1), 5]}, "5; expected a train function"),
        ({"clients": [fl.Client(adds(1))] * 2}, "one fl.Client is there twice"),
        ({"min_clients": 5}, "simulate.min_clients: 5; expected 1 at most, as there are 1 clients"),
        ({"wait": 5, "engine": "network"}, "simulate.wait: 5; expected 1 at most, as there are 1 clients"),
        (
            {"clients": adds(1)},
            r"simulate.clients: <function .*; expected a list with a train function for each client",
        ),
        ({"clients": "adds"}, "simulate.clients: 'adds'; expected a list with a train function"),
        ({"strategy": "FedAvg"}, "simulate.strategy: 'FedAvg'; expected an object, as in fl.FedAvg()"),
        ({"processes": 0}, "processes: 0; expected 1 or more"),
        ({"protocol": netq.Protocol.MQTT, "engine": "network"}, "expected Protocol.TCP or Protocol.SHM"),
        ({"protocol": netq.Protocol.SHM}, r"expected <Protocol.TCP: 'tcp'>, or engine='network'"),
        ({"start": "forkserver"}, "expected 'fork' or 'spawn'"),
        ({"keep": 3}, r"simulate\.keep: 3; expected a new folder"),
        ({"measure": "loss"}, r"simulate\.measure: 'loss'; expected a function of a model"),
        ({"engine": "ray2"}, "simulate.engine: 'ray2'; expected 'processes' or 'ray' or 'network'"),
        ({"memory_limit": 100}, "simulate.memory_limit: 100; expected None, or engine='network'"),
        ({"wait": 1}, "simulate.wait: 1; expected None, or engine='network'"),
        ({"relays": True}, "simulate.relays: True; expected False, or engine='network'"),
        ({"secure": fl.SecureAggregation()}, "expected None, or engine='network'"),
        (
            {"keep": "x", "engine": "network"},
            "simulate.keep: 'x'; expected None, or engine='processes' or engine='ray'",
        ),
        ({"devices": fl.Devices(), "engine": "network"}, "simulate.devices: .*; expected None, or engine='processes'"),
        ({"devices": 3}, r"simulate.devices: 3; expected an fl\.Devices"),
        ({"start": "spawn", "engine": "ray"}, "simulate.start: 'spawn'; expected 'fork', or engine='processes' or"),
        ({"address": "auto"}, "simulate.address: 'auto'; expected None, or engine='ray'"),
        ({"keep": __file__}, "simulate.keep: .*File exists; expected a folder"),
        ({"keep": os.path.dirname(__file__)}, "simulate.keep: .* is not empty; expected a new folder"),
    ],
)
def test_wrong_options_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(netq.InvalidOption, match=why):
        simulate(zeros(), **{"clients": [adds(1)], **settings})


# The page


def test_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, clock, _ = Page("docs/how-to/simulation.md").blocks("python")
    names: dict[str, Any] = {}
    exec(code, names)
    assert [len(report.clients) for report in names["result"].reports] == [4] * 20
    assert 20 < names["result"].model["w"][0] < 120

    def evaluates(model: Any, config: Mapping[str, Any]) -> Report:
        return Report(1, {"accuracy": float(model["w"][0])})

    monkeypatch.chdir(tmp_path)
    names |= {"model": zeros(), "clients": [fl.Client(adds(1), evaluates) for _ in range(20)]}
    exec(clock.replace("fl.callbacks.plots.rounds", "dict"), names)  # matplotlib keeps its fonts open
    seconds = {name: sum(report.seconds for report in reports) for name, reports in names["runs"].items()}
    assert seconds["FedAvg"] == pytest.approx(20 * 100, rel=0.01)
    assert seconds["FedBuff"] < seconds["FedAvg"]


def test_diverged_clients_end_the_simulation_at_once() -> None:
    """A federation pauses between the attempts of a round; here, nothing would change meanwhile."""
    with pytest.raises(fl.SimulationError, match=r"^round 1: no client has a valid update; client [01]: 'w' holds NaN"):
        fl.simulate(zeros(), [gives(math.nan)] * 2, rounds=5, processes=1)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"rounds": "10"}, netq.InvalidOption, r"simulate\.rounds: '10'; expected a whole number"),
        ({"num_rounds": 3}, TypeError, "simulate has no argument 'num_rounds'; did you mean rounds"),
        ({"num_clients": 3}, TypeError, "simulate has no argument 'num_clients'; did you mean clients"),
        (
            {"deadline": 3},
            TypeError,
            r"simulate has no argument 'deadline'; it is a field of patience, as in patience=fl",
        ),
        ({"clients_per_round": 3}, TypeError, r"it is the strategy's, as in strategy=fl\.FedAvg\(fraction=0\.1\)"),
        ({"measure": 3}, netq.InvalidOption, r"simulate\.measure: 3; expected a function of a model"),
        ({"min_client": 3}, TypeError, "simulate has no argument 'min_client'; did you mean min_clients"),
        ({"options": None}, TypeError, "simulate has no argument 'options'"),
        ({"callbacks": fl.Progress}, netq.InvalidOption, r"Server\.callbacks: .*; expected a list of them"),
        ({"config": {"net": lambda: 3}}, netq.InvalidOption, r"Server\.config: 'net': with 1 it raises TypeError"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        fl.simulate(zeros(), [gives(1.0)] * 2, **arguments)


def test_result_is_short_in_a_notebook() -> None:
    result = fl.simulate(zeros(), [gives(1.0)] * 2, rounds=2, seed=3)
    assert re.fullmatch(r"<Result: 2 rounds, 1 tensors of 1.2e-05 MB, seed 3; round 2: 2 clients, .*>", repr(result))
