"""Through a real nginx: the same as without, and what becomes of a link when it is restarted or set too tightly."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import netq
from netq import CommunicatorOptions, NetworkLocation, Protocol, Purpose, SecurityOptions
from netq.core import Communicator
from netq.security import certificates
from netq.testing.checks import closing, messages
from netq.testing.fixtures import LIMIT, Communicators, Make, introduce
from netq.testing.log import LogRecorder
from tests.servers.nginx import Nginx

MIB = 1024**2
Behind = Callable[..., Nginx]


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    """Start an nginx in front of a server."""
    with ExitStack() as stack:
        numbers = iter(range(100))
        yield lambda upstream, files=None, **settings: stack.enter_context(
            Nginx(tmp_path / str(next(numbers)), upstream, files, **settings)
        )


@pytest.fixture
def communicators(behind: Behind) -> Iterator[Communicators]:
    """It closes before nginx does: the last words go through it."""
    with Communicators(lambda purpose, options: netq.new(Protocol.GRPC, purpose, options)) as communicators:
        yield communicators


@pytest.fixture(params=["plain", "tls"])
def front(request: pytest.FixtureRequest, files: certificates.Files) -> certificates.Files | None:
    return files if request.param == "tls" else None


@pytest.fixture
def make_behind(behind: Behind, front: certificates.Files | None) -> Make:
    """As a check wants it: each server gets an nginx, and its clients connect to that."""
    proxies: dict[NetworkLocation, Nginx] = {}

    def make(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
        if purpose is Purpose.CLIENT:
            if options.netloc not in proxies:
                proxies[options.netloc] = behind(options.netloc, front)
            security = SecurityOptions(certificate=front.authority) if front else None
            options = dataclasses.replace(options, netloc=proxies[options.netloc].netloc, security=security)
        return netq.new(Protocol.GRPC, purpose, options)

    return make


def to(
    nginx: Nginx, communicators: Communicators, front: certificates.Files | None = None, **options: Any
) -> Communicator:
    security = SecurityOptions(certificate=front.authority) if front else None
    return communicators.client(nginx.netloc, security=security, **options)


CHECKS = {check.__name__.removeprefix("check_"): check for check in (*messages.CHECKS, *closing.CHECKS)}
UNDER_TLS = ("order", "large_message", "empty_message", "broadcast", "close_flushes", "close_of_both")
TABLE = [*(("plain", name) for name in CHECKS), *(("tls", name) for name in UNDER_TLS)]


@pytest.mark.slow
@pytest.mark.usefixtures("fewer")
@pytest.mark.parametrize(("front", "name"), TABLE, indirect=["front"])
def test_conformance(name: str, make_behind: Make) -> None:
    CHECKS[name](make_behind)


@pytest.mark.slow
def test_32_mib_each_way_on_one_link(
    communicators: Communicators, behind: Behind, front: certificates.Files | None, log: LogRecorder
) -> None:
    server = communicators.server()
    client = to(behind(server.netloc, front), communicators, front)
    introduce(server, client)
    data = bytearray(range(256)) * (32 * MIB // 256)
    for sender, receiver, peer in ((client, server, server), (server, client, client)):
        future = sender.put(pickle.PickleBuffer(data), peer.id)
        assert bytes(receiver.get(timeout=LIMIT).data) == data  # views are compared byte by byte
        future.result(LIMIT)
    assert not log.having("trying again")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["restart", "reload"])
def test_session_resumes_after_nginx_drops_the_link(
    communicators: Communicators, behind: Behind, front: certificates.Files | None, log: LogRecorder, how: str
) -> None:
    server = communicators.server()
    nginx = behind(server.netloc, front)
    client = to(nginx, communicators, front)
    introduce(server, client)
    for number in range(1000):
        client.put(number)
        server.put(-number, client.id)
        if number == 500:
            if how == "restart":
                nginx.stop()
                nginx.start()
            else:
                nginx.reload()
                log.wait("lost (")
    assert [server.get(timeout=LIMIT).data for _ in range(1000)] == list(range(1000))
    assert [client.get(timeout=LIMIT).data for _ in range(1000)] == [-number for number in range(1000)]
    assert log.wait("lost (")
    assert not log.having("began anew")


def test_missing_server_behind_nginx_is_logged_once(
    communicators: Communicators, behind: Behind, log: LogRecorder
) -> None:
    nginx = behind(communicators.unused_address())
    client = to(nginx, communicators, linger=0.0)
    future = client.put("early")
    assert "proxy" in log.wait("trying again")  # 502, if that is there before the reset
    assert "connect() failed (111: Connection refused) while connecting to upstream" in nginx.log
    server = communicators.server(nginx.upstream)
    assert server.get(timeout=LIMIT).data == "early"
    future.result(LIMIT)


def test_body_limit_of_nginx_ends_links(communicators: Communicators, behind: Behind, log: LogRecorder) -> None:
    """Default: 1 MiB in all, however many messages it is; then another link is needed, and goes on."""
    server = communicators.server()
    client = to(behind(server.netloc, client_max_body_size="1m"), communicators)
    introduce(server, client)
    data = bytes(3 * MIB)
    client.put(data).result(LIMIT)
    assert server.get(timeout=LIMIT).data == data
    assert len(log.having(": connected")) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["client_body_timeout", "grpc_read_timeout"])
def test_heartbeat_keeps_a_link_within_nginx_timeout(
    communicators: Communicators, behind: Behind, log: LogRecorder, setting: str
) -> None:
    server = communicators.server(heartbeat=0.2, misses=10)
    nginx = behind(server.netloc, **{setting: "2s"})
    beating = to(nginx, communicators, heartbeat=0.2, misses=10)
    introduce(server, beating)
    with pytest.raises(TimeoutError):
        server.get(timeout=4.5)
    assert not log.having("lost (")
    quiet_server = communicators.server()
    quiet = to(behind(quiet_server.netloc, **{setting: "1s"}), communicators)
    introduce(quiet_server, quiet)
    log.wait(f"{quiet.id}: lost (")
    quiet.put("and back again").result(LIMIT)
    assert quiet_server.get(timeout=0).data == "and back again"


@pytest.mark.slow
def test_other_timeouts_of_nginx_have_no_effect(communicators: Communicators, behind: Behind, log: LogRecorder) -> None:
    """docs/how-to/transport.md names those that do; for those here the default is as good as any."""
    settings = ("grpc_send_timeout", "send_timeout", "keepalive_timeout", "grpc_connect_timeout", "lingering_timeout")
    server = communicators.server()
    client = to(behind(server.netloc, **dict.fromkeys(settings, "1s")), communicators)
    introduce(server, client)
    with pytest.raises(TimeoutError):
        server.get(timeout=2.5)
    client.put("still there").result(LIMIT)
    assert not log.having("lost (")
