"""How peers find each other on one host, and who is refused."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

import netq
from netq import AddressError, CommunicatorOptions, InvalidOption, NetworkLocation, Protocol, Purpose, SecurityOptions
from netq.shm import rendezvous
from netq.testing.log import Log
from netq.testing.stage import LIMIT, Stage, introduce
from tests.netq.shm.conftest import Start

HERE = ["localhost", "127.0.0.1", "127.8.9.10", "::1", "0.0.0.0", "::", socket.gethostname()]
ELSEWHERE = ["192.0.2.7", "2001:db8::7", "aggregator.example", "localhost.example"]


@pytest.mark.parametrize("host", HERE)
def test_all_names_of_this_machine_are_one_place(stage: Stage, host: str) -> None:
    server = stage.server(NetworkLocation("127.0.0.1", 0))
    introduce(server, stage.client(NetworkLocation(host, server.netloc.port)))


@pytest.mark.parametrize("host", ELSEWHERE)
def test_another_machine_is_refused(stage: Stage, host: str) -> None:
    with pytest.raises(AddressError, match=f"cannot listen at {host}:1 .* is not this machine"):
        stage.server(NetworkLocation(host, 1))
    with pytest.raises(InvalidOption, match=f"netloc: '{host}' is not this machine, .* use Protocol.TCP"):
        stage.client(NetworkLocation(host, 1))


def test_port_0_gives_a_free_one_of_the_dynamic_range(stage: Stage) -> None:
    ports = {stage.server(NetworkLocation("localhost", 0)).netloc.port for _ in range(20)}
    assert len(ports) == 20
    assert all(49152 <= port < 65536 for port in ports)


def test_a_port_that_is_taken(stage: Stage) -> None:
    server = stage.server()
    port = server.netloc.port
    with pytest.raises(AddressError, match=f"cannot listen at ::1:{port} .*: Address already in use; choose another"):
        stage.server(NetworkLocation("::1", port))
    introduce(server, stage.client(server.netloc))


def test_a_path_is_for_its_user_only_and_gone_at_the_end(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "netq"
    server = stage.server(NetworkLocation(str(path), 7))
    assert server.netloc == NetworkLocation(str(path), 7)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path] == list(tmp_path.iterdir())
    introduce(server, stage.client(NetworkLocation(str(path), 8)))
    stage.cut(server)
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_a_dead_server_is_taken_over(stage: Stage, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "netq"
    code = "import sys, netq; netq.new(netq.Protocol.SHM, netq.Purpose.SERVER, netq.CommunicatorOptions("
    dead = start(code + "netloc=(sys.argv[1], 0))); print(flush=True); sys.stdin.read()", path)
    assert dead.stdout is not None
    dead.stdout.readline()
    dead.kill()
    dead.wait()
    assert path.is_socket()
    server = stage.server(NetworkLocation(str(path), 0))
    introduce(server, stage.client(server.netloc))
    assert [path] == list(tmp_path.iterdir())


def test_the_file_of_a_live_server_is_not(stage: Stage, tmp_path: Path) -> None:
    path = NetworkLocation(str(tmp_path / "netq"), 0)
    server = stage.server(path)
    with pytest.raises(AddressError, match=f"cannot listen at {path.host} .* a server listens there"):
        stage.server(path)
    introduce(server, stage.client(path))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_is_no_socket_is_left_alone(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(AddressError, match="a file that is no socket is there; choose another path"):
        stage.server(NetworkLocation(str(tmp_path / "precious"), 0))
    assert (tmp_path / "precious").read_text() == "data"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_directory_that_is_not_there(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="No such file or directory; choose another path"):
        stage.server(NetworkLocation(str(tmp_path / "no" / "netq"), 0))


def test_a_path_that_is_too_long(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="too long for a socket, which takes 107 bytes; choose another path"):
        stage.server(NetworkLocation(str(tmp_path / ("x" * 200)), 0))
    assert list(tmp_path.iterdir()) == []


def test_a_successor_keeps_its_file_when_its_predecessor_closes(tmp_path: Path) -> None:
    where = NetworkLocation(str(tmp_path / "netq"), 0)
    first = rendezvous.listen(where)
    os.unlink(where.host)
    second = rendezvous.listen(where)
    first.close()
    assert (tmp_path / "netq").is_socket()
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_tls_is_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("")
    options = CommunicatorOptions(security=SecurityOptions(certificate=tmp_path / "ca.pem"))
    for purpose in Purpose:
        with pytest.raises(
            InvalidOption, match=r"security: shared memory takes none: .* the kernel says who the peer is"
        ):
            netq.new(Protocol.SHM, purpose, options)


def test_another_system_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(InvalidOption, match=r"shared memory needs Linux and a 64-bit Python; use Protocol.TCP"):
        netq.new(Protocol.SHM)


OTHER = """
import os, sys
import netq, netq.shm.client
from netq.testing.log import Log
os.setgid(65534); os.setuid(65534)
host, port, text = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with Log() as log:
    client = netq.new(netq.Protocol.SHM, options=netq.CommunicatorOptions(netloc=(host, port)))
    client.put("let me in")
    print(log.wait(text), flush=True)
    client.close(timeout=0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")
def test_another_users_process_is_refused_on_both_sides(stage: Stage, start: Start, log: Log) -> None:
    server = stage.server()
    other = start(OTHER, *server.netloc, "shared memory joins")
    said, errors = other.communicate(timeout=LIMIT)
    assert errors == ""
    assert f"process {os.getpid()} is of user 0, this one of 65534; shared memory joins one user's own" in said
    line = log.wait("shared memory joins")
    assert f"process {other.pid} is of user 65534, this one of 0" in line
    introduce(server, stage.client(server.netloc))
    assert len(server.statistics()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")
def test_another_user_cannot_even_open_a_path(
    stage: Stage, start: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = Path(tmp_path_factory.mktemp("open"))
    for folder in (directory, *directory.parents):
        if folder.is_relative_to(Path("/tmp")) and folder != Path("/tmp"):
            folder.chmod(0o755)
    server = stage.server(NetworkLocation(str(directory / "netq"), 0))
    said, errors = start(OTHER, *server.netloc, "Permission denied").communicate(timeout=LIMIT)
    assert (errors, "Permission denied" in said) == ("", True)
    assert server.statistics() == {}
