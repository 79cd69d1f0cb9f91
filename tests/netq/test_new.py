"""`netq.new`: the communicator for each protocol and purpose, and the public names of netq."""

from __future__ import annotations

import importlib.util
import pkgutil
import runpy
import tomllib
from pathlib import Path

import pytest

import netq
import netq.tcp.client
import netq.tcp.server


def test_new_returns_communicator_of_protocol_and_purpose() -> None:
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
    with netq.new(netq.Protocol.TCP, netq.Purpose.SERVER, options) as server:
        assert type(server) is netq.tcp.server.Communicator
        assert isinstance(server, netq.Communicator)
        assert server.id == options.id
        assert server.options is options
        assert server.netloc.port != 0
        with netq.new(options=netq.CommunicatorOptions(netloc=server.netloc)) as client:
            assert type(client) is netq.tcp.client.Communicator


def test_new_gives_each_communicator_its_own_id() -> None:
    with netq.new() as one, netq.new() as other:
        assert one.id != other.id
        assert one.netloc == ("127.0.0.1", 51966)


def test_new_refuses_unknown_names() -> None:
    with pytest.raises(netq.InvalidOption, match="new: the protocol is 'pigeon'; expected one of tcp, mqtt, grpc, shm"):
        netq.new("pigeon")
    with pytest.raises(netq.InvalidOption, match="new: the purpose is 'SERVER'; expected one of server, client"):
        netq.new(purpose="SERVER")
    with pytest.raises(netq.InvalidOption, match="new: the protocol is 3; expected one of"):
        netq.new(3)  # type: ignore[arg-type]
    with pytest.raises(netq.InvalidOption, match="options: a dict; expected CommunicatorOptions"):
        netq.new(options={})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("protocol", "purpose"),
    [*[(protocol, netq.Purpose.CLIENT) for protocol in netq.Protocol], (netq.Protocol.MQTT, netq.Purpose.SERVER)],
)
def test_client_needs_a_port(protocol: netq.Protocol, purpose: netq.Purpose) -> None:
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
    with pytest.raises(netq.InvalidOption, match=r"netloc: 127\.0\.0\.1:0; expected the port that the server"):
        netq.new(protocol, purpose, options)


def test_public_names_exist() -> None:
    assert all(hasattr(netq, name) for name in netq.__all__)
    assert len(set(netq.__all__)) == len(netq.__all__)


def test_hooks_of_pyinstaller_name_what_is_imported_by_a_text() -> None:
    """PyInstaller itself is not installed here; a program with `netq.new` was built with it by hand."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    [folder] = pkgutil.resolve_name(project["entry-points"]["pyinstaller40"]["hook-dirs"])()
    names = runpy.run_path(str(Path(folder) / "hook-netq.py"))["hiddenimports"]
    assert {f"netq.{protocol}.{purpose}" for protocol in netq.Protocol for purpose in netq.Purpose} < set(names)
    names += runpy.run_path(str(Path(folder) / "hook-fl.py"))["hiddenimports"]
    assert "fl.client" in names
    assert all(importlib.util.find_spec(name) is not None for name in names)
