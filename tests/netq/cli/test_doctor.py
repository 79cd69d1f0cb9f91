"""netq doctor: the lines about this machine, and whether a server answers."""

from __future__ import annotations

import re
import socket
import ssl
import sys
from pathlib import Path

import OpenSSL
import pytest

import netq
from netq.__main__ import main
from netq.cli.doctor import describe
from netq.options import PostQuantum
from netq.security import certificates
from tests.servers.mosquitto import Mosquitto


def test_each_feature_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [
        "version",
        "codec",
        "ssl",
        "security",
        "aes",
        "shm",
        "mqtt",
        "grpc",
        "msgpack",
        "protobuf",
        "files",
    ]


def fact(capsys: pytest.CaptureFixture[str], name: str) -> str:
    """What `netq doctor` prints on a line."""
    assert main(["doctor"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{name} ")]
    return line.removeprefix(name).lstrip()


def test_both_tls_libraries_show_what_they_offer(capsys: pytest.CaptureFixture[str]) -> None:
    pattern = re.compile(r"prefers (\w+); key exchange (\w+(?:, \w+)*)")
    standard, openssl = fact(capsys, "ssl"), fact(capsys, "security")
    assert standard.startswith(f"{ssl.OPENSSL_VERSION}; prefers ")
    assert openssl.startswith(f"pyOpenSSL {OpenSSL.__version__}, OpenSSL ")
    offers = [pattern.search(line) for line in (standard, openssl)]
    assert offers[0] is not None
    assert "X25519" in offers[0][2].split(", ")
    assert offers[1] is not None
    assert offers[1][2].split(", ")[0] == "X25519MLKEM768"


@pytest.mark.parametrize("aes", [True, False])
def test_without_aes_instructions_chacha_is_preferred(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, aes: bool
) -> None:
    for module in ("netq.security.openssl", "netq.cli.doctor"):
        monkeypatch.setattr(f"{module}.has_aes", lambda: aes)
    cipher = "TLS_AES_256_GCM_SHA384" if aes else "TLS_CHACHA20_POLY1305_SHA256"
    assert f"; prefers {cipher}; " in fact(capsys, "security")
    assert fact(capsys, "aes") == (
        "by instructions of the processor" if aes else "in software: the processor has no instructions"
    )


def test_missing_pyopenssl_names_the_extra(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "netq.security.openssl", raising=False)
    monkeypatch.setitem(sys.modules, "OpenSSL", None)
    assert fact(capsys, "security") == "missing: pip install 'netq-fl[security]'"
    assert "; key exchange " in fact(capsys, "ssl")


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
    lines = capsys.readouterr().out.splitlines()
    (found,) = [number for number, line in enumerate(lines) if line.startswith(f"server    {address} answers in ")]
    link, *identity = lines[found + 1 :]
    if secure:
        assert link == "link      TLSv1.3, TLS_AES_256_GCM_SHA384, X25519MLKEM768 (post-quantum)"
        (id,) = [entry.id for entry in certificates.show(files.key.parent) if entry.name == files.certificate.stem]
        assert identity == [f"identity  a certificate for 127.0.0.1, id {id}"]
    else:
        assert (link, identity) == ("link      not encrypted", [])


@pytest.fixture
def device(files: certificates.Files) -> certificates.Files:
    folder = files.key.parent
    return certificates.issue(folder, "doctor", renew=(folder / "doctor.pem").exists())


def mutual(files: certificates.Files, post_quantum: PostQuantum = "prefer") -> netq.Communicator:
    """A server that demands certificates."""
    security = netq.SecurityOptions(files.key, files.certificate, files.authority, post_quantum)
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0), security=security)
    return netq.new(purpose=netq.Purpose.SERVER, options=options)


def test_mutual_tls(capsys: pytest.CaptureFixture[str], files: certificates.Files, device: certificates.Files) -> None:
    own = [f"--{option}={path}" for option, path in device._asdict().items()]
    with mutual(files) as server:
        address = f"127.0.0.1:{server.netloc.port}"
        assert main(["doctor", address, *own, "--post-quantum", "require"]) == 0
        assert main(["doctor", address, f"--authority={device.authority}", "--timeout", "0.3"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert "link      TLSv1.3, TLS_AES_256_GCM_SHA384, X25519MLKEM768 (post-quantum)" in out
    assert out[-1].startswith(f"server    {address} does not answer within 0.3 s (")


def test_classical_link_is_named(
    capsys: pytest.CaptureFixture[str], files: certificates.Files, device: certificates.Files
) -> None:
    own = [f"--{option}={path}" for option, path in device._asdict().items()]
    with mutual(files, "off") as server:
        assert main(["doctor", f"127.0.0.1:{server.netloc.port}", *own]) == 0
    assert "link      TLSv1.3, TLS_AES_256_GCM_SHA384, X25519 (not post-quantum)\n" in capsys.readouterr().out


def test_unknown_key_exchange_is_named() -> None:
    assert describe(netq.Security("TLSv1.3", None, None, None)) == "TLSv1.3, key exchange not known"


def test_link_to_the_broker(
    capsys: pytest.CaptureFixture[str], tls_broker: Mosquitto, files: certificates.Files
) -> None:
    security = netq.SecurityOptions(certificate=files.authority)
    with netq.new("mqtt", "server", netq.CommunicatorOptions(netloc=tls_broker.netloc, security=security)):
        address = "{}:{}".format(*tls_broker.netloc)
        assert main(["doctor", address, "--protocol=mqtt", f"--authority={files.authority}"]) == 0
    *_, link, identity = capsys.readouterr().out.splitlines()
    assert link.startswith("link      to the broker: TLSv1.3, ")
    assert identity == "identity  a certificate for 127.0.0.1"


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


def test_key_without_its_certificate_is_status_2(
    capsys: pytest.CaptureFixture[str], device: certificates.Files
) -> None:
    key = ["doctor", "127.0.0.1:9", f"--key={device.key}"]
    assert main(key) == 2
    assert capsys.readouterr().err.startswith(f"netq doctor: argument --key: {device.key}; a client with a key")
    assert main([*key, f"--authority={device.authority}"]) == 2
    assert capsys.readouterr().err.startswith("netq doctor: argument --certificate: None; a client has both")


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
