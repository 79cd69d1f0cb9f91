"""edge check: the file, the functions that it names, and whether the server answers."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import netq
from edge import __main__ as command
from netq.security import certificates
from netq.testing.fixtures import LIMIT

TRAIN = '[client]\ntrain = "numpy:mean"\n'


@pytest.fixture(autouse=True)
def restored_signals() -> Iterator[None]:
    """`main` owns its process, and handles SIGTERM; this process has other tests to run."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority that did not sign the certificate of any server."""
    return certificates.init(tmp_path_factory.mktemp("other")).authority


def write(folder: Path, port: int, more: str = TRAIN) -> str:
    path = folder / "client.toml"
    path.write_text(f'[server]\nhost = "127.0.0.1"\nport = {port}\n[connection]\nretry_max = 0.1\n{more}')
    return str(path)


def serving(
    security: netq.SecurityOptions | None = None,
    events: netq.EventOptions | None = None,
    seal: netq.SealOptions | None = None,
) -> netq.Communicator:
    options = netq.CommunicatorOptions(
        netloc=netq.NetworkLocation("127.0.0.1", 0),
        security=security,
        seal=seal,
        connection=netq.ConnectionOptions(linger=0.0),
        events=events or netq.EventOptions(),
    )
    return netq.new(purpose=netq.Purpose.SERVER, options=options)


def test_right_file_and_answering_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        assert command.main(["check", write(tmp_path, server.netloc.port)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"all is well: 127.0.0.1:{server.netloc.port} answers in ")
    assert out.endswith(" ms over tcp, not encrypted\n")


def test_sealed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server_files, own = certificates.init(tmp_path), certificates.issue(tmp_path, "board")
    table = "\n".join(["[seal]", *(f'{name} = "{path}"' for name, path in own._asdict().items())])
    seal = netq.SealOptions(server_files.key, server_files.certificate, server_files.authority)
    with serving(seal=seal) as server:
        assert command.main(["check", write(tmp_path, server.netloc.port, f"{TRAIN}{table}\n")]) == 0
    out = capsys.readouterr().out
    assert " over tcp, sealed by MLKEM768_X25519 and " in out
    assert "not encrypted" not in out


def test_own_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = certificates.init(tmp_path)
    files = certificates.issue(tmp_path, "board")
    table = "".join(f'{option} = "{path}"\n' for option, path in files._asdict().items())
    ended = threading.Event()
    events = netq.EventOptions(fin=lambda peer: ended.set())
    with serving(netq.SecurityOptions(own.key, own.certificate, own.authority), events) as server:
        assert command.main(["check", write(tmp_path, server.netloc.port, f"{TRAIN}[security]\n{table}")]) == 0
        assert ended.wait(LIMIT)  # no session is left that the device would have to take over
    out = capsys.readouterr().out
    assert out.endswith(" ms over tcp, TLSv1.3, TLS_AES_256_GCM_SHA384, X25519MLKEM768 (post-quantum)\n")


def test_check_leaves_the_session_of_the_device_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        id = "7f0c5e0a-6f0e-4c0e-9d6b-0d3c1f2a4b5c"
        assert command.main(["check", write(tmp_path, server.netloc.port, f'{TRAIN}id = "{id}"\n')]) == 0
        assert id not in {str(peer) for peer in server.statistics()}


def test_silent_server_is_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_CHECK_TIMEOUT", 0.2)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        port = bound.getsockname()[1]
        assert command.main(["check", write(tmp_path, port)]) == 1
    errors = capsys.readouterr().err
    assert f"edge: the file is right, but 127.0.0.1:{port} does not answer within 0.2 s (" in errors
    assert "Connection refused" in errors


@pytest.mark.slow
def test_untrusted_certificate_is_status_1(
    tmp_path: Path,
    files: certificates.Files,
    authority: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "_CHECK_TIMEOUT", 1.0)
    with serving(netq.SecurityOptions(files.key, files.certificate)) as server:
        path = write(tmp_path, server.netloc.port, f'{TRAIN}[security]\ncertificate = "{authority}"\n')
        assert command.main(["check", path]) == 1
        server.close(timeout=0)
    # Client and server log into one process here, so either side's warning may be the last.
    assert "does not answer within 1 s (" in capsys.readouterr().err


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, error: str
) -> None:
    path = write(tmp_path, 9, more)
    assert command.main(["check", path]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"edge: {path}: {error}")


def test_wrong_command_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command.main(["client.toml"])
    assert end.value.code == 2
    assert (
        "invalid choice: 'client.toml' (choose from 'run', 'check', 'install', 'simulate')" in capsys.readouterr().err
    )
