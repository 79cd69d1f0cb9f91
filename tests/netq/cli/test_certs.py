"""netq certs: the files that it writes, and what it refuses."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from netq.__main__ import main


def test_files_are_written_into_a_new_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "made" / "tls"
    assert main(["certs", str(folder), "--name", "aggregator.local", "--name", "10.0.0.1", "--days", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    files = [folder / name for name in ("server-key.pem", "server.pem", "authority.pem")]
    assert [line.split()[0] for line in lines] == [str(file) for file in files]
    assert "aggregator.local, 10.0.0.1, 2 days" in lines[1]
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    assert files[2].read_text().startswith("-----BEGIN CERTIFICATE-----")


def test_existing_files_are_kept_without_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "server.pem").write_text("mine")
    assert main(["certs", str(tmp_path)]) == 2
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert errors.startswith(f"netq certs: {tmp_path / 'server.pem'} exists and is left as it is")
    assert (tmp_path / "server.pem").read_text() == "mine"
    assert main(["certs", str(tmp_path), "--overwrite"]) == 0
    assert (tmp_path / "server.pem").read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(["--name", "not a name"], "'not a name' is neither a DNS name"), (["--days", "0"], "a certificate of 0 days")],
)
def test_wrong_input_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str
) -> None:
    assert main(["certs", str(tmp_path), *arguments]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"netq certs: {error}")
    assert errors.count("\n") == 1


def test_missing_cryptography_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "netq.security.certificates", raising=False)
    monkeypatch.delattr("netq.security.certificates", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert main(["certs", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "netq certs: needs cryptography: pip install 'netq-fl[security]'\n"
