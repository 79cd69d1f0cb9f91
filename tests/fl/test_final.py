"""The last model reaches the clients that want it."""

from __future__ import annotations

import math
import threading
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fl
import netq
from fl.envelope import ENVELOPES, End, Final, Introduction
from fl.messages import Update
from fl.server import members
from tests.fl.federation import QUICK, SHORT, SOON, A, B, C, Federation, at, filled, gives


def starts(federation: Federation, id: uuid.UUID, client: fl.Client) -> Future[Any]:
    return federation.start(client.run, at(federation.server.netloc, id))


def test_run_returns_the_last_model() -> None:
    with Federation() as federation:
        runs = [starts(federation, id, fl.Client(gives(value))) for id, value in ((A, 1), (B, 3))]
        runs.append(starts(federation, C, fl.Client(gives(2), final_model=False)))
        federation.round(3)
    assert [run.result(SOON) and run.result(SOON)["w"].tolist() for run in runs] == [[2, 2, 2], [2, 2, 2], None]


def test_a_client_that_was_never_asked_gets_the_model_too() -> None:
    with Federation(min_clients=1, strategy=fl.FedAvg(where={"trains": True})) as federation:
        starts(federation, A, fl.Client(gives(7), properties={"trains": True}))
        idle = starts(federation, B, fl.Client(gives(9)))
        assert federation.round(2).clients == (A,)
    assert idle.result(SOON)["w"].tolist() == [7, 7, 7]


def test_the_last_model_has_the_local_tensors_of_its_client() -> None:
    def train(model: Any, config: Any) -> Update:
        return Update({"w": model["w"] + 1, "head": np.full(2, config["mine"], np.float32)}, 1)

    start = {**filled(0), "head": np.zeros(2, np.float32)}
    settings: Any = {"roles": {"head": "local"}, "config": lambda client: {"mine": client.id.int}}
    with Federation(start, **settings) as federation:
        runs = [starts(federation, id, fl.Client(train)) for id in (A, B)]
        federation.round(2)
    assert [run.result(SOON)["head"].tolist() for run in runs] == [[1, 1], [2, 2]]
    assert [run.result(SOON)["w"].tolist() for run in runs] == [[1, 1, 1]] * 2


def test_a_large_model_reaches_clients_on_slow_reading(tmp_path: Any) -> None:
    """The model is larger than a window, and one client still trains when the federation ends."""
    done, model = threading.Event(), {"w": np.zeros(3_000_000, np.float32)}

    def slow(model: Any, config: Any) -> Update:
        done.wait(SOON)
        return Update(model, 1)

    with ThreadPoolExecutor(2) as pool:
        options = at(netq.NetworkLocation("127.0.0.1", 0))
        with fl.Server(
            model, options, min_clients=1, strategy=fl.FedAvg(fraction=0.5), patience=fl.Patience(deadline=3 * SOON)
        ) as server:
            runs: list[Future[Any]] = [
                pool.submit(fl.Client(each).run, at(server.netloc, id))
                for id, each in ((A, slow), (B, lambda model, config: Update({"w": model["w"] + 1}, 1)))
            ]
            server.wait(2, SOON)
            server._federation.patience = fl.Patience(deadline=SHORT)
            for _ in server.rounds(2):  # one of them has A
                pass
            server._federation.patience = fl.Patience(deadline=3 * SOON)
            threading.Timer(SHORT, done.set).start()
        for run in runs:
            assert run.result(SOON)["w"].tolist() == server.model["w"].tolist()


def test_a_server_that_is_closed_at_once_sends_nothing() -> None:
    with ThreadPoolExecutor(1) as pool:
        options = at(netq.NetworkLocation("127.0.0.1", 0))
        server = fl.Server(filled(0), options, min_clients=1)
        run: Future[Any] = pool.submit(fl.Client(gives(1)).run, at(server.netloc, A, QUICK))
        server.wait(1, SOON)
        server.close(SOON)
        assert run.result(SOON)["w"].tolist() == [0, 0, 0]


def test_late_clients_of_a_server_that_lingers_get_the_model() -> None:
    with ThreadPoolExecutor(1) as pool, Federation(min_clients=1) as federation:
        federation.join(A, gives(4))
        federation.round(1)
        federation.start(federation.server.linger, 3 * SOON)  # until the server is closed
        late: Future[Any] = pool.submit(fl.Client(gives(1)).run, at(federation.server.netloc, B))
        assert late.result(SOON)["w"].tolist() == [4, 4, 4]


def test_a_client_that_comes_back_gets_the_model_once() -> None:
    with ThreadPoolExecutor(1) as pool, Federation(min_clients=1) as federation:
        federation.join(A, gives(4))
        federation.round(1)
        federation.start(federation.server.linger, 3 * SOON)
        again: list[Future[Any]] = []
        for _ in range(2):
            again.append(pool.submit(fl.Client(gives(1)).run, at(federation.server.netloc, B)))
            again[-1].exception(SOON)
    assert again[0].result()["w"].tolist() == [4, 4, 4]
    assert again[1].result() is None


def raw(server: fl.Server, id: uuid.UUID) -> netq.Communicator:
    return netq.new(purpose=netq.Purpose.CLIENT, options=replace(at(server.netloc, id), serialization=ENVELOPES))


def test_a_client_that_connects_while_others_get_the_model_gets_it_too() -> None:
    """It may have been started again while it received the model."""
    held: Future[None] = Future()  # the delivery to a client with a slow link

    def joins(server: fl.Server, slow: netq.Communicator) -> Any:
        try:
            assert slow.get(timeout=SOON).data == End(0, False)
            return fl.Client(gives(1)).run(at(server.netloc, B))
        finally:
            held.set_result(None)
            slow.close(0)

    with ThreadPoolExecutor(1) as pool:
        with fl.Server(
            filled(5), at(netq.NetworkLocation("127.0.0.1", 0)), min_clients=1, patience=fl.Patience(deadline=SOON)
        ) as server:
            slow = raw(server, A)
            slow.put(Introduction({}, False))
            server.wait(1, SOON)
            server._members.of(A).final = held
            late = pool.submit(joins, server, slow)
        assert late.result(SOON)["w"].tolist() == [5, 5, 5]


def test_a_late_client_has_time_to_say_that_it_wants_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says takes a round trip, which may be long."""
    monkeypatch.setattr(members, "_INTRODUCTION", math.inf)
    with Federation(min_clients=1) as federation, raw(federation.server, A) as queue:
        federation.start(federation.server.linger, 3 * SOON)
        with pytest.raises(TimeoutError):
            queue.get(timeout=SHORT)
        queue.put(Introduction({}, True))
        assert {type(queue.get(timeout=SOON).data) for _ in range(2)} == {End, Final}


def test_a_session_that_begins_while_the_server_looks_at_the_others_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    with fl.Server(filled(0), at(netq.NetworkLocation("127.0.0.1", 0))) as server:
        queue = server._members.queue
        absences = queue.absences

        def looked() -> Any:
            monkeypatch.undo()
            found = absences()
            server._members._session_begins(A)  # as netq's thread calls it, at any moment
            assert server.clients == ()  # as any thread may ask
            return found

        monkeypatch.setattr(queue, "absences", looked)
        server._members.update()
        assert server._members.is_new(A)


def test_ctrl_c_while_the_model_is_handed_out_closes_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    server = fl.Server(filled(0), at(netq.NetworkLocation("127.0.0.1", 0)), min_clients=1)
    monkeypatch.setattr(server, "_hand_out", interrupted)
    with pytest.raises(KeyboardInterrupt), server:
        pass
    with pytest.raises(netq.Closed):
        server.wait(1, SOON)


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_the_option_is_a_flag(value: Any) -> None:
    with pytest.raises(netq.InvalidOption, match=r"Client\.final_model: .*; expected True or False"):
        fl.Client(gives(1), final_model=value)
