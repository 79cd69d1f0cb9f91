"""Environment variables and flags that replace values of the device's file."""

from __future__ import annotations

from pathlib import Path

import pytest

import edge
from edge import __main__ as command
from edge.config import from_environment, from_flags
from netq.errors import InvalidOption
from netq.toml_file import Override

SERVER = '[server]\nhost = "10.0.0.1"\nport = 51966\n'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("51966", 51966),
        ("0.5", 0.5),
        ("true", True),
        ("aggregator.local", "aggregator.local"),
        ('"51966"', "51966"),
        ("{ dtype = 'int8' }", {"dtype": "int8"}),
        ('["12:00-13:00"]', ["12:00-13:00"]),
        ("", ""),
        ("1\nhost = 2", "1\nhost = 2"),
        ("a = b", "a = b"),
    ],
)
def test_value_is_toml_or_else_a_text(text: str, value: object) -> None:
    assert Override.parse("server", "port", text, "--set").value == value


def test_variables_and_flags_replace_values(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text(SERVER + "[settings]\npartition = 1\n")
    variables = from_environment(
        {"EDGE_SERVER_PORT": "1", "EDGE_SETTINGS_PARTITION": "2", "EDGE_TRAINING_KEEP": "true"}
    )
    flags = from_flags(["server.port=2", "client.train=farm:train", "connection.heartbeat=7"])
    config = edge.Config.load(path, [*variables, *flags])
    assert config.netloc == ("10.0.0.1", 2)
    assert config.settings == {"partition": 2}
    assert config.training.keep
    assert config.train == "farm:train"
    assert config.connection.heartbeat == 7


def test_overrides_are_enough(tmp_path: Path) -> None:
    config = edge.Config.load(None, from_environment({"EDGE_SERVER_HOST": "10.0.0.1", "EDGE_SERVER_PORT": "3"}))
    assert config.netloc == ("10.0.0.1", 3)


def test_other_variables_are_left_alone() -> None:
    assert (
        from_environment({"EDGE_HOME": "/opt", "EDGE_SERVER": "x", "EDGER_SERVER_PORT": "1", "SERVER_PORT": "1"}) == []
    )


@pytest.mark.parametrize(
    ("environment", "flags", "line"),
    [
        ({"EDGE_SERVER_PORT": "many"}, [], "$EDGE_SERVER_PORT: server.port: 'many'; expected a whole number"),
        ({"EDGE_SERVER_PROT": "1"}, [], "$EDGE_SERVER_PROT: server.prot: no such key; did you mean server.port?"),
        ({}, ["server.port=0"], "--set: server.port: 0; expected a whole number"),
        ({}, ["sever.port=1"], "[sever]: no such table; did you mean [server]?"),
        ({}, ["training.memory=-1"], "--set: training.memory: -1; expected a whole number above 0"),
        ({}, ["server.port"], "--set: 'server.port'; expected TABLE.KEY=VALUE, as in server.port=51966"),
        ({}, ["server=1"], "--set: 'server=1'; expected TABLE.KEY=VALUE, as in server.port=51966"),
    ],
)
def test_wrong_value_names_where_it_came_from(
    tmp_path: Path, environment: dict[str, str], flags: list[str], line: str
) -> None:
    path = tmp_path / "client.toml"
    path.write_text(SERVER)
    with pytest.raises(InvalidOption) as caught:
        edge.Config.load(path, [*from_environment(environment), *from_flags(flags)])
    assert line in str(caught.value)


@pytest.mark.parametrize("name", ["server.host", "sever.port"])
def test_value_in_place_of_a_table_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "client.toml"
    path.write_text("server = 1\n")
    with pytest.raises(InvalidOption):
        edge.Config.load(path, from_flags([f"{name}=1"]))


def test_password_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    path = tmp_path / "client.toml"
    path.write_text(SERVER + 'protocol = "mqtt"\n[mqtt]\nuser = "board"\npassword_file = "password"\n')
    assert edge.Config.load(path).mqtt.password == "secret"
    with pytest.raises(InvalidOption, match=r"mqtt\.password_file: there is a password, too; leave one of them out"):
        edge.Config.load(path, from_flags(["mqtt.password=x"]))
    with pytest.raises(InvalidOption, match=r"mqtt\.password_file: 'absent'; expected the path of a text file"):
        edge.Config.load(path, from_flags(["mqtt.password_file=absent"]))


def test_command_takes_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "client.toml"
    path.write_text(SERVER)
    assert command.main(["check", str(path), "--set", "server.port=none"]) == 2
    assert capsys.readouterr().err.startswith("edge: --set: server.port: 'none'; ")
