"""netq certs: what its commands print, and what they refuse."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from netq.__main__ import main
from netq.security.certificates import show


class Certs:
    """Runs `netq certs` in a folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def __call__(self, *arguments: str) -> list[str]:
        """Return the lines that a command prints. It succeeds."""
        assert main(["certs", *arguments, "--folder", str(self.folder)]) == 0
        out, errors = self._capsys.readouterr()
        assert errors == ""
        return out.splitlines()

    def refused(self, *arguments: str) -> str:
        """Return the one line of error of a command, which ends with status 2."""
        assert main(["certs", *arguments, "--folder", str(self.folder)]) == 2
        out, errors = self._capsys.readouterr()
        assert (out, errors.count("\n")) == ("", 1)
        return errors


@pytest.fixture
def certs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Certs:
    return Certs(tmp_path / "tls", capsys)


def test_init_lists_its_files(certs: Certs) -> None:
    lines = certs("init", "--host", "aggregator.local", "--host", "10.0.0.1", "--days", "2")
    assert {line.split()[0] for line in lines} == {str(path) for path in certs.folder.iterdir()}
    assert lines[2].endswith("the server's certificate, for aggregator.local, 10.0.0.1, 2 days")
    assert show(certs.folder)[1].hosts == ("aggregator.local", "10.0.0.1")


def test_init_is_for_this_machine_by_default(certs: Certs) -> None:
    certs("init")
    assert show(certs.folder)[1].hosts == ("localhost", "127.0.0.1", "::1")


def test_init_with_another_algorithm(certs: Certs) -> None:
    certs("init", "--algorithm", "ml-dsa-65")
    assert [entry.algorithm for entry in show(certs.folder)] == ["ml-dsa-65"] * 2


def test_default_folder_is_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["certs", "init"]) == 0
    assert main(["certs", "issue", "board"]) == 0
    assert (tmp_path / "certificates" / "board-key.pem").exists()


def test_existing_files_are_kept_without_overwrite(certs: Certs) -> None:
    certs.folder.mkdir()
    (certs.folder / "server.pem").write_text("mine")
    error = certs.refused("init")
    assert error.startswith(f"netq certs: {certs.folder / 'server.pem'} exists and is left as it is")
    assert (certs.folder / "server.pem").read_text() == "mine"
    certs("init", "--overwrite")
    assert (certs.folder / "server.pem").read_text() != "mine"


def test_issue_names_the_three_files_and_the_id(certs: Certs) -> None:
    certs("init")
    lines = certs("issue", "board-7", "--days", "30")
    files = [str(certs.folder / name) for name in ("authority.pem", "board-7.pem", "board-7-key.pem")]
    assert [line.split()[0] for line in lines[:3]] == files
    assert lines[1].endswith(f"the client's certificate, 30 days; id {show(certs.folder)[-1].id}")
    assert lines[3] == "copy these three files to the client; the key is secret"


def test_issue_makes_another_server(certs: Certs) -> None:
    certs("init")
    lines = certs("issue", "relay", "--host", "relay.local")
    assert "the server's certificate for relay.local, 365 days" in lines[1]


def test_renewal_prints_how_to_revoke_the_old_one(certs: Certs) -> None:
    certs("init")
    certs("issue", "board")
    old = show(certs.folder)[-1]
    *_, until, command = certs("issue", "board", "--renew")
    assert until == f"the old certificate stays valid until {old.until:%Y-%m-%d}"
    assert command == f"to refuse it: netq certs revoke board --serial {old.serial:x} --folder {certs.folder}"
    assert main(command.partition("netq ")[2].split()) == 0
    assert f"\n{old.serial:x}\n" in (certs.folder / "revoked.txt").read_text()
    assert certs("issue", "server", "--renew")[-1].startswith("the old certificate stays valid until")


def test_renewal_of_a_revoked_certificate_is_silent_about_it(certs: Certs) -> None:
    certs("init")
    certs("issue", "board")
    certs("revoke", "board")
    assert certs("issue", "board", "--renew")[-1] == "copy these three files to the client; the key is secret"
    assert not show(certs.folder)[-1].revoked


def test_request_and_sign_say_what_to_send(certs: Certs, tmp_path: Path) -> None:
    certs("init")
    board = Certs(tmp_path / "board", certs._capsys)
    key, request, then = board("request", "board-8")
    assert key.startswith(str(board.folder / "board-8-key.pem"))
    assert "send it to who has the authority" in request
    assert then == "there: netq certs sign board-8 board-8.csr"
    _, made, back = certs("sign", "board-8", str(board.folder / "board-8.csr"), "--days", "3")
    assert made.startswith(str(certs.folder / "board-8.pem"))
    assert "the client's certificate, 3 days; id " in made
    assert back == "send both back to the client, which has the key; neither is secret"


def test_revoke_prints_the_serial(certs: Certs) -> None:
    certs("init")
    certs("issue", "board")
    serial = show(certs.folder)[-1].serial
    assert certs("revoke", "board") == [
        f"{certs.folder / 'revoked.txt'} has board, serial {serial:x}; copy it to the server"
    ]


def test_show_prints_each_certificate(certs: Certs) -> None:
    certs("init", "--host", "a.local")
    certs("issue", "board")
    certs("revoke", "board")
    (certs.folder / "authority-key.pem").unlink()
    authority, server, board = show(certs.folder)
    lines = [re.sub(r"\d{4}-\d\d-\d\d", "DATE", line) for line in certs("show")]
    assert lines == [
        "authority  authority, p256, until DATE (3649 days); its key is not here",
        f"           serial   {authority.serial:x}",
        "server     server for a.local, p256, until DATE (364 days)",
        f"           serial   {server.serial:x}",
        f"           id       {server.id}",
        "board      client, p256, until DATE (364 days)",
        f"           serial   {board.serial:x}, REVOKED",
        f"           id       {board.id}",
    ]


def test_show_with_a_problem_is_status_2(certs: Certs, capsys: pytest.CaptureFixture[str]) -> None:
    certs("init")
    certs("issue", "board")
    (certs.folder / "board.pem").write_text("nothing")
    assert main(["certs", "show", "--folder", str(certs.folder)]) == 2
    *_, line, problem = capsys.readouterr().out.splitlines()
    assert line == "board      not readable"
    assert problem == f"           PROBLEM  {certs.folder / 'board.pem'}: no certificate in PEM"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["init", "--host", "not a name"], "'not a name' is neither a DNS name"),
        (["init", "--days", "0"], "a certificate of 0 days; expected 1 to 3650"),
        (["issue", "board"], "{folder}/authority.pem: no such file; is this the right folder?"),
        (["issue", "a/b"], "name: 'a/b'; expected 1 to 64 letters"),
        (["issue", "board", "--renew"], "{folder}: No such file or directory; `netq certs init` makes"),
        (["revoke", "board"], "{folder}/board.pem: no such file"),
        (["show"], "{folder}: No such file or directory; `netq certs init` makes"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(certs: Certs, arguments: list[str], error: str) -> None:
    assert certs.refused(*arguments).startswith(f"netq certs: {error.format(folder=certs.folder)}")
    assert not certs.folder.exists()


def test_renewal_of_an_unknown_name_is_status_2(certs: Certs) -> None:
    certs("init")
    error = certs.refused("issue", "board", "--renew")
    assert error.startswith(f"netq certs: {certs.folder / 'board.pem'}: no such file")


def test_folder_that_cannot_be_written_is_status_2(certs: Certs) -> None:
    certs.folder.write_text("a file")
    assert certs.refused("init").startswith(f"netq certs: {certs.folder}")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "required: COMMAND"),
        (["sprint"], "invalid choice: 'sprint'"),
        (["init", "--algorithm", "rsa"], "invalid choice: 'rsa'"),
        (["issue"], "required: NAME"),
        (["revoke", "board", "--serial", "no"], "'no'; expected a serial number in hexadecimal"),
    ],
)
def test_wrong_command_line_is_status_2(capsys: pytest.CaptureFixture[str], arguments: list[str], error: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["certs", *arguments])
    assert end.value.code == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["init"], ["issue"], ["request"], ["sign"], ["revoke"], ["show"]])
def test_each_command_has_a_help(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["certs", *command, "--help"])
    assert end.value.code == 0
    assert "usage: netq certs" in capsys.readouterr().out


def test_missing_cryptography_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("netq.security.certificates", "netq.security.authority"):
        monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.delattr(module, raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert main(["certs", "init", "--folder", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert (
        error
        == "netq certs: netq.security.certificates needs cryptography 49 or later: pip install 'netq-fl[security]'\n"
    )
