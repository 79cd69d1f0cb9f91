"""netq doctor: the lines about this machine, and whether a server answers."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

import netq
from netq.__main__ import main
from netq.security import certificates


def test_each_feature_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["version", "codec", "tcp", "shm", "mqtt", "grpc", "security", "files"]


def test_missing_library_names_the_extra(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("paho", "paho.mqtt", "paho.mqtt.client"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["doctor"]) == 0
    assert "mqtt      missing: pip install 'netq-fl[mqtt]'\n" in capsys.readouterr().out


@pytest.mark.parametrize("secure", [False, True])
def test_answering_server_is_status_0(
    capsys: pytest.CaptureFixture[str], files: certificates.Files, secure: bool
) -> None:
    options = netq.CommunicatorOptions(
        netloc=netq.NetworkLocation("127.0.0.1", 0),
        security=netq.SecurityOptions(files.key, files.certificate) if secure else None,
    )
    with netq.new(purpose=netq.Purpose.SERVER, options=options) as server:
        address = f"127.0.0.1:{server.netloc.port}"
        trust = ["--certificate", str(files.authority)] if secure else []
        assert main(["doctor", address, *trust]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"server    {address} answers in ")


def test_silent_server_is_status_1_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        assert main(["doctor", address, "--timeout", "0.2"]) == 1
    out, errors = capsys.readouterr()
    assert out.splitlines()[-1].startswith(f"server    {address} does not answer within 0.2 s (")
    assert "Connection refused)" in out
    assert errors == ""


def test_unreadable_certificate_is_status_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "127.0.0.1:9", "--certificate", str(tmp_path / "none.pem")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("netq doctor: argument --certificate: ")
    assert "none.pem: not readable" in error


@pytest.mark.parametrize("timeout", ["-1", "nan", "inf", "soon"])
def test_wrong_timeout_is_status_2(capsys: pytest.CaptureFixture[str], timeout: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["doctor", "127.0.0.1:9", f"--timeout={timeout}"])
    assert end.value.code == 2
    assert f"{timeout!r}; expected seconds" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["nowhere", ":5", "here:65536"])
def test_wrong_address_is_status_2(capsys: pytest.CaptureFixture[str], address: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["doctor", address])
    assert end.value.code == 2
    assert f"{address!r}; expected HOST:PORT" in capsys.readouterr().err
