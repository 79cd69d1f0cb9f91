"""Addresses of shared memory: ports and paths, and which processes are refused."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import threading
from pathlib import Path
from typing import NoReturn

import pytest

import netq
from netq import AddressError, CommunicatorOptions, InvalidOption, NetworkLocation, Protocol, Purpose, SecurityOptions
from netq.shm import control, rendezvous
from netq.shm.control import ControlSocket
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from tests.netq.conftest import Start

LOCAL = ["localhost", "127.0.0.1", "127.8.9.10", "::1", "0.0.0.0", "::", socket.gethostname()]
REMOTE = [
    "239.1.2.3",
    "ff02::1",
    "255.255.255.255",
    "192.0.2.7",
    "2001:db8::7",
    "aggregator.example",
    "localhost.example",
]


@pytest.mark.parametrize("host", LOCAL)
def test_all_names_of_this_machine_are_one_address(communicators: Communicators, host: str) -> None:
    server = communicators.server(NetworkLocation("127.0.0.1", 0))
    introduce(server, communicators.client(NetworkLocation(host, server.netloc.port)))


@pytest.mark.parametrize("host", REMOTE)
def test_address_of_another_machine_is_refused(communicators: Communicators, host: str) -> None:
    with pytest.raises(AddressError, match=f"cannot listen at {host}:1 .* is not this machine"):
        communicators.server(NetworkLocation(host, 1))
    with pytest.raises(InvalidOption, match=f"netloc: '{host}' is not this machine, .* use Protocol.TCP"):
        communicators.client(NetworkLocation(host, 1))


def test_port_0_is_a_free_dynamic_port(communicators: Communicators) -> None:
    ports = {communicators.server(NetworkLocation("localhost", 0)).netloc.port for _ in range(20)}
    assert len(ports) == 20
    assert all(49152 <= port < 65536 for port in ports)


def test_port_in_use_is_named_for_every_host(communicators: Communicators) -> None:
    server = communicators.server()
    port = server.netloc.port
    with pytest.raises(AddressError, match=f"cannot listen at ::1:{port} .*: Address already in use; choose another"):
        communicators.server(NetworkLocation("::1", port))
    introduce(server, communicators.client(server.netloc))


def test_path_is_private_and_removed_at_the_end(communicators: Communicators, tmp_path: Path) -> None:
    path = tmp_path / "netq"
    server = communicators.server(NetworkLocation(str(path), 7))
    assert server.netloc == NetworkLocation(str(path), 7)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [path] == list(tmp_path.iterdir())
    introduce(server, communicators.client(NetworkLocation(str(path), 8)))
    communicators.abort(server)
    assert list(tmp_path.iterdir()) == []


def test_file_of_a_dead_server_is_replaced(communicators: Communicators, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "netq"
    code = "import sys, netq; server = netq.new(netq.Protocol.SHM, netq.Purpose.SERVER, netq.CommunicatorOptions("
    dead = start(code + "netloc=(sys.argv[1], 0))); print(flush=True); sys.stdin.read()", path)
    assert dead.stdout is not None
    dead.stdout.readline()
    dead.kill()
    dead.wait()
    assert path.is_socket()
    server = communicators.server(NetworkLocation(str(path), 0))
    introduce(server, communicators.client(server.netloc))
    assert [path] == list(tmp_path.iterdir())


def test_file_of_a_live_server_is_kept(communicators: Communicators, tmp_path: Path) -> None:
    path = NetworkLocation(str(tmp_path / "netq"), 0)
    server = communicators.server(path)
    with pytest.raises(AddressError, match=f"cannot listen at {path.host} .* a server listens there"):
        communicators.server(path)
    introduce(server, communicators.client(path))
    assert len(list(tmp_path.iterdir())) == 1


def test_file_that_is_no_socket_is_kept(communicators: Communicators, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(AddressError, match="a file that is no socket is there; choose another path"):
        communicators.server(NetworkLocation(str(tmp_path / "precious"), 0))
    assert (tmp_path / "precious").read_text() == "data"
    assert len(list(tmp_path.iterdir())) == 1


def test_missing_directory_is_named(communicators: Communicators, tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="No such file or directory; choose another path"):
        communicators.server(NetworkLocation(str(tmp_path / "no" / "netq"), 0))


def test_long_path_is_refused(communicators: Communicators, tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="too long for a socket, which takes 107 bytes; choose another path"):
        communicators.server(NetworkLocation(str(tmp_path / ("x" * 200)), 0))
    assert list(tmp_path.iterdir()) == []


def test_close_keeps_the_file_of_a_newer_server(tmp_path: Path) -> None:
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
from netq.testing.log import LogRecorder
os.setgid(65534); os.setuid(65534)
host, port, text = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with LogRecorder() as log:
    client = netq.new(netq.Protocol.SHM, options=netq.CommunicatorOptions(netloc=(host, port)))
    client.put("let me in")
    print(log.wait(text), flush=True)
    client.close(timeout=0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")
def test_process_of_another_user_is_refused_on_both_sides(
    communicators: Communicators, start: Start, log: LogRecorder
) -> None:
    server = communicators.server()
    other = start(OTHER, *server.netloc, "shared memory joins")
    said, errors = other.communicate(timeout=LIMIT)
    assert errors == ""
    assert f"process {os.getpid()} is of user 0, this one of 65534; shared memory joins one user's own" in said
    line = log.wait("shared memory joins")
    assert f"process {other.pid} is of user 65534, this one of 0" in line
    introduce(server, communicators.client(server.netloc))
    assert len(server.statistics()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")
def test_another_user_cannot_open_a_path(
    communicators: Communicators, start: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = Path(tmp_path_factory.mktemp("open"))
    for folder in (directory, *directory.parents):
        if folder.is_relative_to(Path("/tmp")) and folder != Path("/tmp"):
            folder.chmod(0o755)
    server = communicators.server(NetworkLocation(str(directory / "netq"), 0))
    said, errors = start(OTHER, *server.netloc, "Permission denied").communicate(timeout=LIMIT)
    assert (errors, "Permission denied" in said) == ("", True)
    assert server.statistics() == {}


NAMESPACE = """
import ctypes, sys, netq
from netq.testing.log import LogRecorder
if ctypes.CDLL(None).unshare(0x10000000):  # CLONE_NEWUSER
    sys.exit(77)
options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("localhost", 0))
with LogRecorder() as log, netq.new(netq.Protocol.SHM, netq.Purpose.SERVER, options) as server:
    client = netq.new(netq.Protocol.SHM, options=netq.CommunicatorOptions(netloc=server.netloc))
    log.wait("may be of any user")
    client.close(0)
"""


def test_unmapped_user_namespace_is_refused(start: Start) -> None:
    process = start(NAMESPACE)
    _, errors = process.communicate(timeout=LIMIT)
    if process.returncode == 77:
        pytest.skip("no user namespaces")
    assert (process.returncode, errors) == (0, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_log_warns_once_about_another_user(communicators: Communicators, start: Start, log: LogRecorder) -> None:
    server = communicators.server()
    code = """
import os, socket, sys
os.setresuid(3000, 3000, 3000)
for _ in range(20):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect("\\0netq:" + sys.argv[1])
        sock.recv(1)  # until the server hangs up
"""
    _, errors = start(code, server.netloc.port).communicate(timeout=LIMIT)
    assert errors == ""
    log.wait("is of user 3000", count=20)
    assert len(log.having("is of user 3000", logging.WARNING)) == 1
    introduce(server, communicators.client(server.netloc))


def test_early_hang_up_is_not_reported_as_lack_of_memory(communicators: Communicators, log: LogRecorder) -> None:
    listening = rendezvous.listen(NetworkLocation("localhost", 0))
    stop = threading.Event()

    def hang_up() -> None:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                listening.sock.accept()[0].close()

    listening.sock.settimeout(0.05)
    thread = threading.Thread(target=hang_up)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(control, "offer_rings", broken_pipe)
            communicators.client(listening.netloc)
            assert "the peer hung up" in log.wait("trying again")
        assert not log.having("no memory")
    finally:
        stop.set()
        thread.join()
        listening.close()


def broken_pipe(control: ControlSocket) -> NoReturn:
    raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize(
    ("path", "flaw"),
    [
        ("/" + "x" * 200, "the path is too long for a socket, which takes 107 bytes"),
        ("/tmp/a\0b", "a path cannot contain NUL"),
        ("/tmp/\ud800", "the path cannot be written in the encoding of file names"),
    ],
    ids=["long", "NUL", "surrogate"],
)
def test_impossible_path_is_refused(communicators: Communicators, path: str, flaw: str) -> None:
    with pytest.raises(AddressError, match=flaw):
        communicators.server(NetworkLocation(path, 0))
    with pytest.raises(InvalidOption, match=f"netloc: .*{flaw}"):
        communicators.client(NetworkLocation(path, 0))


def test_long_folder_is_refused(communicators: Communicators, tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="the path of its folder is too long, which may have 97 bytes"):
        communicators.server(NetworkLocation(str(tmp_path / ("x" * (98 - len(str(tmp_path)) - 1)) / "s"), 0))


@pytest.mark.parametrize("step", ["rename", "link"])
def test_race_for_the_path_of_a_dead_server(
    communicators: Communicators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = NetworkLocation(str(tmp_path / "netq"), 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
        stale.bind(path.host)
    really = getattr(os, step)

    def late(*names: str) -> None:
        """Start another server just before this step."""
        if names[0 if step == "rename" else 1] == path.host and not (step == "link" and os.path.lexists(path.host)):
            monkeypatch.undo()
            communicators.server(path)
            if step == "rename":
                raise FileNotFoundError(2, "No such file or directory")
        really(*names)

    monkeypatch.setattr(os, step, late)
    with pytest.raises(AddressError, match="a server listens there; choose another path"):
        communicators.server(path)
