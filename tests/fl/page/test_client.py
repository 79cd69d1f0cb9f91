"""`fl status`: what a terminal shows of a page, and what it says where there is none."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fl
from fl.__main__ import app
from netq import SecurityOptions
from netq.security import certificates
from tests.fl.federation import SOON, A, B, Federation, gives


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["status", *map(str, arguments)])
    return result.exit_code, result.output


def test_clients_are_listed() -> None:
    with fl.Page(0) as page, Federation(callbacks=[page], min_clients=2) as federation:
        before = run(f"http://127.0.0.1:{page.port}/")[1].splitlines()
        federation.join(A, gives(1.0))
        federation.join(B, gives(3.0))
        federation.round(2)
        end = time.monotonic() + SOON
        while "waiting" in (output := run(f"127.0.0.1:{page.port}")[1]):  # it has looked at the clients just before
            assert time.monotonic() < end
        late = run(f"127.0.0.1:{page.port}", "--stage", "late")[1]
        found = json.loads(run(f"127.0.0.1:{page.port}", "--json")[1])
    lines = output.splitlines()
    waiting = "FedAvg: 0 rounds are done; waiting for clients: 0 of 2 are connected"
    assert before == [waiting, "no client has connected"]
    assert lines[0] == "FedAvg: 1 rounds are done"
    assert lines[1] == "2 clients: 2 done"
    assert [line.split()[:2] for line in lines[3:]] == [["client", "1"], ["client", "2"]]
    assert "client 1" not in late
    assert [each["name"] for each in found["table"]] == ["client 1", "client 2"]


def test_certificates_of_both_sides(files: certificates.Files) -> None:
    with fl.Page(0, security=SecurityOptions(files.key, files.certificate, files.authority)) as page:
        where, trust = f"127.0.0.1:{page.port}", ("--authority", files.authority)
        reader = certificates.issue(files.authority.parent, "status")
        own = ("--key", reader.key, "--certificate", reader.certificate)
        assert run(where, *trust, *own)[0] == 0
        code, output = run(where, *trust)
        assert code != 0
        assert where in output
        code, output = run(where)
        assert code == 1
        assert where in output
        assert "if the page uses TLS, give its authority with --authority" in output


def test_password_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("secret\n")
    with fl.Page(0, password="secret") as page:
        assert run(f"127.0.0.1:{page.port}", "--password-file", path)[0] == 0
        path.write_text("wrong\n")
        for arguments in ([], ["--password-file", path]):
            code, output = run(f"127.0.0.1:{page.port}", *arguments)
            assert code == 2
            assert "wants a password" in output


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1", "expected HOST:PORT"), ("127.0.0.1:1", "no answer"), ("name.invalid:80", "no answer")],
)
def test_address_without_a_page_is_named(address: str, expected: str) -> None:
    code, output = run(address)
    assert code != 0
    assert expected in output


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\x01garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n<html>\x1b[2J",
        b"HTTP/1.1 200 OK\r\n\r\n[1]",
        b"HTTP/1.1 302 Found\r\nLocation: http://evil.example/\r\n\r\n",
        b"HTTP/1.1 500 Oops\r\n\r\n{}",
    ],
)
def test_strange_server_is_named(answer: bytes) -> None:
    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(1000)
            sock.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SOON)
        thread = threading.Thread(target=serve)
        thread.start()
        code, output = run(f"127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert code == 1
    assert "\x1b" not in output
    assert "page" in output


def test_options_that_need_each_other(files: certificates.Files, tmp_path: Path) -> None:
    assert "--authority, --key and --certificate" in run("127.0.0.1:1", "--key", files.key)[1]
    assert "cannot be read" in run("127.0.0.1:1", "--password-file", tmp_path / "none")[1]


def test_texts_of_a_page_are_escaped() -> None:
    from fl.page.client import lines

    status: dict[str, Any] = {
        "strategy": "\x1b[31mFed",
        "rounds": 3,
        "done": 1,
        "round": 2,
        "left": 400.0,
        "clients": 1,
        "stages": {"done": 1},
        "refused": [{"time": 0.0, "address": "a", "reason": "\x1b[2J"}],
    }
    client = {"name": "\x1b]0;", "stage": "done", "since": None, "updates": 1, "failures": 0, "certificate_end": 0.0}
    found = list(lines(status, [{**client, "address": "b", "warnings": [], "reason": "\n"}]))
    assert all(line.isprintable() for line in found)
    assert found[0] == "\\x1b[31mFed: 1 of 3 rounds are done; round 2 runs; about 7 min left"
