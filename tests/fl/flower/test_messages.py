"""The messages between a grid and its nodes: round trips, envelopes, and invalid messages."""

from __future__ import annotations

import math
import uuid
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict

from fl.envelope import End, Leave
from fl.flower import envelope
from fl.flower._compat import ErrorCode
from fl.flower.envelope import ENVELOPES, RAISED, UNAVAILABLE, VERSION, Failure, Fetch, OtherApp
from fl.flower.masked import Secured
from fl.flower.messages import MESSAGES, Ask, Files, Reply, check_config, message_id, node_id, read, title_of
from fl.messages import Answered, Masked
from netq.errors import Unreadable
from netq.utils.stream import PickleSerializer, Stream

CONTENT = RecordDict({"a": ArrayRecord([np.ones(3)]), "m": MetricRecord({"x": 1})})
ASK = Ask(7, 8, {"lr": 0.1, "name": "n", "on": True, "n": 3}, "train.mine", "1", 1.5, 60.0, "abc", CONTENT, "a title")


def plain_of(message: Any) -> Any:
    return MESSAGES.load(Stream([bytearray(bytes(MESSAGES.dump(message)))]))


MASKED = Masked("ab", 3, np.zeros(8, np.uint8), b"p", b"s", b"t")
ANSWERED = Secured(1, Answered({"shares": b"x", "refused": ["a"], "vouchers": {"b": b"y"}}))
GOOD_SECURED = plain_of(Secured(1, MASKED))
GOOD, GOOD_REPLY = plain_of(ASK), plain_of(Reply(1, RecordDict()))


@pytest.mark.parametrize(
    "message",
    [
        ASK,
        Reply(0, CONTENT),
        Reply(2**63 - 1, RecordDict(), {"usage.joules": 1.5}),
        replace(ASK, secure={"session": "ab", "ranges": {"w": 1.5}}),
        ANSWERED,
        Failure(1, "no data"),
        Failure(None, "cannot read", UNAVAILABLE),
        Fetch("abc"),
        OtherApp("abc"),
        Files("abc", {"a.py": b"1"}, b"signature"),
        Files("abc", None, b""),
        Leave("too hot"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_round_trips(message: Any) -> None:
    assert read(plain_of(message), copy=True) == message


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


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (None, "a message: expected an object with a type"),
        ("netq-flower/2", "a message: expected an object with a type"),
        ([], "a message: expected an object with a type"),
        ({**GOOD, "type": ["Ask"]}, "a message: expected an object with a type"),
        ({**GOOD, "type": "Task"}, "the type of a message: expected one of Ask, Reply, Secured, Failure, Fetch, "),
        ({**GOOD, "protocol": "netq-flower/1"}, f"the version of a message: expected {VERSION}; install the same netq"),
        ({**GOOD, "protocol": 1}, f"the version of a message: expected {VERSION}"),
        ({"type": "Ask", "protocol": VERSION}, "the records: expected a list"),
        ({**GOOD, "more": 1}, "a message is not valid: "),
        ({**GOOD, "batch": -1}, "the batch and the run of a message: expected whole numbers of 63 bits"),
        ({**GOOD, "batch": None}, "the batch and the run of a message: expected whole numbers"),
        ({**GOOD, "run": 2**63}, "the batch and the run of a message: expected whole numbers"),
        ({**GOOD, "run": True}, "the batch and the run of a message: expected whole numbers"),
        ({**GOOD, "run_config": []}, "a config: expected a dict"),
        ({**GOOD, "run_config": {1: 1}}, "a config: expected single values by name"),
        ({**GOOD, "run_config": {"a": [1]}}, "a config: expected single values by name"),
        ({**GOOD, "run_config": {"a": b"1"}}, "the config's 'a': expected one of bool, int, float, str"),
        ({**GOOD, "message_type": 1}, "the type of a message: expected a text"),
        ({**GOOD, "message_type": "banana"}, "the type of a message: expected Invalid message type: 'banana'"),
        ({**GOOD, "message_type": "train.not an identifier"}, "the type of a message: expected"),
        ({**GOOD, "group_id": None}, "the group of a message: expected a text"),
        ({**GOOD, "created_at": math.nan}, "the time of a message: expected seconds"),
        ({**GOOD, "ttl": math.inf}, "the time of a message: expected seconds"),
        ({**GOOD, "ttl": "1"}, "the time of a message: expected seconds"),
        ({**GOOD, "app": None}, "the app's version in a message: expected 100 printable characters at most"),
        ({**GOOD, "app": "x" * 101}, "the app's version in a message: expected 100 printable"),
        ({**GOOD, "content": None}, "the records: expected a list"),
        ({**GOOD_REPLY, "usage": []}, "the usage in a reply: expected"),
        ({**GOOD_REPLY, "usage": {"x": "1"}}, "the usage in a reply: expected"),
        ({**GOOD_REPLY, "usage": {"x": math.nan}}, "the usage in a reply: expected"),
        ({**GOOD_REPLY, "usage": {"x": 10**400}}, "the usage in a reply: expected"),
        ({**GOOD_REPLY, "usage": {5: 1.0}}, "the usage in a reply: expected"),
        ({**GOOD_REPLY, "usage": {str(n): 1.0 for n in range(11)}}, "the usage in a reply: expected"),
        ({**GOOD_REPLY, "batch": "1"}, "the batch of a reply: expected a whole number of 63 bits"),
        ({**GOOD_REPLY, "batch": 2**63}, "the batch of a reply: expected a whole number of 63 bits"),
        ({**GOOD_REPLY, "batch": None}, "the batch of a reply: expected a whole number of 63 bits"),
        ({**GOOD, "secure": None}, "the terms of a message: expected a dict"),
        ({**GOOD_SECURED, "batch": -1}, "a message is not valid: the batch of a reply: "),
        ({**GOOD_SECURED, "content": "no"}, "a message is not valid: content: str 'no'; expected a Masked or an "),
        ({**GOOD_SECURED, "content": [1]}, "a message is not valid: content: "),
        (
            {**GOOD_SECURED, "content": {**GOOD_SECURED["content"], "number": -1}},
            "a message is not valid: number: int -1; expected a whole number",
        ),
        ({**plain_of(Failure(1, "x")), "batch": 1.5}, "a message is not valid: the batch of a reply: "),
        ({**plain_of(Failure(1, "x")), "code": "2"}, "a message is not valid: the code of an error: "),
        ({**plain_of(Failure(1, "x")), "code": -1}, "a message is not valid: the code of an error: "),
        ({**plain_of(Failure(1, "x")), "reason": None}, "a message is not valid: the reason of an error: "),
        ({**plain_of(Fetch("x")), "app": "x\n"}, "a message is not valid: the app's version in a message: "),
        ({**plain_of(Files("x", None, b"")), "files": {"a": "b"}}, "the files of an app: expected bytes by name"),
        ({**plain_of(Files("x", None, b"")), "signature": ""}, "an app: expected a version, files and a signature"),
    ],
)
def test_an_invalid_message_is_unreadable(plain: Any, message: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read(plain)
    assert str(caught.value).startswith(message)


def test_a_reason_cannot_forge_log_lines_and_is_short() -> None:
    plain = {**plain_of(Failure(1, "x")), "reason": "oh\nWARNING all is well\x1b[2J"}
    assert read(plain) == Failure(1, "oh\\nWARNING all is well\\x1b[2J")
    assert Failure(1, "x" * 5000).reason == "x" * 500 + "…"


@pytest.mark.parametrize("config", [None, [("a", 1)], {"a": None}, {"a": [1]}, {1: 1}, {"a": {}}])
def test_a_config_holds_single_values_by_name(config: Any) -> None:
    with pytest.raises(Unreadable, match="config"):
        check_config(config)


@pytest.mark.parametrize(
    ("group", "content", "title"),
    [
        ("1", CONTENT, "train.mine 1"),
        ("", CONTENT, "train.mine"),
        ("", RecordDict({"c": ConfigRecord({"server-round": 5})}), "train.mine 5"),
        ("3\nall is well", CONTENT, "train.mine 3\\nall is well"),
        ("3" * 200, CONTENT, "train.mine " + "3" * 89),
    ],
)
def test_a_title_has_type_and_round(group: str, content: RecordDict, title: str) -> None:
    assert title_of("train.mine", group, content) == title


def enveloped(message: Any) -> Any:
    return ENVELOPES.load(Stream([bytearray(bytes(MESSAGES.dump(message)))]))


def test_envelope_of_an_ask_has_its_bytes() -> None:
    found = enveloped(ASK)
    assert isinstance(found, envelope.Ask)
    assert (found.job, found.app, found.title, found.key) == ((8, 7), "abc", "a title", "8 7")
    assert read(MESSAGES.load(found.stream), copy=True) == ASK


def test_a_vector_round_trips() -> None:
    found = read(GOOD_SECURED)
    assert isinstance(found, Secured)
    assert isinstance(found.content, Masked)
    assert found.content.vector.tolist() == [0] * 8
    assert (found.batch, replace(found.content, vector=MASKED.vector)) == (1, MASKED)


@pytest.mark.parametrize(
    ("secure", "found"), [({}, (False, False)), ({"session": "ab"}, (True, False)), ({"step": "keys"}, (True, True))]
)
def test_envelope_says_whether_an_ask_is_secure(secure: dict[str, Any], found: tuple[bool, bool]) -> None:
    ask = enveloped(replace(ASK, secure=secure))
    assert (ask.is_secure, ask.is_step) == found


def test_envelopes_of_files_and_end() -> None:
    assert enveloped(End(0)) == End(0)
    files = enveloped(Files("abc", {"a.py": b"1"}, b"signature"))
    assert isinstance(files, envelope.Files)
    assert (files.version, files.key) == ("abc", "")


@pytest.mark.parametrize(
    "plain",
    [
        ["netq-flower/1", "end"],
        np.zeros(2),
        "End",
        None,
        {"type": "Ask"},
        {**GOOD, "protocol": "netq-flower/1"},
        {**GOOD, "protocol": None},
        {**GOOD, "batch": -1},
        {**GOOD, "batch": 2**63},
        {**GOOD, "run": True},
        {**GOOD, "app": None},
        {**GOOD, "title": "1\n2"},
        {**GOOD, "title": "x" * 101},
        {"type": "Files", "protocol": VERSION},
        GOOD_REPLY,
    ],
)
def test_envelope_of_another_message_is_refused(plain: Any) -> None:
    with pytest.raises(Unreadable):
        enveloped(plain)


def test_what_a_node_puts_is_read_by_the_grid() -> None:
    for message in (Failure(3, "no"), Fetch("abc"), OtherApp("abc"), Leave("too hot")):
        assert read(MESSAGES.load(Stream([bytearray(bytes(ENVELOPES.dump(message)))]))) == message


def test_codes_are_those_of_flower() -> None:
    assert (RAISED, UNAVAILABLE) == (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.MESSAGE_UNAVAILABLE)
