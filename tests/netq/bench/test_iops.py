"""`iops PROTOCOL PURPOSE MODE`: its two sides, and what its options change."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import netq
from netq.__main__ import main
from netq.bench import cli, spawn
from netq.bench.cli import parse
from netq.bench.resources import cores
from netq.security import certificates
from netq.testing.fixtures import LIMIT
from tests.netq.bench.conftest import Run, Start, where

SAME = ("sync", "--step-size", "0", "--max-size", "17", "--reps", "1_50", "--workers", "2")
ANY_PORT = ("--netloc", "127.0.0.1:0", "--json")


def check_ended(server: subprocess.Popen[str]) -> None:
    assert server.communicate(timeout=LIMIT) == ("", "")
    assert server.returncode == 0


@pytest.mark.slow
def test_two_processes_with_the_same_options(start: Start) -> None:
    server = start("iops", "tcp", "server", *SAME, *ANY_PORT)
    client = start("iops", "tcp", "client", *SAME, "--netloc", where(server))
    out, errors = client.communicate(timeout=LIMIT)
    assert (client.returncode, errors) == (0, "")
    assert out.startswith("iops tcp client sync --max-size 17 --reps 150 --workers 2 ")
    assert "\nmessages                    300\n" in out
    check_ended(server)


def test_server_size_bounds_client_sizes(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start("iops", "tcp", "server", "sync", "--max-size", "12", *ANY_PORT)
    line = ["bench", "iops", "tcp", "client", "sync", "--netloc", where(server)]
    assert main([*line, "--max-size", "13"]) == 1
    refusal = "messages of 8KiB; it takes 4KiB at most: start it with a larger --max-message (as iops: --max-size)"
    assert f"the server refuses: {refusal}" in capsys.readouterr().err
    assert main([*line, "--max-size", "12", "--reps", "1"]) == 0
    _, errors = server.communicate(timeout=LIMIT)
    assert refusal in errors
    assert server.returncode == 0


def test_signals_end_a_server_without_clients(start: Start) -> None:
    servers = [start("iops", "tcp", "server", *SAME, *ANY_PORT) for _ in range(2)]
    for server in servers:
        where(server)
    servers[0].send_signal(signal.SIGTERM)
    servers[1].send_signal(signal.SIGINT)
    ended = [(*server.communicate(timeout=LIMIT), server.returncode) for server in servers]
    assert ended == [("", "netq bench: SIGTERM: the server has ended\n", 0), ("", "", 130)]


@pytest.mark.parametrize("name", ["tcp", "grpc"])
def test_secure_makes_a_certificate_and_removes_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    if name == "grpc":
        pytest.importorskip("grpc")
    init, made = certificates.init, []

    def spy(directory: Path, hosts: list[str]) -> certificates.Files:
        made.append((directory.parent, hosts))
        return init(directory, hosts)

    monkeypatch.setattr(certificates, "init", spy)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    report = run("iops", name, "both", "sync", "--secure", "--max-size", "17", "--reps", "10")
    assert (report["arguments"]["secure"], report["arguments"]["tls"]) == (True, None)
    assert report["figures"]["messages"] == 20
    assert made == [(tmp_path, ["127.0.0.1"])]
    assert list(tmp_path.iterdir()) == []


def test_secure_without_cryptography_is_status_2(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for module in ("netq.security.certificates", "netq.security.authority"):
        monkeypatch.delitem(sys.modules, module)
        monkeypatch.delattr(module)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert main(["bench", "iops", "tcp", "both", "sync", "--secure"]) == 2
    needs = "netq.security.certificates needs cryptography 49 or later: pip install 'netq-fl[security]'"
    assert capfd.readouterr() == ("", f"netq bench: error: {needs}\n")


def test_connection_options_are_applied_and_reported(run: Run) -> None:
    options = ("--no-put-merge", "--no-get-merge", "--transport-size", "4_096", "--workers", "2")
    report = run("iops", "tcp", "both", "async", "--max-size", "17", "--reps", "20", *options)
    given = {name: report["arguments"][name] for name in ("put_merge", "get_merge", "transport_size", "workers")}
    assert given == {"put_merge": False, "get_merge": False, "transport_size": 4096, "workers": 2}
    assert report["figures"]["messages"] == 40


def test_no_put_merge_is_refused_by_shared_memory(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "iops", "shm", "both", "sync", "--no-put-merge"]) == 2
    out, errors = capfd.readouterr()  # of the server that could not start
    assert (out, errors.count("\n")) == ("", 1)
    assert errors.startswith("netq bench: error: ConnectionOptions.put_merge: False; shared memory joins")


def test_spawned_server_gets_the_same_options() -> None:
    knobs = ["--workers", "3", "--transport-size", "2KiB", "--no-put-merge", "--max-size", "11"]
    parsed = parse(["iops", "tcp", "both", "sync", *knobs])
    netloc, files = netq.NetworkLocation("127.0.0.1", 5), spawn._Files()
    server = parse(["server", *spawn._arguments(parsed, netloc, files, cores()[0])])
    options = spawn.server_options(server)
    assert options.connection == spawn.client_options(parsed, spawn.Server(netloc, None)).connection
    assert (options.connection.transport_size, options.connection.put_merge) == (2048, False)
    assert (options.workers, options.netloc, server.core, cli.largest(server)) == (3, netloc, cores()[0], 2**11)


def test_defaults_are_those_of_netq() -> None:
    parsed = parse(["iops", "tcp", "client", "sync"])
    ours, netqs = spawn.client_options(parsed, spawn.Server(parsed.netloc, None)), netq.CommunicatorOptions()
    assert (ours.netloc, ours.workers) == (netqs.netloc, netqs.workers)
    for name in ("transport_size", "put_merge", "get_merge"):
        assert getattr(ours.connection, name) == getattr(netqs.connection, name)


def test_large_messages_may_wait_at_the_sender() -> None:
    parsed = parse(["throughput", "--size", "1GiB", "--count", "1_000", "--netloc", "here:1"])
    connection = spawn.client_options(parsed, spawn.Server(parsed.netloc, None)).connection
    assert connection.queue_bytes > 1000 * parsed.size  # they share one buffer


@pytest.mark.parametrize("purpose", ["server", "client", "both"])
def test_default_address_depends_on_the_purpose(purpose: str) -> None:
    assert parse(["iops", "tcp", purpose, "sync"]).netloc == (None if purpose == "both" else ("127.0.0.1", 51966))
    assert parse(["iops", "tcp", purpose, "sync", "--netloc", "here:5"]).netloc == ("here", 5)


def test_report_lists_the_options_in_force(run: Run, netloc: str) -> None:
    report = run("iops", "tcp", "client", "async", "--max-size", "4", "--reps", "3", "--netloc", netloc)
    where = {"protocol": "tcp", "purpose": "client", "mode": "async", "netloc": netloc, "tls": None, "secure": False}
    what = {"min_size": None, "max_size": 4, "step_size": None, "step_expo": None, "reps": 3, "seed": None}
    how = {"workers": 1, "transport_size": 16 * 2**20, "put_merge": True, "get_merge": True}
    assert report["arguments"] == where | what | how


def test_title_is_a_command_line(capsys: pytest.CaptureFixture[str], netloc: str) -> None:
    knobs = "--workers 2 --transport-size 4KiB --no-put-merge --get-merge"
    line = f"iops tcp client sync --min-size 2 --max-size 4 --step-size 1 --step-expo 0.5 --reps 3 --seed 7 {knobs}"
    assert main(["bench", *line.split(), "--netloc", netloc]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{line} --netloc {netloc}"
