"""The JSON of a page: what needs a look comes first, and all readers share one look."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from fl.page.history import History
from fl.page.overview import Clients, Overview
from fl.status import ClientStatus, Refusal, Stage
from netq.version import VERSION
from tests.fl.federation import SOON

DAY = 86400.0


def client(number: int, stage: Stage = Stage.DONE, **others: Any) -> ClientStatus:
    return ClientStatus(uuid.UUID(int=number), others.pop("name", ""), stage, **others)


def look(*members: ClientStatus, refusals: Any = ()) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Overview(History(), lambda: Clients(members, refusals)).look())
    return found


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, []),
        ({"stage": Stage.FAILED}, ["failed"]),
        ({"stage": Stage.LOST}, ["no connection"]),
        ({"suspended": True}, ["suspended"]),
        ({"certificate_end": 3 * DAY}, ["certificate ends soon"]),
        ({"certificate_end": 90 * DAY}, []),
        ({"ahead": 3600.0}, ["clock +3600 s"]),
        ({"ahead": -90.0}, ["clock -90 s"]),
        ({"ahead": 5.0}, []),
        ({"version": "0.0.1"}, ["version 0.0.1"]),
        ({"version": VERSION}, []),
    ],
)
def test_what_needs_a_look(status: dict[str, Any], expected: list[str]) -> None:
    if "certificate_end" in status:
        status = {**status, "certificate_end": time.time() + status["certificate_end"]}
    found = look(client(1, **status))
    assert found["table"][0]["warnings"] == expected
    assert found["attention"] == bool(expected)


def test_failed_clients_come_first_then_names() -> None:
    names = ["b-10", "a", "b-2", "", "7", "B-3"]
    members = [client(number, name=name) for number, name in enumerate(names, 1)]
    found = look(*members, client(9, Stage.FAILED, name="z"))
    assert [each["name"] for each in found["table"]] == ["z", "client 4", "7", "a", "b-2", "B-3", "b-10"]


def test_counts_by_stage_are_of_all_clients() -> None:
    members = [client(number, Stage.TRAINING) for number in range(999)] + [client(1000, Stage.LATE)]
    found = look(*members)
    assert found["stages"] == {"training": 999, "late": 1}
    assert len(found["table"]) == 50
    assert found["table"][0]["stage"] == "late"


def test_rows_by_stage_text_and_page() -> None:
    members = [
        client(number, Stage.LATE if number % 2 else Stage.DONE, name=f"board-{number:03}") for number in range(300)
    ]
    overview = Overview(History(), lambda: Clients(members))
    found = json.loads(overview.rows("late", "", 1))
    assert (found["total"], found["page"]) == (150, 1)
    assert [each["name"] for each in found["clients"]][:2] == ["board-101", "board-103"]
    assert json.loads(overview.rows("", "BOARD-007", 0))["total"] == 1
    assert json.loads(overview.rows("", "", 10**9))["clients"] == []


def test_slowest_and_refused() -> None:
    members = [client(number, seconds=float(number)) for number in range(20)] + [client(30)]
    found = look(*members, refusals=[Refusal(1.0, "10.0.0.1:5", "revoked"), Refusal(2.0, "10.0.0.2:5", "no <b>")])
    assert [each["seconds"] for each in found["slowest"]] == [
        19.0,
        18.0,
        17.0,
        16.0,
        15.0,
        14.0,
        13.0,
        12.0,
        11.0,
        10.0,
    ]
    assert [each["reason"] for each in found["refused"]] == ["no <b>", "revoked"]


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
def overview(history: History) -> Iterator[Overview]:
    overview = Overview(history, Clients)
    yield overview
    overview.close()


def until(events: Iterator[bytes], wanted: bytes) -> bytes:
    """Return the first event that begins so."""
    end = time.monotonic() + SOON
    for event in events:
        if event.startswith(wanted):
            return event
        assert time.monotonic() < end
    raise AssertionError("the stream has ended")


def test_stream_has_the_overview_then_each_new_round(history: History, overview: Overview) -> None:
    record = {"round": 1, "clients": ["a"], "metrics": {}, "evaluation": {}, "bytes_in": 1, "bytes_out": 1}
    history.round_ends(record, 0.0)
    events = iter(overview.follow(None, SOON))
    assert until(events, b"event: status")
    history.round_ends({**record, "round": 2}, 0.0)
    assert b'"round":2' in until(events, b"event: round\nid: 2\n")


def test_stream_goes_on_after_a_known_round(history: History, overview: Overview) -> None:
    record = {"round": 1, "clients": ["a"], "metrics": {}, "evaluation": {}, "bytes_in": 1, "bytes_out": 1}
    for number in (1, 2, 3):
        history.round_ends({**record, "round": number}, 0.0)
    events = iter(overview.follow(1, SOON))
    assert b'"round":2' in until(events, b"event: round\nid: 2\n")
    assert b'"round":3' in until(events, b"event: round\nid: 3\n")


def test_quiet_stream_has_comments(overview: Overview) -> None:
    events = iter(overview.follow(None, 0.01))
    assert until(events, b"event: status")
    assert until(events, b": ")


def test_close_ends_streams(overview: Overview) -> None:
    ended = threading.Event()

    def read() -> None:
        for _ in overview.follow(None, SOON):
            pass
        ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    overview.close()
    assert ended.wait(SOON)
    reader.join()


def test_readers_share_one_look() -> None:
    looks = []

    def look() -> Clients:
        looks.append(time.monotonic())
        return Clients([client(1)])

    overview = Overview(History(), look)
    for _ in range(100):
        overview.look()
        overview.rows("", "", 0)
    assert len(looks) <= 1 + 4 * (time.monotonic() - looks[0])


def test_without_readers_nothing_is_looked_at() -> None:
    def never() -> Clients:
        raise AssertionError

    overview = Overview(History(), never)
    overview.close()
    assert list(overview.follow(None, SOON)) == []
