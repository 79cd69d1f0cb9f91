"""The two messages between a grid and its nodes: round trips and invalid messages."""

from __future__ import annotations

import math
import uuid
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict

from fl.flower._compat import ErrorCode
from fl.flower.envelope import ENVELOPES, RAISED, UNAVAILABLE, VERSION, End, Files
from fl.flower.envelope import Ask as Envelope
from fl.flower.grid_messages import (
    MESSAGES,
    Ask,
    Reply,
    check_config,
    message_id,
    node_id,
    read_ask,
    read_reply,
    write_ask,
    write_reply,
)
from netq.errors import Unreadable
from netq.utils.stream import PickleSerializer, Stream

CONTENT = RecordDict({"a": ArrayRecord([np.ones(3)]), "m": MetricRecord({"x": 1})})
ASK = Ask(7, 8, {"lr": 0.1, "name": "n", "on": True, "n": 3}, "train.mine", "1", 1.5, 60.0, "abc", CONTENT)
GOOD = write_ask(ASK)


def travelled(message: Any) -> Any:
    return MESSAGES.load(Stream([bytearray(bytes(MESSAGES.dump(message)))]))


def test_an_ask_round_trips() -> None:
    assert read_ask(travelled(GOOD), copy=True) == ASK


@pytest.mark.parametrize(
    ("batch", "content"),
    [(0, CONTENT), (2**63 - 1, RecordDict()), (1, Error(2, "no data")), (1, Error(5)), (None, Error(3, "cannot read"))],
)
def test_a_reply_round_trips(content: RecordDict | Error, batch: int | None) -> None:
    found = read_reply(travelled(write_reply(Reply(batch, content))))
    assert found.batch == batch
    if isinstance(content, Error):
        assert found.content == Error(content.code, content.reason or "")
    else:
        assert found.content == content


def test_a_node_id_is_the_same_in_each_run() -> None:
    assert node_id(uuid.UUID("7f0c5e0a-6f0e-4c0e-9d6b-0d3c1f2a4b5c")) == 532615230807883590
    numbers = {node_id(uuid.UUID(int=n)) for n in range(5000)}
    assert len(numbers) == 5000
    assert 2 <= min(numbers) <= max(numbers) < 2**63
    assert len({message_id(batch, node) for batch in (1, 16, 256) for node in (1, 16, 256)}) == 9


def test_a_pickle_is_no_message() -> None:
    for surprise in (uuid.uuid4(), Error(1), CONTENT, ASK):
        bad = bytes(PickleSerializer().dump(surprise))
        with pytest.raises(Unreadable):
            MESSAGES.load(Stream([bytearray(bad)]))


def changed(at: int, value: Any) -> list[Any]:
    return [*GOOD[:at], value, *GOOD[at + 1 :]]


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (None, "a message: expected a list that begins with its version"),
        ("netq-flower/1", "a message: expected a list"),
        ([], "a message: expected a list"),
        (tuple(GOOD), "a message: expected a list"),
        (changed(0, "netq-flower/2"), "the version of a message: expected netq-flower/1; install the same netq"),
        (changed(0, 1), "the version of a message: expected netq-flower/1"),
        (GOOD[:-1], "a message of the grid: expected ten fields"),
        (changed(1, -1), "the batch and the run of a message: expected whole numbers of 63 bits"),
        (changed(1, None), "the batch and the run of a message: expected whole numbers"),
        (changed(2, 2**63), "the batch and the run of a message: expected whole numbers"),
        (changed(2, True), "the batch and the run of a message: expected whole numbers"),
        (changed(3, []), "a config: expected a dict"),
        (changed(3, {1: 1}), "a config: expected single values by name"),
        (changed(3, {"a": [1]}), "a config: expected single values by name"),
        (changed(3, {"a": b"1"}), "the config's 'a': expected one of bool, int, float, str"),
        (changed(4, 1), "the type of a message: expected a text"),
        (changed(4, "banana"), "the type of a message: expected Invalid message type: 'banana'"),
        (changed(4, "train.not an identifier"), "the type of a message: expected"),
        (changed(5, None), "the group of a message: expected a text"),
        (changed(6, math.nan), "the time of a message: expected seconds"),
        (changed(7, math.inf), "the time of a message: expected seconds"),
        (changed(7, "1"), "the time of a message: expected seconds"),
        (changed(8, None), "the app's version in a message: expected 100 printable characters at most"),
        (changed(8, "x" * 101), "the app's version in a message: expected 100 printable"),
        (changed(9, None), "the records: expected a list"),
    ],
)
def test_an_invalid_ask_is_unreadable(plain: Any, message: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read_ask(plain, copy=False)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (None, "a message: expected a list"),
        ([VERSION, 1], "a reply: expected four fields"),
        ([VERSION, 1, []], "a reply: expected four fields"),
        ([VERSION, 1, [], {}, []], "a reply: expected four fields"),
        ([VERSION, 1, [], []], "the usage in a reply: expected"),
        ([VERSION, 1, [], {"x": "1"}], "the usage in a reply: expected"),
        ([VERSION, 1, [], {"x": float("nan")}], "the usage in a reply: expected"),
        ([VERSION, 1, [], {"x": 10**400}], "the usage in a reply: expected"),
        ([VERSION, 1, [], {5: 1.0}], "the usage in a reply: expected"),
        ([VERSION, 1, [], {str(n): 1.0 for n in range(11)}], "the usage in a reply: expected"),
        ([VERSION, "1", [], {}], "the batch of a reply: expected a whole number of 63 bits"),
        ([VERSION, 2**63, [], {}], "the batch of a reply: expected a whole number"),
        ([VERSION, None, [], {}], "the batch of a reply: expected a whole number of 63 bits, or None for an error"),
        ([VERSION, 1, {}, {}], "the code of an error: expected a whole number"),
        ([VERSION, 1, "2", ""], "the code of an error: expected a whole number of 31 bits"),
        ([VERSION, 1, -1, ""], "the code of an error: expected a whole number of 31 bits"),
        ([VERSION, 1, 2, None], "the reason of an error: expected 1000 characters at most"),
        ([VERSION, 1, 2, "x" * 1001], "the reason of an error: expected 1000 characters at most"),
    ],
)
def test_an_invalid_reply_is_unreadable(plain: Any, message: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read_reply(plain)
    assert str(caught.value).startswith(message)


def test_a_reason_cannot_forge_log_lines() -> None:
    reply = read_reply([VERSION, 1, 2, "oh\nWARNING all is well\x1b[2J"])
    assert reply.content == Error(2, "oh\\nWARNING all is well\\x1b[2J")


def test_the_sender_shortens_a_long_reason() -> None:
    assert len(write_reply(Reply(1, Error(2, "x" * 5000)))[3]) == 1000


@pytest.mark.parametrize("config", [None, [("a", 1)], {"a": None}, {"a": [1]}, {1: 1}, {"a": {}}])
def test_a_config_holds_single_values_by_name(config: Any) -> None:
    with pytest.raises(Unreadable, match="config"):
        check_config(config)


def enveloped(plain: Any) -> Any:
    return ENVELOPES.load(Stream([bytearray(bytes(MESSAGES.dump(plain)))]))


@pytest.mark.parametrize(
    ("ask", "title"),
    [
        (ASK, "train.mine 1"),
        (ASK._replace(group_id=""), "train.mine"),
        (ASK._replace(group_id="", content=RecordDict({"c": ConfigRecord({"server-round": 5})})), "train.mine 5"),
        (ASK._replace(group_id="3\nall is well"), "train.mine 3\\nall is well"),
    ],
)
def test_envelope_of_an_ask_has_its_bytes(ask: Ask, title: str) -> None:
    found = enveloped(write_ask(ask))
    assert isinstance(found, Envelope)
    assert (found.job, found.app, found.title, found.key) == ((8, 7), "abc", title, "8 7")
    assert read_ask(MESSAGES.load(found.stream), copy=True).content == ask.content


def test_envelopes_of_files_and_end() -> None:
    assert enveloped([VERSION, "end"]) == End()
    files = enveloped([VERSION, "files", "abc", {"a.py": b"1"}, b"signature"])
    assert isinstance(files, Files)
    assert (files.version, files.key) == ("abc", "")


@pytest.mark.parametrize(
    "plain",
    [
        [VERSION],
        [VERSION, "end", 1],
        [VERSION, np.zeros(2)],
        {"type": "End", "round": 1},
        "end",
        None,
        ["netq-flower/0", "end"],
        [VERSION, "files", "abc"],
        [*write_ask(ASK), 1],
        [VERSION, -1, *write_ask(ASK)[2:]],
        [VERSION, 2**63, *write_ask(ASK)[2:]],
        [VERSION, True, *write_ask(ASK)[2:]],
        [*write_ask(ASK)[:8], None, []],
    ],
)
def test_envelope_of_another_message_is_refused(plain: Any) -> None:
    with pytest.raises(Unreadable):
        enveloped(plain)


def test_codes_are_those_of_flower() -> None:
    assert (RAISED, UNAVAILABLE) == (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.MESSAGE_UNAVAILABLE)
