"""edge check: the file, the functions that it names, and whether the server accepts a connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import netq
from edge.__main__ import main
from netq.security import certificates

TRAIN = '[client]\ntrain = "numpy:mean"\n'


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Files:
    return certificates.make(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> certificates.Files:
    return certificates.make(tmp_path_factory.mktemp("other"))


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def write(folder: Path, port: int, more: str = TRAIN) -> str:
    path = folder / "client.toml"
    path.write_text(f'[server]\nhost = "127.0.0.1"\nport = {port}\n{more}')
    return str(path)


def test_right_file_and_reachable_server(tmp_path: Path, listening: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, listening)
    assert main(["check", path]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{path}: right; device ")
    assert second == f"server: tcp at 127.0.0.1:{listening} accepts connections"


def test_unreachable_server_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        assert main(["check", write(tmp_path, bound.getsockname()[1])]) == 1
    assert "cannot be reached: [Errno 111] Connection refused" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("", "client.train: missing"),
        ('[client]\ntrain = "numpy:meen"\n', "client.train: 'numpy:meen'"),
        (f'{TRAIN}[security]\ncertificate = "client.toml"\n', "security.certificate: "),
        (f"{TRAIN}[sekurity]\n", "[sekurity]: no such table"),
    ],
)
def test_wrong_file_is_one_line_and_status_2(
    tmp_path: Path, listening: int, capsys: pytest.CaptureFixture[str], more: str, error: str
) -> None:
    path = write(tmp_path, listening, more)
    assert main(["check", path]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"edge: {path}: {error}")


@pytest.mark.parametrize("trusted", [True, False])
def test_certificate_of_the_server_is_checked(
    tmp_path: Path,
    files: certificates.Files,
    other: certificates.Files,
    capsys: pytest.CaptureFixture[str],
    trusted: bool,
) -> None:
    options = netq.CommunicatorOptions(
        netloc=netq.NetworkLocation("127.0.0.1", 0),
        security=netq.SecurityOptions(files.key, files.certificate),
        connection=netq.ConnectionOptions(linger=0.0),
    )
    authority = (files if trusted else other).authority
    with netq.new(purpose=netq.Purpose.SERVER, options=options) as server:
        path = write(tmp_path, server.netloc.port, f'{TRAIN}[security]\ncertificate = "{authority}"\n')
        assert main(["check", path]) == (0 if trusted else 1)
        server.close(timeout=0)
    out = capsys.readouterr().out
    assert ("TLSv1.3, its certificate is trusted" if trusted else "TLS fails: [SSL: CERTIFICATE_VERIFY_FAILED]") in out


def test_shared_memory_is_not_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, 5, f'protocol = "shm"\n{TRAIN}')
    assert main(["check", path]) == 0
    assert "shm at 127.0.0.1:5 is on this machine; not checked" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["client.toml"]])
def test_wrong_command_lists_the_commands(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert "run" in errors
    assert "check" in errors


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "Example:\n  edge check client.toml\n  edge run client.toml" in capsys.readouterr().out
