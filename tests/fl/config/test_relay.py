"""The TOML file of a relay."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import fl
from fl.config.relay import KEYS, RelayConfig
from netq.errors import InvalidOption
from netq.options import Protocol
from netq.security import certificates
from tests.pages import Page

GOOD = """
[parent]
host = "10.0.0.1"
port = 51966
[server]
host = "127.0.0.1"
port = 0
"""


def load(folder: Path, text: str) -> RelayConfig:
    path = folder / "relay.toml"
    path.write_text(text)
    return RelayConfig.load(path)


def test_a_small_file(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    assert (config.parent.netloc, config.options.netloc) == (("10.0.0.1", 51966), ("127.0.0.1", 0))
    assert config.parent.security is config.options.security is None
    assert isinstance(config.relay(), fl.Relay)


def test_the_example_of_the_page_has_every_key(tmp_path: Path) -> None:
    (example,) = Page("docs/how-to/relay.md").blocks("toml")
    example = re.sub(r"^# proxy", "proxy", example, flags=re.MULTILINE)
    tables = tomllib.loads(example)
    assert set(tables["parent"]) - {"security"} == {"host", "port", "protocol", "fallback", "proxy"}
    for name in ("relay", "server"):
        assert set(tables[name]) == set(KEYS[name] or ())
    certificates.init(tmp_path, ["localhost"])
    certificates.issue(tmp_path, "relay-north")
    certificates.issue(tmp_path, "north-server", ["localhost"])
    config = load(tmp_path, example)
    assert config.fallback == (("spare.farm", 51966),)
    assert config.parent.security is not None
    assert config.parent.security.key == tmp_path / "relay-north-key.pem"
    assert config.options.security is not None
    assert config.options.security.key == tmp_path / "north-server-key.pem"
    assert config.settings["relays"] == ["relay-island"]
    assert config.options.connection.heartbeat == 30.0
    assert config.parent.connection.heartbeat == 10.0
    config.relay()


def test_both_sides_have_their_own_protocol(tmp_path: Path) -> None:
    text = GOOD.replace("[server]", 'protocol = "grpc"\n[parent.connection]\nmisses = 7\n[server]')
    config = load(tmp_path, text)
    assert (config.parent_protocol, config.protocol) == (Protocol.GRPC, Protocol.TCP)
    assert (config.parent.connection.misses, config.options.connection.misses) == (7, 3)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('host = "10.0.0.1"\n', "", 'parent.host: missing; expected the name of the server above, as in "10.0.0.1"'),
        ("port = 51966", "port = 0", "parent.port: 0; expected a whole number from 1 to 65535"),
        ("port = 51966", 'port = 1\nfallback = ["x"]', "parent.fallback: 'x'; expected HOST:PORT"),
        ("port = 51966", 'port = 1\nfallback = "x:1"', "parent.fallback: 'x:1'; expected a list of addresses"),
        ("port = 51966", "port = 1\nrounds = 3", "parent.rounds: no such key"),
        ("port = 51966", "port = 1\n[parent.model]\na = 1", "parent.model: no such key"),
        ("port = 51966", 'port = 1\n[parent.security]\nkey = "x.pem"', "parent.security.key: 'x.pem'; expect"),
        ("port = 51966", "port = 1\n[parent.security]\nkeys = 1", "parent.security.keys: no such key"),
        ("port = 51966", "port = 1\n[parent.connection]\nmisses = 0", "parent.connection.misses: 0; expected"),
        ("port = 51966", "port = 1\n[parent.mqtt]\nprefix = 'a'", '[parent.mqtt]: server.protocol is "tcp"'),
        ("port = 0", "port = 0\nrounds = 3", "server.rounds: no such key"),
        ("port = 0", "port = 0\nrelays = 3", "server.relays: 3; expected true, false, or a list of names or ids"),
        ("port = 0", "port = 0\nmin_clients = 0", "server.min_clients: 0; expected 1 or more"),
        ("port = 0", 'port = 0\n[strategy]\nname = "Krum"', "strategy: Krum needs each update, and a relay sends one"),
        ("port = 0", 'port = 0\n[strategy]\nstaleness = "hinge"', "strategy: FedAvg has the option staleness"),
        ("port = 0", "port = 0\n[relay]\nname = 3", "relay.name: 3; expected a text"),
        ("port = 0", "port = 0\n[model]\na = 3", "[model]: no such table"),
        ('"127.0.0.1"\nport = 0', '"10.0.0.1"\nport = 51966', "parent.host: 10.0.0.1:51966 is where this relay"),
    ],
)
def test_errors_name_the_key_as_it_stands_in_the_file(tmp_path: Path, old: str, new: str, error: str) -> None:
    assert old in GOOD
    with pytest.raises(InvalidOption) as found:
        load(tmp_path, GOOD.replace(old, new)).relay()
    assert str(found.value).startswith(f"{tmp_path / 'relay.toml'}: {error}")
    assert "\n" not in str(found.value)
