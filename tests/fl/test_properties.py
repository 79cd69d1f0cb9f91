"""Tests of fl/properties.py: what clients say of themselves, and what servers and strategies choose by it."""

from __future__ import annotations

import enum
import math
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fl
import netq
from fl.envelope import Introduction
from fl.errors import InvalidUpdate
from fl.messages import MESSAGES, Task, Update
from fl.properties import Properties, checked, checked_name, matches, short_title, title
from fl.server import members
from netq.security import certificates
from netq.utils.stream import Stream
from tests.fl.federation import SOON, A, B, C, Federation, at, filled, gives, reply

EU: Properties
US: Properties
EU, US = {"region": "eu", "memory_mb": 512}, {"region": "us", "memory_mb": 4096}


class FrameKind(enum.StrEnum):
    CAMERA = "camera"


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ([], r"p: \[\]; expected at most 64 numbers, texts, True or False by name"),
        ({str(number): 1 for number in range(65)}, "p: {.*; expected at most 64"),
        ({3: 1}, "p: a name: 3; expected"),
        ({"": 1}, "p: a name: ''"),
        ({"a\n": 1}, "p: a name: "),
        ({"a": "x" * 201}, "p: 'a': 'x"),
        ({"a": "\x1b[31m"}, "p: 'a': "),
        ({"a": float("nan")}, "p: 'a': nan"),
        ({"a": 2**63}, "p: 'a': 9223372036854775808"),
        ({"a": [1]}, r"p: 'a': \[1\]"),
        ({"a": None}, "p: 'a': None"),
        ({"a": FrameKind.CAMERA}, "p: 'a': <FrameKind.CAMERA: 'camera'>"),
    ],
)
def test_wrong_properties_are_named(properties: Any, said: str) -> None:
    with pytest.raises(netq.InvalidOption, match=said):
        checked(properties, "p")
    with pytest.raises(fl.InvalidUpdate, match="^properties: " if said.startswith("p:") else ""):
        Introduction(properties)
    with pytest.raises(netq.InvalidOption, match=r"^Client\.properties: "):
        fl.Client(lambda model, config: Update(model, 1), properties=properties)


@pytest.mark.parametrize(
    ("where", "right"),
    [
        *((None, True), ({}, True), ({"region": "eu"}, True), ({"region": "us"}, False), ({"gpu": True}, False)),
        *(({"region": ["us", "eu"]}, True), ({"region": "eu", "memory_mb": 4096}, False), ({"memory_mb": 512.0}, True)),
        (lambda properties: properties.get("memory_mb", 0) > 100, True),
    ],
)
def test_clients_match_by_their_properties(where: Any, right: bool) -> None:
    assert matches(where, EU) == right


def test_true_is_not_1() -> None:
    assert not matches({"gpu": True}, {"gpu": 1})


@pytest.mark.parametrize("where", ["eu", 3, {"region": None}, {3: "eu"}, {"region": [["eu"]]}])
def test_a_wrong_choice_is_refused(where: Any) -> None:
    with pytest.raises(netq.InvalidOption, match=r"FedAvg\.where"):
        fl.FedAvg(where=where)


def joins(federation: Federation, id: uuid.UUID, value: float, properties: Properties | None = None) -> None:
    client = fl.Client(lambda model, config: Update(filled(value), 1), properties=properties)
    federation.start(client.run, at(federation.server.netloc, id))


@pytest.mark.parametrize(("patience", "counts"), [(math.inf, False), (0.0, True)])
def test_a_client_counts_when_it_has_introduced_itself_or_is_not_going_to(
    monkeypatch: pytest.MonkeyPatch, patience: float, counts: bool
) -> None:
    monkeypatch.setattr(members, "_INTRODUCTION", patience)
    with Federation(min_clients=1) as federation:
        options = replace(at(federation.server.netloc, A), serialization=MESSAGES)
        with netq.new(purpose="client", options=options) as queue:
            while not any(each.connected for each in federation.server.statistics().values()):
                queue.statistics()
            assert federation.server.clients == ((A,) if counts else ())
            queue.put(Introduction(EU))
            assert federation.server.wait(1, SOON) == (A,)


def test_a_strategy_selects_by_properties() -> None:
    with Federation(strategy=fl.FedAvg(where={"region": "eu"}), min_clients=2) as federation:
        for id, value, properties in ((A, 1, EU), (B, 3, EU), (C, 100, US)):
            joins(federation, id, value, properties)
        report = federation.round(3)
        assert set(report.clients) == {A, B}
        assert federation.w == filled(2)["w"].tolist()
        assert federation.server._members.properties == {A: EU, B: EU, C: US}


def test_a_choice_of_no_client_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with Federation(strategy=fl.FedAvg(where={"region": "moon"}), min_clients=1, void_rounds=1) as federation:
        joins(federation, A, 1, EU)
        assert not federation.round(1).clients
        with pytest.raises(fl.FederationStalled, match="0 clients failed: the log says why, as of a strategy that sel"):
            list(federation.server.rounds(1))
    assert "round 1: no client has the properties that are wanted: {'region': 'moon'}" in caplog.text


def test_the_config_may_be_a_function_of_the_client() -> None:
    seen: dict[uuid.UUID, list[Mapping[str, Any]]] = {A: [], B: []}

    def config(client: fl.ClientInfo) -> dict[str, Any]:
        rate = fl.schedules.step(1.0, 0.5, 1)
        return {"epochs": int(client.properties["memory_mb"]) // 512, "rate": rate, "mine": client.id.int}

    settings: Any = {"config": config, "strategy": fl.FedAvg(config={"mine": "the strategy's"})}
    with Federation(**settings) as federation:
        for id, properties in ((A, EU), (B, US)):

            def train(model: Any, config: Mapping[str, Any], id: uuid.UUID = id) -> Update:
                seen[id].append(config)
                return Update(filled(1), 1)

            federation.start(fl.Client(train, properties=properties).run, at(federation.server.netloc, id))
        for _ in range(2):
            federation.round(2)
    assert [(each["epochs"], each["rate"], each["mine"]) for each in seen[A]] == [
        (1, 1.0, "the strategy's"),
        (1, 0.5, "the strategy's"),
    ]
    assert [each["epochs"] for each in seen[B]] == [8, 8]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (lambda client: 3, "Server.config: 3; expected a dict of plain values by name"),
        (lambda client: {"round": 3}, "Server.config: 'round' is the number of the round"),
        (lambda client: {"f": object()}, "Server.config: 'f': a builtins.object"),
        (lambda client: {"epochs": client.properties["memory_mb"] // 512}, "TypeError: "),
        (lambda client: {"epochs": client.properties["gpu"]}, "KeyError: 'gpu'; expected a dict for any properties"),
    ],
)
def test_a_client_without_a_config_costs_the_others_nothing(config: Any, said: str) -> None:
    def of_others(client: fl.ClientInfo) -> Any:
        return config(client) if client.id == A else {}

    with Federation(config=of_others, min_clients=1) as federation:
        joins(federation, A, 1, {"memory_mb": "much"})
        joins(federation, B, 3, EU)
        report = federation.round(2)
        assert report.clients == (B,)
        assert report.failures[A].why is fl.FailureKind.INVALID
        assert said in str(report.failures[A])


def test_a_client_without_a_config_is_not_asked_again_in_the_next_attempt() -> None:
    [chosen] = fl.FedAvg(fraction=0.5).select(1, [A, B])

    def of_the_other(client: fl.ClientInfo) -> dict[str, Any]:
        if client.id == chosen:
            raise KeyError("region")
        return {}

    with Federation(strategy=fl.FedAvg(fraction=0.5), config=of_the_other, min_clients=1) as federation:
        for id in (A, B):
            joins(federation, id, 1)
        assert federation.round(2).failures.keys() == {chosen}
        assert federation.round(2).clients == tuple({A, B} - {chosen})


def test_a_client_for_which_where_raises_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with Federation(strategy=fl.FedAvg(where=lambda found: found["memory_mb"] > 100), min_clients=1) as federation:
        for id, properties in ((A, {"memory_mb": "much"}), (B, EU), (C, {"region": "eu"})):
            joins(federation, id, 1, properties)
        assert federation.round(3).clients == (B,)
    assert f"{title(A)}: takes no part: it says of itself {{'memory_mb': 'much'}}" in caplog.text
    assert (
        f"{title(C)}: takes no part: it says of itself {{'region': 'eu'}}, for which `where` raises KeyError"
        in caplog.text
    )


def test_a_client_introduces_itself_once_a_session() -> None:
    def repeats(task: Task) -> list[Any]:
        return [Introduction({"n": number}, False) for number in range(3)] + [reply(task, Update(filled(1), 1))]

    with Federation(min_clients=1) as federation:
        federation.join_raw(A, repeats)
        assert federation.round(1).clients == (A,)
        assert federation.server._members.properties == {A: {}}  # the first one's


def test_properties_travel() -> None:
    message = Introduction({"a": 1, "b": 0.5, "c": "text", "d": True})
    assert MESSAGES.load(Stream([bytearray(bytes(MESSAGES.dump(message)))])) == message


# Names.


@pytest.mark.parametrize("name", ["", "board-3", "Krankenhaus Süd", "x" * 64])
def test_name_of_a_client_is_right(name: str) -> None:
    assert checked_name(name, "Client.name") == name


@pytest.mark.parametrize("name", [None, 3, "x" * 65, "a\nb", "\x1b[2J", " a", "a "])
def test_wrong_name_is_named(name: object) -> None:
    with pytest.raises(netq.InvalidOption, match=r"Client\.name: .*64 printable characters"):
        checked_name(name, "Client.name")
    with pytest.raises(InvalidUpdate, match="name"):
        Introduction({}, name=name)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["time", "check"])
@pytest.mark.parametrize("value", [-1.0, 1e300, math.inf, math.nan, "1"])
def test_times_of_an_introduction_are_bounded(field: str, value: Any) -> None:
    with pytest.raises(InvalidUpdate, match=field):
        Introduction({}, **{field: value})


def test_title_of_a_client() -> None:
    long = uuid.UUID("66923fab-b835-4f3d-8000-0123456789ab")
    assert title(long) == str(long)
    assert title(long, "board-3") == f"board-3 ({long})"
    assert title(uuid.UUID(int=7)) == short_title(uuid.UUID(int=7)) == "client 7"
    assert (short_title(long), short_title(long, "board-3")) == ("66923fab", "board-3")


def test_name_is_in_log_report_and_status(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "netq.fl")
    with Federation() as federation:
        for id, name in ((A, "board-3"), (B, "")):
            federation.start(fl.Client(gives(1.0), name=name).run, at(federation.server.netloc, id))
        report = federation.round(2)
        status = {each.id: each for each in federation.server.members()}
    assert report.names == {A: "board-3"}
    assert "board-3 (client 1): joins from 127.0.0.1:" in caplog.text
    assert "client 2: joins from 127.0.0.1:" in caplog.text
    assert (status[A].short, status[B].short) == ("board-3", "client 2")
    assert (status[A].stage, status[A].updates, status[A].failures) == (fl.Stage.DONE, 1, 0)
    assert abs(status[A].ahead or 0.0) < SOON


def test_certificate_names_a_client(tmp_path: Path) -> None:
    """Whatever it calls itself."""
    folder = tmp_path / "certificates"
    files = certificates.init(folder)
    own = certificates.issue(folder, "board-7")
    security = netq.SecurityOptions(files.key, files.certificate, files.authority)
    with Federation(security=security, min_clients=1) as federation:
        options = at(federation.server.netloc)
        mine = replace(options, security=netq.SecurityOptions(own.key, own.certificate, files.authority))
        federation.start(fl.Client(gives(1.0), name="board-1").run, mine)
        report = federation.round(1)
        (status,) = federation.server.members()
    assert list(report.names.values()) == ["board-7"]
    assert status.name == "board-7"
    assert status.certificate_end is not None
    assert status.certificate_end > time.time() + 86400


def test_clock_and_version_of_a_client_are_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "netq.fl")

    def old(options: netq.CommunicatorOptions) -> None:
        with netq.new(purpose=netq.Purpose.CLIENT, options=replace(options, serialization=MESSAGES)) as queue:
            queue.put(Introduction({}, name="old", version="0.0.9", time=time.time() - 7200))
            queue.put(reply(queue.get(timeout=SOON).data, Update(filled(1), 1))).result(SOON)
            seen.wait(SOON)

    seen = threading.Event()
    with Federation(min_clients=1) as federation:
        run = federation.start(old, at(federation.server.netloc, A))
        federation.round(1)
        (status,) = federation.server.members()
        seen.set()
        run.result(SOON)
    assert status.version == "0.0.9"
    assert round((status.ahead or 0) / 60) == -120
    assert "old (client 1): joins from 127.0.0.1:" in caplog.text
    assert "version 0.0.9" in caplog.text
    assert "its clock is 7200 s behind this one's" in caplog.text
