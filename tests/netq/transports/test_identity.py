"""Mutual TLS: a client is whom its certificate names, and nobody else; both ends report what was negotiated."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
import queue
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from netq import (
    Closed,
    CommunicatorOptions,
    ConnectionOptions,
    EventOptions,
    NetworkLocation,
    Protocol,
    Purpose,
    SecurityError,
    SecurityOptions,
    new,
)
from netq.core import Communicator
from netq.grpc import tls as grpc_tls
from netq.runtime import endpoint
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.netq.authority import CLIENT, HOSTS, SERVER, Authority, check_resumed, renew
from tests.netq.makers import plain

IDS = [uuid.uuid4() for _ in range(2)]
DAY = 86400.0


tcp = pytest.mark.parametrize("protocol", ["tcp"], indirect=True)  # where the errors are those of netq/security/tls.py


@pytest.fixture(params=["tcp", "grpc"])
def protocol(request: pytest.FixtureRequest) -> Protocol:
    """The transports whose server has TLS of its own."""
    return Protocol(request.param)


@pytest.fixture
def communicators(protocol: Protocol, proxies: Callable[[NetworkLocation], Proxy]) -> Iterator[Communicators]:
    with Communicators(plain(protocol)) as communicators:
        yield communicators


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def make_client(protocol: Protocol, security: SecurityOptions) -> None:
    new(protocol, Purpose.CLIENT, CommunicatorOptions(security=security)).close(0)


class Impostor(Communicator):
    """A client that claims the id of its options, whatever its certificate says."""

    def __init__(self, protocol: Protocol, options: CommunicatorOptions) -> None:
        transport = importlib.import_module(f"netq.{protocol}.client").ClientTransport
        super().__init__(options, Purpose.CLIENT, transport)


def impostor(protocol: Protocol, server: Communicator, **options: Any) -> Impostor:
    return Impostor(
        protocol, CommunicatorOptions(netloc=server.netloc, connection=ConnectionOptions(linger=0.0), **options)
    )


@pytest.mark.parametrize("post_quantum", ["off", "prefer", "require"])
def test_both_ends_report_the_same_connection(
    communicators: Communicators, protocol: Protocol, authority: Authority, post_quantum: str
) -> None:
    server = communicators.server(security=authority.server(post_quantum=post_quantum))
    client = communicators.client(server.netloc, security=authority.client(IDS[0], post_quantum=post_quantum))
    introduce(server, client)
    assert client.id == IDS[0]
    (at_server,), (at_client,) = server.statistics().values(), client.statistics().values()
    is_grpc = protocol is Protocol.GRPC
    cipher = None if is_grpc else "TLS_AES_256_GCM_SHA384"
    group = "X25519MLKEM768" if is_grpc or post_quantum != "off" else None
    seen, server_seen = at_server.security, at_client.security
    assert seen is not None
    assert server_seen is not None
    assert seen[:5] == ("TLSv1.3", cipher, group, IDS[0], "a peer")
    assert 4 * DAY < (seen.not_after or 0.0) - time.time() < 5 * DAY
    # This server's certificate has no urn:uuid; grpc shows a client none.
    assert server_seen[:5] == ("TLSv1.3", cipher, group, None, None if is_grpc else "a peer")


def test_refusal_is_told_to_the_servers_user(
    communicators: Communicators, protocol: Protocol, authority: Authority
) -> None:
    told: queue.Queue[tuple[str, str]] = queue.Queue()
    events = EventOptions(refused=lambda address, reason: told.put((address, reason)))
    server = communicators.server(security=authority.server(), events=events)
    with impostor(protocol, server, id=IDS[1], security=authority.client(IDS[0])) as client:
        client.put("never")
        address, reason = told.get(timeout=LIMIT)
    assert "127.0.0.1" in address
    assert reason == f"it claims the id {IDS[1]}, but its certificate is that of {IDS[0]}"


def test_a_name_that_is_no_text_in_one_line_is_escaped(communicators: Communicators, authority: Authority) -> None:
    own = authority._options(authority.issue([CLIENT], urns=(IDS[0].urn,), common_name="board\n\x1b[2J"))
    server = communicators.server(security=authority.server())
    introduce(server, communicators.client(server.netloc, security=own))
    security = server.statistics(IDS[0])[IDS[0]].security
    assert security is not None
    assert security.name == "board\\n\\x1b[2J"


def test_statistics_of_some_peers(communicators: Communicators) -> None:
    server, first = communicators.pair()
    second = communicators.client(server.netloc)
    introduce(server, first)
    introduce(server, second)
    assert set(server.statistics()) == {first.id, second.id}
    assert list(server.statistics(second.id, uuid.uuid4(), second.id)) == [second.id]
    assert list(first.statistics(server.id)) == [server.id]
    with pytest.raises(TypeError, match="statistics: the peer 'x' is a str"):
        server.statistics("x")  # type: ignore[arg-type]


def test_statistics_keep_the_last_links_security(communicators: Communicators, authority: Authority) -> None:
    server = communicators.server(security=authority.server())
    client = communicators.client(server.netloc, security=authority.client(IDS[0]))
    introduce(server, client)
    before = server.statistics()[IDS[0]].security
    communicators.abort(client)
    assert server.statistics()[IDS[0]].security == before


def test_a_plain_connection_has_no_security(communicators: Communicators) -> None:
    server, client = communicators.pair()
    introduce(server, client)
    assert server.statistics()[client.id].security is None
    assert client.statistics()[server.id].security is None


@tcp
def test_ml_dsa_certificates(communicators: Communicators, tmp_path: Path) -> None:
    authority = Authority(tmp_path, post_quantum=True)
    server = communicators.server(security=authority.server(post_quantum="require"))
    client = communicators.client(server.netloc, security=authority.client(IDS[0], post_quantum="require"))
    introduce(server, client)
    security = server.statistics()[IDS[0]].security
    assert security is not None
    assert (security.group, security.identity) == ("X25519MLKEM768", IDS[0])


@tcp
@pytest.mark.parametrize(("at_server", "at_client"), [("require", "off"), ("off", "require")])
def test_require_refuses_a_classical_peer(
    communicators: Communicators, authority: Authority, log: LogRecorder, at_server: str, at_client: str
) -> None:
    server = communicators.server(security=authority.server(post_quantum=at_server))
    client = communicators.client(server.netloc, security=authority.client(IDS[0], post_quantum=at_client), linger=0.0)
    future = client.put("never")
    line = log.wait("which is not post-quantum, and SecurityOptions.post_quantum is 'require'")
    assert ("a client exchanges keys with X25519" if at_server == "require" else "the server 127.0.0.1") in line
    log.wait("the connection was closed", 2)  # it has tried again
    assert server.statistics() == {}
    assert not future.done()
    assert client.close(LIMIT) == 1
    communicators.release(client)


@tcp
@pytest.mark.parametrize("post_quantum", ["off", "prefer"])
@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda authority, folder: authority.trusting(), "shows no certificate; give it SecurityOptions.key"),
        (lambda authority, folder: Authority(folder).client(IDS[0], authority=authority.path), "unable to get local"),
        (lambda authority, folder: authority._options(authority.issue([SERVER], urns=(IDS[0].urn,))), "clientAuth"),
    ],
    ids=["no certificate", "unknown authority", "a server's"],
)
def test_a_client_without_a_valid_certificate_is_refused(
    communicators: Communicators,
    authority: Authority,
    log: LogRecorder,
    tmp_path: Path,
    make: Callable[[Authority, Path], SecurityOptions],
    error: str,
    post_quantum: Any,
) -> None:
    server = communicators.server(security=authority.server(post_quantum=post_quantum))
    security = dataclasses.replace(make(authority, tmp_path), post_quantum=post_quantum)
    client = communicators.client(server.netloc, security=security, linger=0.0)
    client.put("never")
    assert "a client" in log.wait(error)
    log.wait("refused this side of the TLS connection")  # the client is told
    assert server.statistics() == {}
    assert client.close(LIMIT) == 1
    communicators.release(client)


def test_an_id_that_the_certificate_does_not_name_is_refused(
    communicators: Communicators, protocol: Protocol, authority: Authority, log: LogRecorder
) -> None:
    server = communicators.server(security=authority.server())
    with impostor(protocol, server, id=IDS[1], security=authority.client(IDS[0])) as client:
        client.put("never")
        log.wait(f"it claims the id {IDS[1]}, but its certificate is that of {IDS[0]}")
        log.wait("the peer refuses: it claims the id")
        assert server.statistics() == {}


def test_a_certificate_without_an_id_is_refused(
    communicators: Communicators, protocol: Protocol, authority: Authority, log: LogRecorder
) -> None:
    server = communicators.server(security=authority.server())
    with impostor(protocol, server, security=authority.client(None)) as client:
        client.put("never")
        log.wait("its certificate names no client")
        assert server.statistics() == {}


def test_a_client_certificate_without_an_id_cannot_be_used(protocol: Protocol, authority: Authority) -> None:
    two = authority._options(authority.issue([CLIENT], urns=tuple(id.urn for id in IDS)))
    for security in (authority.client(None), two):
        with pytest.raises(SecurityError, match=r"SecurityOptions\.certificate: .* names no client, or several"):
            make_client(protocol, security)


def test_files_renewed_on_the_disk_are_those_of_the_next_link(
    communicators: Communicators, authority: Authority, proxies: Callable[[NetworkLocation], Proxy]
) -> None:
    """Of the server and of the client, without a restart, and the session goes on."""
    of_server, of_client = authority.server(), authority.client(IDS[0])
    server = communicators.server(security=of_server)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, security=of_client)
    introduce(server, client)
    renewed = authority.client(IDS[0])
    assert renewed.certificate is not None
    serial = authority.serials[renewed.certificate]
    renew(of_server, authority.server())
    renew(of_client, renewed)
    proxy.cut()
    check_resumed(server, client, serial)


def test_half_of_a_renewal_leaves_the_old_files_in_force(
    communicators: Communicators,
    authority: Authority,
    proxies: Callable[[NetworkLocation], Proxy],
    log: LogRecorder,
) -> None:
    of_server, new = authority.server(), authority.server()
    server = communicators.server(security=of_server)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, security=authority.client(IDS[0]))
    introduce(server, client)
    renew(of_server, new, "key")
    for _ in range(2):
        proxy.cut()
        introduce(server, client)
    assert len(log.having("the files as they were before stay in force")) == 1


def test_a_renewed_certificate_resumes_its_own_session(
    communicators: Communicators, authority: Authority, proxies: Callable[[NetworkLocation], Proxy]
) -> None:
    """A process that is started again with another certificate of its id has a session of its own to resume."""
    server = communicators.server(security=authority.server())
    killed, proxy = proxies(server.netloc), proxies(server.netloc)
    first = communicators.client(killed.netloc, security=authority.client(IDS[0]), linger=0.0)
    introduce(server, first)
    killed.close()
    second = communicators.client(proxy.netloc, security=authority.client(IDS[0]))
    introduce(server, second)
    proxy.cut()
    introduce(server, second)


@pytest.mark.parametrize("moment", ["before", "while connected"])
def test_a_revoked_client_is_refused(
    communicators: Communicators,
    authority: Authority,
    log: LogRecorder,
    tmp_path: Path,
    moment: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "_REVOCATION_PERIOD", 0.05)
    good, bad = (authority.client(id) for id in IDS)
    assert bad.certificate is not None
    revoked, line = tmp_path / "revoked.txt", f"{authority.serials[bad.certificate]:x}  # a lost board\n"
    revoked.write_text("# serial numbers\n\n" + (line if moment == "before" else ""))
    server = communicators.server(security=authority.server(revoked=revoked))
    client = communicators.client(server.netloc, security=bad, linger=0.0)
    if moment == "while connected":
        introduce(server, client)
        other = tmp_path / "other"
        other.write_text(line)
        os.replace(other, revoked)
    else:
        client.put("never")
    log.wait(f"the peer refuses: the certificate of {IDS[1]}, serial number")
    with pytest.raises(Closed, match="is revoked") if moment == "while connected" else pytest.raises(TimeoutError):
        server.get(IDS[1], timeout=LIMIT if moment == "while connected" else 0.0)
    assert IDS[1] not in server.statistics()
    introduce(server, communicators.client(server.netloc, security=good))
    communicators.abort(client)


def test_a_damaged_list_of_revoked_certificates(
    communicators: Communicators,
    authority: Authority,
    log: LogRecorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "_REVOCATION_PERIOD", 0.05)
    revoked = tmp_path / "revoked.txt"
    with pytest.raises(SecurityError, match=r"SecurityOptions\.revoked: .*revoked\.txt: not readable: there is no"):
        communicators.server(security=authority.server(revoked=revoked))
    for text in ("12 34\n", "xyz\n", "1\n" + "f" * 41 + "\n", "-1\n"):
        revoked.write_text(text)
        with pytest.raises(SecurityError, match=r"revoked\.txt: line \d is no serial number; expected hexadecimal"):
            communicators.server(security=authority.server(revoked=revoked))
    security = authority.client(IDS[0])
    assert security.certificate is not None
    revoked.write_text(f"\ufeff{authority.serials[security.certificate]:x}", encoding="utf-8")  # as some editors begin
    server = communicators.server(security=authority.server(revoked=revoked))
    revoked.write_text("damaged")
    log.wait("the list as it was before stays in force")
    client = communicators.client(server.netloc, security=security, linger=0.0)
    client.put("never")
    log.wait("is revoked")
    assert len(log.having("stays in force", logging.WARNING)) == 1
    communicators.abort(client)


@pytest.mark.parametrize("missing", ["key", "certificate"])
def test_half_an_identity_cannot_be_used(protocol: Protocol, authority: Authority, missing: str) -> None:
    security = authority.client(IDS[0], **{missing: None})
    with pytest.raises(SecurityError, match=rf"SecurityOptions\.{missing}: None; a client has both a key and"):
        make_client(protocol, security)


def test_options_without_effect_are_refused(protocol: Protocol, authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "revoked.txt").touch()
    with pytest.raises(SecurityError, match=r"SecurityOptions\.revoked: .*only a server"):
        make_client(protocol, authority.client(IDS[0], revoked=tmp_path / "revoked.txt"))


def test_an_expired_certificate_of_ones_own(protocol: Protocol, authority: Authority) -> None:
    files = authority.issue([CLIENT], HOSTS, (IDS[0].urn,), days=-1)
    with pytest.raises(SecurityError, match=r"SecurityOptions\.certificate: .*pem: has expired on .*; make a new one"):
        make_client(protocol, authority._options(files))


def test_a_key_that_all_may_read(protocol: Protocol, authority: Authority) -> None:
    security = authority.client(IDS[0])
    assert security.key is not None
    security.key.chmod(0o644)
    for post_quantum in ("off", "prefer"):
        with pytest.raises(SecurityError, match=r"SecurityOptions\.key: .* may read it; run: chmod 600 /"):
            make_client(protocol, dataclasses.replace(security, post_quantum=post_quantum))


@pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
def test_grpc_takes_no_certificates_of_ml_dsa(protocol: Protocol, tmp_path: Path) -> None:
    authority = Authority(tmp_path, post_quantum=True)
    with pytest.raises(SecurityError, match=r"a certificate of MLDSA65; gRPC takes P-256, P-384 and RSA"):
        make_client(protocol, authority.client(IDS[0]))


@pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
def test_grpc_refuses_a_certificate_that_cannot_be_read(
    communicators: Communicators, authority: Authority, log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """grpc's parser accepts more than Python's. `cryptography` refuses the version that this one would have."""

    def unreadable(pem: bytes) -> Any:
        raise x509.InvalidVersion("9 is not a valid X509 version", 9)

    monkeypatch.setattr("cryptography.x509.load_pem_x509_certificate", unreadable)
    server = communicators.server(security=authority.server())
    client = communicators.client(server.netloc, security=authority.client(IDS[0]))
    client.put("later")
    log.wait("the certificate of a client is refused: it cannot be read: InvalidVersion")
    assert server.statistics() == {}
    monkeypatch.undo()
    assert server.get(timeout=LIMIT).data == "later"


@pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
@pytest.mark.parametrize("side", ["server", "client"])
def test_require_refuses_a_classical_peer_of_grpc(
    communicators: Communicators,
    protocol: Protocol,
    authority: Authority,
    log: LogRecorder,
    side: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """grpc cannot be made to use a classical group, so what it tells of the call is changed."""
    real = grpc_tls.protection

    def classical(context: Any) -> Any:
        found = real(context)
        return found._replace(security=found.security._replace(group="X25519"))

    monkeypatch.setattr("netq.grpc.server.protection", classical)
    post_quantum = {"server": "prefer", "client": "prefer", side: "require"}
    server = communicators.server(security=authority.server(post_quantum=post_quantum["server"]))
    security = authority.client(IDS[0], post_quantum=post_quantum["client"])
    client = communicators.client(server.netloc, security=security, linger=0.0)
    client.put("never")
    who = "a client" if side == "server" else "the server 127.0.0.1"
    log.wait(f"{who} exchanges keys with X25519, which is not post-quantum")
    assert server.statistics() == {}
    assert client.close(LIMIT) == 1
    communicators.release(client)


@pytest.mark.parametrize("post_quantum", ["off", "prefer"])
def test_a_link_ends_when_a_certificate_expires_and_the_session_goes_on(
    communicators: Communicators,
    authority: Authority,
    proxies: Callable[[NetworkLocation], Proxy],
    log: LogRecorder,
    post_quantum: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """netq's clock reads a later time in the handshake than TLS does, so that no validity is left."""
    server = communicators.server(security=authority.server(post_quantum=post_quantum), heartbeat=0.05)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, security=authority.client(IDS[0], post_quantum=post_quantum))
    introduce(server, client)
    with monkeypatch.context() as patch:
        at = time.time() + 10 * 86400
        patch.setattr(time, "time", lambda: at)
        proxy.cut()
        log.wait("lost (the client's certificate has expired; renew it")
    client.put("after").result(LIMIT)
    assert server.get(timeout=LIMIT) == (IDS[0], "after")


@tcp
def test_the_link_after_one_that_expired_is_valid(
    communicators: Communicators, authority: Authority, log: LogRecorder
) -> None:
    server = communicators.server(security=authority.server(), heartbeat=0.05)
    client = communicators.client(server.netloc, security=authority.client(IDS[0]))
    introduce(server, client)
    (peer,) = server._endpoint.peers.values()
    peer._link_valid_until = 0.0
    log.wait("lost (the client's certificate has expired; renew it")
    client.put("after").result(LIMIT)
    assert server.get(timeout=LIMIT) == (IDS[0], "after")
    assert len(log.having("lost (the client's certificate has expired")) == 1
