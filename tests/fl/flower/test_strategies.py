"""Flower's strategies and apps, unchanged, over fl's grid give the same result as in one process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
    Result,
    Strategy,
)

import fl.flower
import netq
from netq.security import certificates
from tests.fl.flower.apps import CONTEXT, ROUNDS, app, direct, evaluate, server, train
from tests.fl.flower.federation import SOON, Federation, at
from tests.servers import ports
from tests.servers.mosquitto import Mosquitto

NODES = 4
STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "FedAvg": FedAvg,
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "FedAdam": FedAdam,
    "FedAdagrad": FedAdagrad,
    "FedYogi": FedYogi,
    "FedAvgM": lambda: FedAvgM(server_momentum=0.9),
    "FedMedian": FedMedian,
    "FedTrimmedAvg": FedTrimmedAvg,
    "Krum": lambda: Krum(num_malicious_nodes=0),  # with 1 of 4 two nodes are equally near, and the first wins
    "MultiKrum": lambda: MultiKrum(num_malicious_nodes=1, num_nodes_to_select=2),
    "Bulyan": lambda: Bulyan(num_malicious_nodes=0),
    "QFedAvg": lambda: QFedAvg(client_learning_rate=0.05, q=0.2),
    "clipped": lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 0.5, NODES),  # no noise, so no chance
    "clipped adaptively": lambda: DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.0, NODES, 0.5),
    "ours": fl.flower.FedAvg,
    "ours, clipped": lambda: DifferentialPrivacyServerSideFixedClipping(fl.flower.FedAvg(), 0.0, 0.5, NODES),
    "ours, clipped adaptively": lambda: DifferentialPrivacyServerSideAdaptiveClipping(
        fl.flower.FedAvg(), 0.0, NODES, 0.5
    ),
}


def over(federation: Federation, strategy: Strategy, client: ClientApp = app) -> Result:
    """What a strategy comes to over a grid."""
    federation.join_all(client, NODES)
    server_app, results = server(strategy)
    federation.run(server_app)
    return results[0]


def in_process(strategy: Strategy, client: ClientApp = app) -> Result:
    server_app, results = server(strategy)
    with direct(client, NODES) as grid:
        server_app(grid, CONTEXT)
    return results[0]


def assert_same(one: Result, other: Result) -> None:
    """All but the order of the sums is the same."""
    assert_close(one.arrays, other.arrays)
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        ours, theirs = getattr(one, kind), getattr(other, kind)
        assert list(ours) == list(theirs) == [*range(1, ROUNDS + 1)]
        for number in ours:
            assert dict(ours[number]) == pytest.approx(dict(theirs[number]), rel=1e-5)


def assert_close(one: ArrayRecord, other: ArrayRecord) -> None:
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_allclose(one[name].numpy(), other[name].numpy(), rtol=1e-5, atol=1e-6, err_msg=name)
        assert np.any(one[name].numpy() != 0), name


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("protocol", netq.Protocol, ids=lambda protocol: protocol.value)
def test_a_strategy_runs_unchanged(protocol: netq.Protocol, name: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        options = None
        if protocol is netq.Protocol.MQTT:
            options = at(stack.enter_context(Mosquitto(tmp_path)).netloc)
        found = over(stack.enter_context(Federation(options, protocol)), STRATEGIES[name]())
    assert_same(found, in_process(STRATEGIES[name]()))


@pytest.mark.parametrize("inner", [FedAvg, fl.flower.FedAvg], ids=["flower's", "ours"])
@pytest.mark.parametrize(
    ("wrapper", "mod"),
    [
        (lambda inner: DifferentialPrivacyClientSideFixedClipping(inner, 0.0, 0.5, NODES), fixedclipping_mod),
        (lambda inner: DifferentialPrivacyClientSideAdaptiveClipping(inner, 0.0, NODES, 0.5), adaptiveclipping_mod),
    ],
    ids=["fixed", "adaptive"],
)
def test_clipping_at_the_nodes_runs_unchanged(wrapper: Any, mod: Any, inner: Any) -> None:
    clipped = ClientApp()
    clipped.train(mods=[mod])(train)
    clipped.evaluate()(evaluate)
    with Federation() as federation:
        found = over(federation, wrapper(inner()), clipped)
    assert_same(found, in_process(wrapper(FedAvg()), clipped))
    with pytest.raises(AssertionError):
        assert_close(found.arrays, in_process(FedAvg()).arrays)


class Reader(fl.flower.FedAvg):
    """A user's strategy that reads the replies before and after they are folded, as Flower's list can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[tuple[int, int, int]] = []

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        before = [reply.content["metrics"]["num-examples"] for reply in replies]
        found = super().aggregate_train(server_round, replies)
        after = [reply.content["metrics"]["num-examples"] for reply in replies]
        assert before == after
        assert replies[0] is next(iter(replies))
        self.read.append((len(before), len(after), len(replies)))
        return found


def test_a_strategy_may_read_the_replies_more_than_once() -> None:
    strategy = Reader()
    with Federation() as federation:
        found = over(federation, strategy)
    assert strategy.read == [(NODES, NODES, NODES)] * ROUNDS
    assert_same(found, in_process(FedAvg()))


@pytest.mark.parametrize("protocol", [netq.Protocol.TCP, netq.Protocol.GRPC])
def test_the_result_is_the_same_under_tls(files: certificates.Files, protocol: netq.Protocol) -> None:
    ours = at(("127.0.0.1", 0), security=netq.SecurityOptions(files.key, files.certificate))
    trusted = netq.SecurityOptions(certificate=files.authority)
    with Federation(ours, protocol, trusted) as federation:
        found = over(federation, FedAvg())
    assert_same(found, in_process(FedAvg()))


def test_run_opens_and_closes_a_grid() -> None:
    server_app, results = server(FedAvg())
    netloc = ports.free()
    with ThreadPoolExecutor(NODES) as pool:
        nodes = [fl.flower.Node(app, {"partition-id": number}) for number in range(NODES)]
        ends = [pool.submit(node.run, at(netloc)) for node in nodes]
        context = fl.flower.run(server_app, at(netloc), min_nodes=NODES, run_config={"lr": 0.1})
        for end in ends:
            end.result(SOON)
    assert (context.node_id, context.run_config) == (1, {"lr": 0.1})
    assert_same(results[0], in_process(FedAvg()))


def test_nodes_of_a_failed_app_wait_for_the_next_server() -> None:
    def fails(grid: Any, context: Context) -> None:
        assert len(grid.get_node_ids()) == NODES
        raise OSError("the disk is full")

    server_app, results = server(FedAvg())
    netloc = ports.free()
    with ThreadPoolExecutor(NODES) as pool:
        nodes = [fl.flower.Node(app, {"partition-id": number}) for number in range(NODES)]
        ends = [pool.submit(node.run, at(netloc)) for node in nodes]
        with pytest.raises(OSError, match="the disk is full"):
            fl.flower.run(fails, at(netloc), min_nodes=NODES)
        fl.flower.run(server_app, at(netloc), min_nodes=NODES)
        for end in ends:
            end.result(SOON)
    assert_same(results[0], in_process(FedAvg()))
