"""Through a proxy: HTTP CONNECT and SOCKS5, by option and by environment; and proxies that refuse, hang or are none."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pytest

from netq import CommunicatorOptions, InvalidOption, NetworkLocation, Purpose
from netq.grpc.channel_options import of_client
from netq.proxy import Proxy
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.text import format_netloc
from tests.netq.conftest import Attempts
from tests.servers import forward, ports
from tests.wires import Wire, on

HTTP = ("tcp", "tls", "mqtt", "mqtt+tls", "grpc", "grpc+tls", "tcp+seal")
SOCKS = ("tcp", "tls", "mqtt")  # grpc has no SOCKS
LOGIN = "board s-cret"
ESCAPED = "board:s%2Dcret@"


class Stranger:
    """A server that answers each connection with a line of its own, and hangs up."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.netloc = NetworkLocation(*self._listener.getsockname())
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                with sock:
                    sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(LIMIT)
        self._listener.close()


@contextmanager
def proxy(kind: str, folder: Path, login: str = "") -> Iterator[str]:
    """Run a proxy of this kind, and return its URL without user and password."""
    with ExitStack() as stack:
        run = forward.microsocks(login=login) if kind == "socks5" else forward.tinyproxy(folder, login=login)
        yield f"{kind}://{format_netloc(*stack.enter_context(run))}"


def with_login(url: str, login: str) -> str:
    return url.replace("://", f"://{login}")


@pytest.mark.parametrize(
    ("wire", "kind"), [*[(wire, "http") for wire in HTTP], *[(wire, "socks5") for wire in SOCKS]], indirect=["wire"]
)
def test_messages_pass_a_proxy(communicators: Communicators, kind: str, tmp_path: Path, log: LogRecorder) -> None:
    server = communicators.server()
    with proxy(kind, tmp_path, LOGIN) as url:
        client = communicators.client(server.netloc, proxy=with_login(url, ESCAPED))
        introduce(server, client)
        large = bytes(3_000_000)
        server.put(large, client.id).result(LIMIT)
        assert client.get(timeout=LIMIT).data == large
        (found,) = client.statistics().values()
        assert found.address == f"{format_netloc(*server.netloc)} through {url}"
        communicators.abort(client)


@on("mqtt")
def test_server_reaches_its_broker_through_a_proxy(communicators: Communicators, tmp_path: Path) -> None:
    with proxy("http", tmp_path) as url:
        server = communicators.server(proxy=url)
        client = communicators.client(server.netloc)
        introduce(server, client)
        communicators.abort(client)
        communicators.abort(server)


@pytest.mark.parametrize(("wire", "kind"), [("tcp", "http"), ("tcp", "socks5"), ("grpc", "http")], indirect=["wire"])
def test_session_survives_the_end_of_a_proxy(communicators: Communicators, kind: str, tmp_path: Path) -> None:
    server = communicators.server()
    with proxy(kind, tmp_path) as url:
        client = communicators.client(server.netloc, proxy=url)
        introduce(server, client)
    future = client.put("while it is away")
    netloc = NetworkLocation("127.0.0.1", int(url.rpartition(":")[2]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports, "free", lambda: netloc)
        with proxy(kind, tmp_path):
            future.result(LIMIT)
            assert server.get(timeout=LIMIT).data == "while it is away"
            communicators.abort(client)


@pytest.mark.parametrize("wire", ["tcp", "grpc"], indirect=True)
def test_environment_names_a_proxy(
    communicators: Communicators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: LogRecorder
) -> None:
    with proxy("http", tmp_path) as url:
        monkeypatch.setenv("https_proxy", url)
        communicators.client(NetworkLocation("server.invalid", 7), linger=0.0)
        line = log.wait("trying again")
        assert line.startswith(f"server.invalid:7: the proxy {url} ($https_proxy): 50")
        server = communicators.server()
        introduce(server, communicators.client(server.netloc))  # 127.0.0.1: directly


@pytest.mark.parametrize(
    ("wire", "login", "allow", "expected"),
    [
        *[
            (wire, "", 443, "it refuses: 403.*do its rules allow a tunnel to this server and port")
            for wire in ("tcp", "grpc")
        ],
        *[(wire, LOGIN, None, "407.*USER:PASSWORD@HOST:PORT") for wire in ("tcp", "mqtt", "grpc")],
        *[(wire, "other login", None, "401.*does not accept") for wire in ("tcp", "mqtt", "grpc")],
    ],
    indirect=["wire"],
)
def test_refusal_says_what_to_do(
    communicators: Communicators, login: str, allow: int | None, expected: str, tmp_path: Path, log: LogRecorder,
    attempts: Attempts,
) -> None:  # fmt: skip
    wrong = "" if login in ("", LOGIN) else ESCAPED
    with forward.tinyproxy(tmp_path, allow=allow, login=login) as netloc:
        url = format_netloc(*netloc)
        client = communicators.client(NetworkLocation("127.0.0.1", 9), proxy=f"http://{wrong}{url}")
        line = log.wait("trying again")
        assert re.match(f"127.0.0.1:9: the proxy http://{url}: {expected}", line), line
        assert "cret" not in line
        attempts.wait(3)
        assert len(log.having("trying again")) == 1
        assert client.close() == 0


@pytest.mark.parametrize(("wire", "login"), [("tcp", ""), ("tcp", "other:login@")], indirect=["wire"])
def test_socks_proxy_that_wants_a_password(communicators: Communicators, login: str, log: LogRecorder) -> None:
    with forward.microsocks(login=LOGIN) as netloc:
        client = communicators.client(
            NetworkLocation("127.0.0.1", 9), proxy=f"socks5://{login}{format_netloc(*netloc)}"
        )
        expected = "does not accept the user" if login else "USER:PASSWORD@HOST:PORT"
        assert expected in log.wait("trying again")
        client.close()


@on("tcp", "mqtt", "grpc")
def test_proxy_that_is_not_there(communicators: Communicators, log: LogRecorder) -> None:
    url = f"http://{format_netloc(*ports.free())}"
    client = communicators.client(NetworkLocation("server.invalid", 9), proxy=url)
    line = log.wait("trying again")
    assert line.startswith(f"server.invalid:9: the proxy {url}: ")
    assert "Connection refused" in line
    client.close()


@on("tcp", "mqtt", "grpc")
def test_proxy_that_says_nothing(communicators: Communicators, log: LogRecorder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://{format_netloc(*silent.getsockname())}"
        client = communicators.client(NetworkLocation("server.invalid", 9), proxy=url, handshake_timeout=0.05)
        expected = f"server.invalid:9: the proxy {url}: it does not answer; trying again until it answers"
        assert log.wait("trying again") == expected
        client.close()


@on("grpc")
def test_error_of_a_server_behind_the_proxy_is_not_the_proxys(
    communicators: Communicators, tmp_path: Path, log: LogRecorder
) -> None:
    with Stranger() as server, forward.tinyproxy(tmp_path) as netloc:
        url = f"http://{format_netloc(*netloc)}"
        communicators.client(server.netloc, proxy=url, linger=0.0)
        line = log.wait("trying again")
        assert line.startswith("{}:{}: it ".format(*server.netloc))
        assert f" (through the proxy {url}); trying again" in line


def test_grpc_asks_for_the_name_that_tcp_asks_for() -> None:
    proxy = Proxy("http", "proxy", 3128)
    options = dict(of_client(NetworkLocation("bücher.example", 443), proxy))
    assert options["grpc.http_connect_server"] == "xn--bcher-kva.example:443"
    for wrong in ("evil\nGET", "a" * 300):
        with pytest.raises(OSError, match="is no name of a host"):
            of_client(NetworkLocation(wrong, 443), proxy)


@pytest.mark.parametrize(
    ("wire", "purpose", "why"),
    [
        *[(wire, Purpose.SERVER, "a server listens") for wire in ("tcp", "grpc")],
        *[("shm", purpose, "shared memory does not leave this machine") for purpose in Purpose],
    ],
    indirect=["wire"],
)
def test_proxy_without_a_use_is_refused(wire: Wire, purpose: Purpose, why: str) -> None:
    options = CommunicatorOptions(proxy="http://proxy:3128")
    with pytest.raises(InvalidOption, match=f"CommunicatorOptions.proxy: 'http://proxy:3128'; {why}"):
        wire.make(purpose, options)


@on("grpc")
def test_grpc_has_no_socks(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, option in (("", "socks5://u:secret@proxy:1080"), ("socks5://proxy:1080", "environment")):
        monkeypatch.setenv("all_proxy", variable)
        with pytest.raises(InvalidOption, match=r"'socks5://proxy:1080.*gRPC uses HTTP proxies only") as raised:
            wire.make(Purpose.CLIENT, CommunicatorOptions(netloc=NetworkLocation("server", 9), proxy=option))
        assert "secret" not in str(raised.value)
