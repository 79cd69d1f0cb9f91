"""Wrong input, missing servers and signals: one line on stderr, and the exit status."""

from __future__ import annotations

import re
import shlex
import signal
import socket
from pathlib import Path

import pytest

import netq
from netq.__main__ import main
from netq.bench import protocol, service
from netq.bench.checks import PASSWORD
from netq.bench.cli import parse
from netq.bench.resources import facts
from netq.options import Protocol
from netq.security import certificates
from netq.testing.fixtures import LIMIT
from netq.text import format_netloc
from tests.netq.bench.conftest import Run, Start, where
from tests.servers.mosquitto import Mosquitto

TLS = ("--tls", "--key", "--certificate")
PURPOSES = ("server", "client", "both")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("", "are required: server|iops|latency|throughput|sweep|load"),
        ("sprint", "invalid choice: 'sprint'"),
        ("iops", "required: PROTOCOL, PURPOSE, MODE"),
        ("iops sync", "argument PROTOCOL: invalid choice: 'sync'"),
        ("iops pigeon both sync", "argument PROTOCOL: invalid choice: 'pigeon'"),
        ("iops tcp neither sync", "argument PURPOSE: invalid choice: 'neither'"),
        ("iops tcp both sideways", "argument MODE: invalid choice: 'sideways'"),
        ("iops tcp both", "required: MODE"),
        ("iops tcp both sync --protocol tcp", "unrecognized arguments: --protocol tcp"),
        ("iops tcp both sync --spawn", "unrecognized arguments: --spawn"),
        *[(f"iops mqtt {purpose} sync", "mqtt needs --netloc, the broker's") for purpose in PURPOSES],
        *[(f"iops tcp both sync --workers {number}", "a whole number from 1 to 256") for number in (0, 257)],
        (
            "iops tcp client sync --transport-size 5GiB",
            "ConnectionOptions.transport_size: 5368709120; expected a whole number from 1 to",
        ),
        ("iops tcp client sync --put-merge=no", "argument --put-merge/--no-put-merge: ignored explicit argument 'no'"),
        ("iops shm client sync --no-put-merge", "error: ConnectionOptions.put_merge: False; shared memory joins"),
        ("iops tcp server sync --tls ca.pem", "--tls is a client's: a server has --key and --certificate"),
        *[
            (f"iops tcp client sync {option} x", "--key and --certificate are a server's: a client has --tls CA.pem")
            for option in TLS[1:]
        ],
        *[
            (f"iops tcp {purpose} sync --no-pin", "--no-pin is for a server that is started here: see both")
            for purpose in PURPOSES[:2]
        ],
        ("latency --netloc here:1 --no-pin", "--no-pin is for a server that is started here: see --spawn"),
        ("iops tcp server sync --timeout 10", "--timeout is for client and both: a server waits for its clients"),
        *[
            (f"iops tcp both sync {option} 0", f"{option} needs --step-size, of 1 at least")
            for option in ("--min-size", "--step-expo", "--seed")
        ],
        ("iops tcp both sync --step-size 0 --seed 1", "--seed needs --step-size, of 1 at least"),
        ("iops tcp client sync --netloc here:0", "--netloc here:0: expected the port at which the server listens"),
        ("iops tcp both sync --tls ca.pem", "makes its own certificate: give --secure alone"),
        ("iops shm both sync --user me", "--user, --password and --prefix are for mqtt"),
        *[
            (f"iops tcp {purpose} sync --secure", "give --key PEM and --certificate PEM to the")
            for purpose in PURPOSES[:2]
        ],
        ("iops shm both sync --secure", "shared memory has no TLS: nothing leaves this machine"),
        ("iops mqtt both sync --netloc here:1 --secure", "both sides have --tls CA.pem"),
        *[(f"iops tcp both sync --secure {option} x", "give --secure alone") for option in TLS],
        ("iops tcp both sync --max-size 41", "expected a whole number from 0 to 40"),
        ("iops tcp both sync --min-size 9 --max-size 3 --step-size 1", "--min-size 9 is above --max-size 3"),
        ("iops tcp both sync --min-size 0 --max-size 40 --step-size 1 --step-expo 4", "expected 50,000,000 at most"),
        ("iops tcp both sync --step-expo nan", "expected a number from 0 to 4"),
        ("iops tcp both sync --max-size 1 --reps 50_000_001", "50,000,001 messages; expected 50,000,000 at most"),
        ("latency --size 3XB", "'3XB'; expected a size"),
        ("latency --count 0", "expected a whole number from 1"),
        ("latency --count many", "'many'; expected a whole number"),
        ("latency --netloc nowhere", "'nowhere'; expected HOST:PORT"),
        ("latency --netloc :5", "expected HOST:PORT"),
        ("latency --netloc here:65536", "expected HOST:PORT"),
        ("latency --protocol pigeon", "invalid choice: 'pigeon'"),
        ("latency --protocol mqtt", "needs --netloc, the broker's"),
        ("latency --key k --netloc here:1", "unrecognized arguments: --key k"),
        ("server --key k", "SecurityOptions.certificate: None; a server needs its certificate chain"),
        ("latency --secure --netloc here:1", "--secure is for a server that is started here"),
        ("latency --tls ca.pem", "makes its own certificate: give --secure alone"),
        ("latency --user me", "--user, --password and --prefix are for mqtt"),
        ("latency --tls /no/such.pem --netloc here:1", "/no/such.pem"),
        ("load --rate 0", "expected a number from 0.1"),
        ("load --rate 1e7 --seconds 1000", "10,000,000,000 messages"),
        ("throughput --direction left", "invalid choice: 'left'"),
        ("server --core 9999", "--core 9999: expected a core of this machine that this process may use"),
        ("server --core -1", "'-1'; expected a whole number from 0 to "),
        ("server --tls ca.pem", "--tls is a client's: a server has --key and --certificate"),
        ("server --tls ca.pem --key k --certificate c", "--tls is a client's: a server has --key and --certificate"),
        ("server --key /no/key --certificate /no/such", "/no/such"),
        ("server --protocol mqtt --netloc here:1 --key k --certificate c", "TLS is the broker's"),
        (
            "latency --protocol shm --netloc 192.0.2.1:5",
            "CommunicatorOptions.netloc: '192.0.2.1' is not this",
        ),
        ("latency --cou 5", "unrecognized arguments: --cou 5"),
        ("load --rate 5 --limit 3", "argument --limit: not allowed with argument --rate"),
        ("latency --password x", "--user, --password and --prefix are for mqtt"),
        *[
            (f"latency --prefix {prefix}", "--user, --password and --prefix are for mqtt")
            for prefix in ("other", "netq-bench")
        ],
        ("latency --protocol mqtt --netloc here:1 --password x", "error: MqttOptions.user: None; expected a user"),
        ("latency --protocol mqtt --netloc here:1 --prefix a#", "error: MqttOptions.prefix: 'a#'; expected 1 to 128"),
        ("latency --protocol mqtt --netloc here:1 --prefix ''", "error: MqttOptions.prefix: ''; expected 1 to 128"),
        ("latency --protocol mqtt --netloc here:0", "--netloc here:0: expected the port at which the broker listens"),
        ("server --protocol mqtt", "needs --netloc, the broker's"),
        ("server --protocol mqtt --netloc here:1 --certificate c", "with mqtt TLS is the broker's"),
        *[(f"iops shm server sync {option} x", "shared memory has no TLS") for option in TLS],
        ("latency --netloc /run/q.sock", "--netloc /run/q.sock: a path is for shm"),
        ("latency --netloc here:0", "--netloc here:0: expected the port at which the server listens"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str], line: str, error: str) -> None:
    try:
        status: object = main(["bench", *shlex.split(line)])
    except SystemExit as end:
        status = end.code
    out, errors = capsys.readouterr()
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert re.match(r"netq bench( \w+)?: error: ", errors)
    assert error in errors


def test_netq_without_a_command_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "netq bench" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "netq bench" in capsys.readouterr().out


def test_missing_server_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert main(["bench", "latency", "--netloc", f"127.0.0.1:{port}", "--timeout", "0.2"]) == 1
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert errors.startswith(f"netq bench: error: cannot connect to 127.0.0.1:{port} (")
    assert "Connection refused); no answer within 0.2 s (--timeout)" in errors


@pytest.mark.slow
def test_missing_server_is_said_before_the_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", "--netloc", "127.0.0.1:1", "--timeout", "1.2"]) == 1
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("netq bench: cannot connect to 127.0.0.1:1 (")
    assert first.endswith("Connection refused); waiting up to 1.2 s")
    assert last.startswith("netq bench: error: cannot connect to 127.0.0.1:1 (")


@pytest.mark.slow
def test_other_netq_server_is_not_a_bench_server(capsys: pytest.CaptureFixture[str]) -> None:
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
    with netq.new(purpose=netq.Purpose.SERVER, options=options) as server:
        status = main(["bench", "latency", "--netloc", f"127.0.0.1:{server.netloc.port}", "--timeout", "0.3"])
    assert status == 1
    assert "connected, but no bench server at" in capsys.readouterr().err


def test_address_in_use_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str], netloc: str) -> None:
    assert main(["bench", "server", "--netloc", netloc]) == 1
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert f"cannot listen at {netloc}" in errors


def test_ctrl_c_ends_a_server_without_output(start: Start) -> None:
    server = start("server", "--netloc", "127.0.0.1:0", "--json")
    where(server)
    server.send_signal(signal.SIGINT)
    assert server.communicate(timeout=LIMIT) == ("", "")
    assert server.returncode == 130


def test_sigterm_ends_server_and_client(start: Start) -> None:
    server = start("server", "--netloc", "127.0.0.1:0", "--json")
    host, _, port = where(server).rpartition(":")
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation(host, int(port)))
    with netq.new(purpose=netq.Purpose.CLIENT, options=options) as client:
        assert client.get(timeout=LIMIT).data[0] == "hello"
        server.send_signal(signal.SIGTERM)
        with pytest.raises(netq.Closed, match="it has closed"):
            client.get(timeout=LIMIT)
    assert server.communicate(timeout=LIMIT) == ("", "netq bench: SIGTERM: the server has ended\n")
    assert server.returncode == 0


def test_sigterm_ends_a_server_without_its_broker(start: Start) -> None:
    server = start("server", "--protocol", "mqtt", "--netloc", "127.0.0.1:1", "--json")
    where(server)
    server.send_signal(signal.SIGTERM)
    assert server.communicate(timeout=LIMIT)[1].endswith("netq bench: SIGTERM: the server has ended\n")
    assert server.returncode == 0


def test_ctrl_c_ends_a_measuring_client_without_output(start: Start) -> None:
    arrivals = service.Arrivals()
    options = netq.CommunicatorOptions(
        netloc=netq.NetworkLocation("127.0.0.1", 0),
        serialization=protocol.serialization(),
        events=netq.EventOptions(ini=arrivals.put),
    )
    with netq.new(purpose=netq.Purpose.SERVER, options=options) as server:
        client = start("latency", "--netloc", f"127.0.0.1:{server.netloc.port}")
        assert arrivals.get(timeout=LIMIT) is not None
        server.put(("hello", protocol.VERSION, facts()))
        assert server.get(timeout=LIMIT).data == ("echo", 64)
        server.put(("ready",))
        assert len(server.get(timeout=LIMIT).data) == 64  # and it waits for the echo
        client.send_signal(signal.SIGINT)
        assert client.communicate(timeout=LIMIT) == ("", "")
    assert client.returncode == 130


def test_server_prints_where_it_listens(start: Start) -> None:
    server = start("server", "--netloc", "127.0.0.1:0")
    assert server.stdout is not None
    assert re.fullmatch(r"serving tcp at 127\.0\.0\.1:\d+; Ctrl-C or SIGTERM ends it\n", server.stdout.readline())


@pytest.mark.parametrize("name", ["shm", "grpc"])
def test_spawned_server_of_other_protocols(run: Run, name: str) -> None:
    if name == "grpc":
        pytest.importorskip("grpc")
    report = run("iops", name, "both", "async", "--max-size", "18", "--reps", "20", "--no-pin")
    assert (report["arguments"]["protocol"], report["figures"]["messages"]) == (name, 40)


@pytest.mark.slow
def test_spawned_server_through_a_broker(run: Run, broker: Mosquitto) -> None:
    netloc = "{}:{}".format(*broker.netloc)
    arguments = ("--max-size", "18", "--reps", "20", "--netloc", netloc)
    assert run("iops", "mqtt", "both", "sync", *arguments)["figures"]["messages"] == 40


@pytest.mark.slow
def test_tls_with_a_spawned_server(run: Run) -> None:
    report = run("throughput", "--size", "1MiB", "--count", "3", "--direction", "both", "--secure")
    assert (report["arguments"]["secure"], report["figures"]["messages"]) == (True, 6)


@pytest.mark.slow
def test_untrusted_server_is_not_measured(
    capsys: pytest.CaptureFixture[str], start: Start, files: certificates.Files, tmp_path: Path
) -> None:
    server = start(
        "server", "--netloc", "127.0.0.1:0", "--json", f"--key={files.key}", f"--certificate={files.certificate}"
    )
    other = certificates.init(tmp_path).authority
    assert main(["bench", "latency", "--netloc", where(server), "--tls", str(other), "--timeout", "0.5"]) == 1
    assert "certificate" in capsys.readouterr().err


def test_spawned_server_prints_why_it_cannot_start(capfd: pytest.CaptureFixture[str], netloc: str) -> None:
    assert main(["bench", "latency", "--spawn", "--netloc", netloc]) == 1
    out, errors = capfd.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert "cannot listen" in errors


@pytest.mark.slow
def test_missing_broker_is_one_line_with_a_spawned_server(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["latency", "--spawn", "--protocol", "mqtt", "--netloc", "127.0.0.1:1", "--timeout", "0.5"]
    assert main(["bench", *arguments]) == 1
    out, errors = capfd.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert "cannot connect to the broker 127.0.0.1:1, --prefix netq-bench/" in errors


def test_password_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "secret")
    assert parse(["latency", "--protocol", "mqtt", "--netloc", "broker:1", "--user", "me"]).password == "secret"
    assert parse(["latency"]).password is None


def test_prefix_differs_from_that_of_applications() -> None:
    at_broker = ["--protocol", "mqtt", "--netloc", "broker:1"]
    assert parse(["server", *at_broker]).prefix == parse(["latency", *at_broker]).prefix != netq.MqttOptions().prefix
    spawned = [parse(["latency", *at_broker, "--spawn"]).prefix for _ in range(2)]
    assert len({*spawned, parse(["server", *at_broker]).prefix}) == 3


@pytest.mark.parametrize(
    ("text", "location"),
    [("10.0.0.1:5", ("10.0.0.1", 5)), ("[::1]:80", ("::1", 80))],
)
def test_netloc_is_parsed_and_printed_alike(text: str, location: tuple[str, int]) -> None:
    assert parse(["latency", "--netloc", text]).netloc == location
    assert format_netloc(*location) == text


def test_netloc_of_shared_memory_is_a_path() -> None:
    netloc = parse(["latency", "--protocol", "shm", "--netloc", "/run/q.sock"]).netloc
    assert (netloc, format_netloc(*netloc)) == (("/run/q.sock", 0), "/run/q.sock")


def test_every_protocol_is_offered() -> None:
    offered = {parse(["latency", "--netloc", "here:1", "--protocol", each.value]).protocol for each in Protocol}
    assert offered == set(Protocol)
