"""docs/reference/api.md lists every option with its default, every error, every name of a communicator."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

import netq
from netq.testing import loopback
from netq.testing.proxy import Proxy
from tests.pages import Page

API = Page("docs/reference/api.md")
PAGE = API.text
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE))


@pytest.mark.parametrize("kind", [netq.CommunicatorOptions, netq.ConnectionOptions])
def test_every_option_is_there_with_its_default(kind: Any) -> None:
    for field in dataclasses.fields(kind):
        text, default = ROWS[field.name], getattr(kind(), field.name)
        if field.name == "id":
            assert text == "a new UUID"
        elif dataclasses.is_dataclass(default):
            assert text == f"`{type(default).__name__}()`"
        else:
            shown = tuple(default) if isinstance(default, tuple) else default
            assert text.replace('"', "'") == f"`{shown!r}`"


def test_every_option_of_a_broker_is_there_with_its_default() -> None:
    for field in dataclasses.fields(netq.MqttOptions):
        assert f"`{field.name}={getattr(netq.MqttOptions(), field.name)!r}`".replace("'", '"') in PAGE


def test_every_error_that_a_user_may_meet_is_named() -> None:
    names = {
        name for name in netq.__all__ if isinstance(each := getattr(netq, name), type) and issubclass(each, Exception)
    }
    assert {name for name in names if name not in PAGE} == {"NetqError", "ProtocolError"}  # of peers, and of all


def test_every_name_of_a_communicator_is_there_and_no_other() -> None:
    names = {name for row in API.rows("of a communicator", "") for name in re.findall(r"`(\w+)[(`]", row[0])}
    with loopback.Client(netq.CommunicatorOptions()) as communicator:
        assert names == {name for name in dir(communicator) if not name.startswith("_")}


def test_statistics_row_lists_all_fields() -> None:
    (row,) = [text for call, text in API.rows("of a communicator", "") if call == "`statistics(*peers)`"]
    names = re.findall(r"`(\w+)`", row.partition("or for each peer: ")[2])
    assert names == [field.name for field in dataclasses.fields(netq.Statistics)]


def test_every_name_of_the_proxy_is_there() -> None:
    section = API.section("Testing").text
    with Proxy(netq.NetworkLocation()) as proxy:
        for name in re.findall(r"`(\w+)(?:\(\))?`", section.split("proxy")[-1]):
            assert hasattr(proxy, name), name
