"""netq exchange: its file and its exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from netq.cli import exchange as command
from netq.testing.fixtures import LIMIT


def of(folder: Path, text: str) -> Path:
    path = folder / "exchange.toml"
    path.write_text(text)
    return path


def test_file_sets_limits_and_permissions(tmp_path: Path) -> None:
    text = "[server]\nport = 0\n[exchange]\ntries = 2\n[allow.all]\nclients = ['*']\npublish = ['a/#']\n"
    exchange = command._exchange(of(tmp_path, text))
    with exchange:
        assert exchange.netloc.host == "127.0.0.1"
        assert exchange._jobs._tries == 2
        (permission,) = exchange._permissions._permissions or ()
        assert permission.publish == ["a/#"]
        assert exchange.wait(0) is False
    assert exchange.wait(LIMIT) is True


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[serve]\n", "[serve]: no such table; did you mean [server]?"),
        ("[server]\nport = 70000\n", "server.port: 70000; expected a whole number from 0 to 65535"),
        ('[server]\nhost = ""\n', "server.host: ''; expected an address"),
        ("[exchange]\ntries = 0\n", "exchange.tries: 0; expected a whole number of 1 or more"),
        ("[exchange]\ngrace = -1\n", "exchange.grace: -1; expected seconds"),
        ("[allow]\nx = 1\n", "allow.x: 1; expected a table: begin it with a line [allow.x]"),
        ("[allow]\n", "allow: no permission; expected a table for each, as in [allow.boards]"),
        ("[allow.x]\nclients = []\n", 'allow.x.clients: []; expected ids of clients, or "*"'),
        ("[allow.x]\npublish = []\n", 'allow.x.clients: missing; expected a list of ids, or ["*"]'),
        ("[allow.x]\nclients = ['*']\npublsh = []\n", "allow.x.publsh: no such key; expected one of clients, publish"),
        ("[allow.x]\nclients = ['board']\n", "allow.x.clients: 'board'; expected an id"),
        ("[allow.x]\nclients = ['*']\npush = 'a'\n", "allow.x.push: 'a'; expected a list of texts"),
        ("[security]\nkey = 'no.pem'\n", "security.key: 'no.pem'; expected the path of a PEM file"),
        ("[security]\n", "security.key: None; a server needs it"),
        ("[mqtt]\nprefix = 'a'\n", '[mqtt]: server.protocol is "tcp"'),
    ],
)
def test_wrong_file_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, line: str
) -> None:
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    path = of(tmp_path, text)
    assert command.main([str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"netq exchange: {path}: {line}")
    assert error.count("\n") == 1


def test_address_in_use_is_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    with command._exchange(of(tmp_path, "[server]\nport = 0\n")) as first:
        path = of(tmp_path, f"[server]\nport = {first.netloc.port}\n")
        assert command.main([str(path)]) == 1
    assert "in use" in capsys.readouterr().err
