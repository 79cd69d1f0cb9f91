"""examples/c: sessions, lanes, windows, heartbeats, closing, with servers in Python and with one that tests serve."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import struct
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

import netq
from benchmarks import c_client
from netq.security import certificates
from netq.testing.proxy import Proxy
from tests.examples.c import programs
from tests.examples.c.programs import (
    ACK,
    ANSWER,
    FIN,
    INI,
    LEAVING,
    LIMIT,
    MSG,
    PING,
    RESUME,
    Listener,
    Programs,
    build,
    cursor,
    end,
    frame,
    greeting,
    peer_of,
)
from tests.netq import authority
from tests.pages import Page, Scripts

pytestmark = pytest.mark.slow

HERE = netq.NetworkLocation("127.0.0.1", 0)
LAST = 2**63 - 1
CLIENT = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
PAGE = Page("docs/reference/protocol.md")
HEX = [(name, bytes.fromhex(re.sub(r"#.*", "", text))) for name, text in PAGE.named_blocks("hex")]
BYTES = netq.SerializationOptions(load=lambda stream: stream.read(), dump=lambda data: data)
MIB = 1024**2
needs_openssl = pytest.mark.usefixtures("openssl")


def file(folder: Path, data: bytes) -> Path:
    path = folder / f"{len(data)}"
    path.write_bytes(data)
    return path


def open_server(port: int = 0, **connection: float) -> netq.core.Communicator:
    options = netq.CommunicatorOptions(
        netloc=netq.NetworkLocation("127.0.0.1", port),
        connection=netq.ConnectionOptions(retry_min=0.01, retry_max=0.1, **connection),  # type: ignore[arg-type]
        serialization=BYTES,
    )
    return netq.new(purpose=netq.Purpose.SERVER, options=options)


def echo(server: netq.core.Communicator, messages: list[bytes], lanes: int = 1) -> None:
    """Send messages, and check that they come back."""
    peer = peer_of(server)
    for number, message in enumerate(messages):
        server.put(message, peer, lane=number % lanes)
    got = [server.get(timeout=LIMIT) for _ in messages]
    for lane in range(lanes):
        assert [message.data for message in got if message.lane == lane] == messages[lane::lanes]


# The page's bytes


def test_complete_exchange_of_the_page(clients: Programs, listener: Listener, tmp_path: Path) -> None:
    steps = [(name, data) for name, data in HEX if name.startswith("exchange")]
    options = ("--id", CLIENT, "--window", 2**18, "--message-size", 2**40)
    process = clients.start("send", listener.netloc, file(tmp_path, b"hello"), *options)
    with listener.accept() as link:
        for name, data in steps:
            if name == "exchange server":
                link.send(data)
                continue
            got = link.frame()
            if data[0] == INI:
                assert got[48:64] != data[48:64]  # the token is random
                got = got[:48] + data[48:64] + got[64:]
            assert got == data
        assert link.rest() == b""
    assert end(process) == (0, "")


def test_frames_of_the_page(clients: Programs, listener: Listener, tmp_path: Path) -> None:
    """Each of its examples that a server may send, and the client's answer; then a link that resumes."""
    page = dict(HEX)
    process = clients.start("get", listener.netloc, 4, tmp_path, "--window", 1000)
    with listener.accept() as link:
        assert link.frame()[:2] == b"\x01\x00"
        link.send(greeting(1) + frame(MSG, 1, 0, lane=1) + frame(MSG, 1, 0) + frame(MSG, 2, 0))
        link.send(page["PING"])
        while link.frame() != page["ANSWER"]:
            pass
        link.send(page["DROP"])
        while link.frame() != frame(ACK, 3, 2 * 256 + 72 + 256 + 1000):
            pass
        link.send(page["MSG"])
        link.send(frame(PING))
        while link.frame() != frame(PING, flags=ANSWER):
            pass
        link.send(page["REFUSED"])
        assert link.rest() == b""
    with listener.accept() as link:
        got = link.frame()
        lanes = cursor(0, 3, 0, 1840) + cursor(1, 1, 5, 1256)
        assert got == greeting_like(got, 1, lanes)
        link.send(greeting(1, flags=RESUME) + frame(MSG, 2, 300, bytes(295), lane=1) + frame(MSG, 4, 1, b"x"))
        link.send(frame(FIN))
        while link.frame() != page["FIN"]:
            pass
        assert link.rest() == b""
    assert end(process) == (0, f"netq: 127.0.0.1:{listener.netloc[1]}: refused by the server: busy; trying again\n")
    assert (tmp_path / "3").read_bytes() == b"hello" + bytes(295)


def greeting_like(got: bytes, epoch: int, cursors: bytes) -> bytes:
    """Return the INI of a client with this state. Its id and token are those of another INI."""
    head = struct.pack("<4sHH", b"NETQ", 1, len(cursors) // 32) + got[32:64]
    return frame(INI, body=head + struct.pack("<QQII", 2**30, 1000, 10_000, epoch) + cursors, flags=RESUME)


# With a server in Python


@pytest.mark.parametrize("window", [1, 5000, 4 * MIB])
def test_messages_go_both_ways(clients: Programs, window: int) -> None:
    messages = [random.Random(size).randbytes(size) for size in (0, 1, 4096, MIB, 20 * MIB, 4097, 0)]
    with open_server(window=window) as server:
        process = clients.start("echo", server.netloc, "--window", window)
        echo(server, messages)
    assert end(process) == (0, "")


def test_lanes_keep_their_order(clients: Programs) -> None:
    messages = [random.Random(number).randbytes(number * 7) for number in range(2000)]
    with open_server(window=3000) as server:
        process = clients.start("echo", server.netloc, "--window", 3000)
        echo(server, messages, lanes=16)
    assert end(process) == (0, "")


@pytest.mark.parametrize("resets", [False, True])
def test_resumes_after_cuts_at_any_byte(clients: Programs, resets: bool) -> None:
    """Nothing is lost or doubled, though links end at random bytes, also within messages of both directions."""
    draw = random.Random(7)
    messages = [draw.randbytes(draw.choice([0, 5, 70, 3000, 200_000])) for _ in range(200)]
    with open_server(window=300_000) as server, Proxy(server.netloc) as proxy:
        process = clients.start("echo", proxy.netloc, "--window", 300_000)
        peer = peer_of(server)
        cuts = 0
        came: list[bytes] = []
        for message in messages:
            server.put(message, peer)
        arm = proxy.reset_after if resets else proxy.cut_after
        while len(came) < len(messages):
            if cuts < 15:
                arm(draw.randrange(1, 600_000))
                cuts += 1
            came += [server.get(timeout=LIMIT).data for _ in range(min(12, len(messages) - len(came)))]
        assert came == messages
        server.close(LIMIT)
    status, errors = end(process)
    assert status == 0, errors
    assert errors.count("trying again") > 5


def test_dropped_message_takes_no_room(clients: Programs, tmp_path: Path) -> None:
    with open_server() as server, Proxy(server.netloc) as proxy:
        process = clients.start("get", proxy.netloc, 2, tmp_path, "--window", 1000)
        peer = peer_of(server)
        server.put(b"first", peer).result(LIMIT)
        stop = proxy.passed + 100_000
        proxy.hold(after=100_000)
        large = server.put(bytes(16 * MIB), peer)
        proxy.wait(stop, LIMIT)
        assert large.cancel()
        proxy.release()
        server.put(b"second", peer)
        assert end(process) == (0, "")
    assert (tmp_path / "1").read_bytes() == b"second"


def test_server_without_the_session_begins_it_anew(clients: Programs, tmp_path: Path) -> None:
    with open_server() as first, open_server() as second, Proxy(first.netloc) as proxy:
        process = clients.start("get", proxy.netloc, 2, tmp_path)
        first.put(b"one", peer_of(first)).result(LIMIT)
        proxy.upstream = second.netloc
        proxy.cut()
        second.put(b"two", peer_of(second))
        status, errors = end(process)
        assert status == 0, errors
        first.close(0)
    assert [(tmp_path / name).read_bytes() for name in "01"] == [b"one", b"two"]


def test_waits_for_a_server_that_is_not_there_yet(clients: Programs, tmp_path: Path) -> None:
    with Listener() as listener:
        port = listener.netloc[1]
    process = clients.start("send", ("127.0.0.1", port), file(tmp_path, b"hello"))
    assert process.stderr is not None
    assert "Connection refused; trying again" in process.stderr.readline()
    with open_server(port) as server:
        assert server.get(timeout=LIMIT).data == b"hello"
    assert end(process)[0] == 0


def test_patience_ends(clients: Programs, listener: Listener, tmp_path: Path) -> None:
    with Listener() as listener:
        netloc = listener.netloc
    process = clients.start("send", netloc, file(tmp_path, b"hello"), "--patience", 200)
    status, errors = end(process)
    assert status == 1
    assert errors.endswith("\nnetq: the server has not acknowledged 1 message\n")


@needs_openssl
@pytest.mark.parametrize("mutual", [False, True])
def test_tls(clients: Programs, tmp_path: Path, mutual: bool) -> None:
    files = certificates.init(tmp_path / "certificates")
    client = certificates.issue(tmp_path / "certificates", "board")
    authority = files.authority if mutual else None
    options = netq.CommunicatorOptions(
        netloc=HERE,
        serialization=BYTES,
        security=netq.SecurityOptions(files.key, files.certificate, authority),
    )
    own = ("--certificate", client.certificate, "--key", client.key) if mutual else ()
    with netq.new(purpose=netq.Purpose.SERVER, options=options) as server:
        process = clients.start("echo", server.netloc, "--authority", files.authority, *own)
        echo(server, [bytes(size) for size in (0, 1, 4096, 3 * MIB)], lanes=2)
        ((peer, statistics),) = server.statistics().items()
        security = statistics.security
        assert security is not None
        assert (security.version, security.identity) == ("TLSv1.3", peer if mutual else None)
    assert end(process) == (0, "")


@needs_openssl
def test_tls_refuses_another_authority(clients: Programs, tmp_path: Path) -> None:
    files, other = certificates.init(tmp_path / "one"), certificates.init(tmp_path / "other")
    options = netq.CommunicatorOptions(netloc=HERE, security=netq.SecurityOptions(files.key, files.certificate))
    with netq.new(purpose=netq.Purpose.SERVER, options=options) as server:
        words = ("--authority", other.authority, "--patience", 300)
        status, errors = end(clients.start("send", server.netloc, file(tmp_path, b"secret"), *words))
        assert status == 1
        assert "the server's certificate is not accepted" in errors


# Arguments: what is wrong is said in one line, before the client connects


@pytest.mark.parametrize(("path", "least"), [("/proc/cpuinfo", 100), ("/proc/self/maps", 4097), ("/dev/null", 0)])
def test_sends_files_that_do_not_know_their_size(clients: Programs, path: str, least: int) -> None:
    with open_server() as server:
        process = clients.start("send", server.netloc, path)
        data = server.get(timeout=LIMIT).data
        assert (len(data) >= least, data[-1:]) == (True, b"\n" if least else b"")
        assert end(process) == (0, "")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["send", "localhost", "1", "HERE/whole", "HERE/none"], "HERE/none: No such file or directory"),
        (["send", "localhost", "1", "HERE"], "HERE: Is a directory"),
        (["train", "localhost", "1", "HERE"], "HERE: Is a directory"),
        (["get", "localhost", "1", "1", "HERE/none"], "HERE/none: No such file or directory"),
        (["get", "localhost", "1", "1", "HERE/whole"], "HERE/whole: Not a directory"),
        *(
            (["echo", "localhost", port], f"PORT {port}: expected a whole number from 1 to 65535")
            for port in ("99999", "0", "http", "")
        ),
    ],
)
def test_wrong_arguments_are_told_at_once(checked: Path, tmp_path: Path, words: list[str], error: str) -> None:
    (tmp_path / "whole").write_bytes(b"hello")
    assert told(checked, tmp_path, words) == (2, f"netq: {error}\n".replace("HERE", str(tmp_path)))


def told(program: Path, folder: Path, words: list[str]) -> tuple[int, str]:
    parts = [str(program), *(word.replace("HERE", str(folder)) for word in words)]
    result = subprocess.run(parts, capture_output=True, text=True, timeout=LIMIT)
    return result.returncode, result.stderr


@needs_openssl
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--certificate", "HERE/c", "--key", "HERE/c"], "--certificate, --key: expected --authority with them"),
        (["--authority", "HERE/c", "--key", "HERE/c"], "--certificate, --key: expected both or none"),
        (["--authority", "HERE/none"], "HERE/none: No such file or directory"),
        (["--authority", "HERE/c"], "TLS cannot be used: expected PEM files"),
        (["--authority", "HERE/c", "--certificate", "HERE/c", "--key", "HERE/c"], "HERE/c: expected a certificate"),
    ],
)
def test_wrong_files_of_tls_are_told_at_once(checked: Path, tmp_path: Path, words: list[str], error: str) -> None:
    (tmp_path / "c").write_text("no PEM")
    status, errors = told(checked, tmp_path, ["echo", "localhost", "1", *words])
    assert (status, errors.count("\n")) == (2, 1)
    assert errors.startswith(f"netq: {error}".replace("HERE", str(tmp_path)))


def test_get_says_how_many_messages_came(clients: Programs, listener: Listener, tmp_path: Path) -> None:
    process = clients.start("get", listener.netloc, 2, tmp_path)
    with listener.accept() as link:
        link.frame()
        link.send(greeting(1) + frame(MSG, 1, 1, b"x") + frame(FIN))
        link.rest()
    assert end(process) == (1, "netq: expected 2 messages: the server has sent 1\n")


def put_one_by_one(server: netq.core.Communicator, peer: uuid.UUID, messages: list[bytes]) -> None:
    for message in messages:
        server.put(message, peer).result(LIMIT)


def test_get_that_cannot_write_ends_the_session(clients: Programs, tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    with open_server() as server:
        process = clients.start("get", server.netloc, 2, tmp_path, "--window", 1000)
        peer = peer_of(server)
        with pytest.raises(netq.Closed):
            put_one_by_one(server, peer, [bytes(900)] * 20)
        assert end(process) == (1, f"netq: {tmp_path}/0: Is a directory\n")


# Time


def test_sends_ping_when_it_is_due(clients: Programs, listener: Listener) -> None:
    process = clients.start("echo", listener.netloc, "--heartbeat", 80)
    with listener.accept() as link:
        link.frame()
        link.send(greeting(1))
        start = time.monotonic()
        for _ in range(3):
            assert link.frame()[:2] == bytes([PING, 0])
        assert 0.2 < time.monotonic() - start < LIMIT
        process.send_signal(signal.SIGKILL)
    end(process)


def test_drops_a_silent_link_and_resumes(clients: Programs, listener: Listener) -> None:
    """After three times the larger heartbeat, 150 ms."""
    process = clients.start("echo", listener.netloc, "--heartbeat", 50)
    with listener.accept() as link:
        link.frame()
        link.send(greeting(1, heartbeat=150))
        start = time.monotonic()
        link.rest()
        assert time.monotonic() - start > 0.4
    with listener.accept() as link:
        assert link.frame()[1] == RESUME
        link.send(greeting(1, flags=RESUME, heartbeat=150) + frame(FIN))
        while link.frame()[0] != FIN:
            pass
    status, errors = end(process)
    assert status == 0
    assert "the server is silent" in errors


# Closing


def test_closing_lifts_limits_and_says_leaving(clients: Programs, listener: Listener, tmp_path: Path) -> None:
    process = clients.start("send", listener.netloc, file(tmp_path, bytes(500)), "--window", 600)
    with listener.accept() as link:
        link.frame()
        link.send(greeting(1, credit=100) + frame(MSG, 1, 601, b"x", lane=2))
        frames = [link.frame() for _ in range(3)]
        assert frame(ACK, 0, LAST, lane=2) in frames
        assert bytes([PING, LEAVING]) in [each[:2] for each in frames]
        assert frame(MSG, 1, 500, bytes(100)) in [each[:4] + b"\x64\0\0\0" + each[8:] for each in frames]
        link.send(frame(ACK, 0, 500))
        assert len(link.frame()) == 24 + 400
        link.send(frame(ACK, 1, 500))
        assert link.frame() == frame(FIN)
        link.send(frame(FIN))
        assert link.rest() == b""
    assert end(process) == (0, "")


def test_session_that_the_server_ends(clients: Programs, listener: Listener) -> None:
    process = clients.start("echo", listener.netloc)
    with listener.accept() as link:
        link.frame()
        link.send(greeting(1) + frame(FIN, 3, body=b"taken\nover \xff"))
        link.rest()
    status, errors = end(process)
    assert status == 1
    _, reason, end_of_session = errors.rstrip().split("netq: ")
    assert reason.endswith(": session over by the server: taken?over ?\n")
    assert end_of_session == "the server has not closed the session"


def test_gives_up_when_superseded_again_and_again(clients: Programs, listener: Listener) -> None:
    process = clients.start("echo", listener.netloc)
    for number in range(3):
        with listener.accept() as link:
            link.frame()
            link.send(greeting(1, flags=RESUME if number else 0) + frame(FIN, 2))
            link.rest()
    status, errors = end(process)
    assert status == 1
    assert "another process has this client's token" in errors


def test_help_names_the_commands(clients: Programs, listener: Listener) -> None:
    status, errors = end(clients.start("fly", listener.netloc))
    assert status == 2
    assert errors.startswith("usage: netq-client COMMAND HOST PORT")


def test_builds_without_warnings_and_without_openssl(tmp_path: Path) -> None:
    program = build(tmp_path, [*programs.STRICT, "-O2"])
    result = subprocess.run([program, "echo", "localhost", "1", "--authority", "x"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "`make TLS=1` builds build/netq-client-tls" in result.stderr
    assert os.stat(program).st_size < 200_000


def test_each_build_has_a_name_of_its_own(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("no make here; `apt install make` brings it")
    shutil.copytree(programs.SOURCE.parent, tmp_path / "c", ignore=shutil.ignore_patterns("build"))
    (tmp_path / "c/build").mkdir()
    (tmp_path / "c/build/netq-client").touch()
    for words, end_of_command in {
        (): "is up to date.",
        ("TLS=1",): "-DNETQ_TLS -o build/netq-client-tls netq.c -lssl -lcrypto -lm",
        ("asan",): "-fno-sanitize-recover=all  -o build/netq-client-asan netq.c -lm",
        ("asan", "TLS=1"): "-DNETQ_TLS -o build/netq-client-tls-asan netq.c -lssl -lcrypto -lm",
    }.items():
        command = ["make", "-n", "-C", str(tmp_path / "c"), "--no-print-directory", *words]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert " ".join(end_of_command.split()) in " ".join(printed.split())


def test_page_runs_with_its_server(clients: Programs, tmp_path: Path) -> None:
    page = Page("docs/how-to/c.md")
    commands = [row[0].strip("`").split()[1] for row in page.rows("command")]
    status, usage = end(clients.start("", ("", 1)))
    assert (status, [word for word in commands if f"\n  {word}" not in usage]) == (2, [])
    functions = [row[0].strip("`").partition("(")[0] for row in page.rows("function")]
    assert [name for name in functions if f" {name}(" not in programs.SOURCE.read_text().replace("*", " ")] == []
    with Scripts(page, tmp_path) as run:
        server = run.start("server.py")
        sender = clients.start("send", ("127.0.0.1", run.port), file(tmp_path, bytes(4096)))
        assert server.communicate(timeout=LIMIT) == ("4096 bytes\n", "")
        assert end(sender)[0] == 0


def preload(folder: Path, name: str) -> dict[str, str]:
    """Return an environment in which a function of the TLS library fails."""
    source, shared = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text(f"void *{name}(void) {{ return 0; }}\n")
    subprocess.run([programs.compiler(), "-w", "-shared", "-fPIC", "-nostdlib", "-o", shared, source], check=True)
    return {**os.environ, "LD_PRELOAD": str(shared)}


def sends_nothing(program: Path, server: netq.core.Communicator, words: list[object], env: dict[str, str]) -> None:
    """Send a secret, which must not come to a server that is not the right one."""
    command = [program, "send", *server.netloc, *words, "--patience", 100]
    result = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True, timeout=LIMIT)
    assert result.returncode != 0  # or a signal: the library itself fails then
    assert not server.statistics(), f"it is a client of another server: {result.stderr}"


@needs_openssl
def test_no_failure_of_the_tls_library_opens_the_link(tmp_path: Path) -> None:
    """Each function that the client calls fails in turn, at a server without TLS, and at one with another name."""
    program = build(tmp_path, [*programs.STRICT, "-O1", *programs.TLS])  # -O1 warns of more
    symbols = subprocess.run(["nm", "-D", "-u", program], capture_output=True, text=True, check=True).stdout
    names = sorted(set(re.findall(r"\b((?:SSL|TLS|X509|ERR|PEM|GENERAL|ASN1)_\w+)", symbols)))
    assert {"SSL_new", "X509_VERIFY_PARAM_set1_host", "X509_VERIFY_PARAM_set1_ip_asc"} < set(names)
    files = certificates.init(tmp_path / "private", hosts=["elsewhere.example"])
    words = [file(tmp_path, b"the secret weights"), "--authority", files.authority]
    security = netq.SecurityOptions(files.key, files.certificate)
    with (
        open_server() as plain,
        netq.new(purpose=netq.Purpose.SERVER, options=netq.CommunicatorOptions(netloc=HERE, security=security)) as tls,
    ):
        for name in names:
            env = preload(tmp_path, name)
            sends_nothing(program, plain, words, env)
            sends_nothing(program, tls, words, env)


@needs_openssl
def test_common_name_is_no_host(clients: Programs, tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    issuer = authority.Authority(made)
    key, certificate = issuer.issue([authority.SERVER], common_name="localhost")
    security = netq.SecurityOptions(key, certificate)
    options = netq.CommunicatorOptions(netloc=HERE, security=security)
    with netq.new(purpose=netq.Purpose.SERVER, options=options) as server:
        words = (file(tmp_path, b"secret"), "--authority", issuer.path, "--patience", 300)
        process = clients.start("send", ("localhost", server.netloc.port), *words)
        status, errors = end(process)
        assert (status, server.statistics()) == (1, {})
        assert "the server's certificate is not accepted: hostname mismatch" in errors


def test_put_waits_for_a_server_that_acknowledges_nothing(clients: Programs, listener: Listener) -> None:
    """What the server sends to be sent back takes no more memory than the bound, and one message."""
    size, cost, window = 60_000, 256, 4 * MIB
    process = clients.start("echo", listener.netloc, "--window", window)
    with listener.accept() as link:
        link.frame()
        link.send(greeting(1))
        link.socket.settimeout(1)
        number, limit = 0, window
        with suppress(TimeoutError):  # it takes no more
            while number * size < 200 * MIB:
                while (number + 1) * (size + cost) > limit:
                    if (got := link.frame())[0] == ACK:
                        limit = struct.unpack_from("<Q", got, 16)[0]
                number += 1
                link.send(frame(MSG, number, size, bytes(size)))
    process.kill()
    end(process)
    assert number * size < 100 * MIB


def test_lines_for_people_are_bounded(clients: Programs, listener: Listener, tmp_path: Path) -> None:
    (tmp_path / "few.u8").write_bytes(bytes(65))
    process = clients.start("train", listener.netloc, tmp_path / "few.u8")
    junk = b"".join(frame(MSG, number, 1, b"x") for number in range(1, 2001))
    with listener.accept() as link:
        link.frame()
        link.send(greeting(1) + junk + frame(PING))
        while link.frame() != frame(PING, flags=ANSWER):
            pass
        assert process.stderr is not None
        errors: list[str] = []
        while "(no more lines in this minute)" not in (line := process.stderr.readline()):
            assert line, "the client has ended"
            errors.append(line)
        process.terminate()
        link.rest()
    _, rest = end(process)
    assert len(errors) + rest.count("\n") < 150


@pytest.mark.parametrize("way", ["up", "down", "round"])
def test_benchmark_measures_the_client(checked: Path, way: str) -> None:
    task = c_client.Question("", way, 64, 300, "messages/s")
    assert 0 < c_client.turn(task, [str(checked), "bench", "127.0.0.1"]) < LIMIT
