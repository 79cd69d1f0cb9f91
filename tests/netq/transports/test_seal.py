"""Seals between a server and its clients: who they are, who is refused, and what both ends are told."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import netq
from netq import (
    Closed,
    CommunicatorOptions,
    ConnectionOptions,
    InvalidOption,
    NetworkLocation,
    Protocol,
    Purpose,
    SealOptions,
    SecurityError,
)
from netq.core import Communicator
from netq.runtime import endpoint
from netq.security import seal
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.netq.authority import CLIENT, Authority, check_resumed, renew
from tests.netq.makers import plain
from tests.netq.security.test_keys import issue, new_key

IDS = [uuid.uuid4() for _ in range(3)]


@pytest.fixture
def communicators(proxies: Callable[[NetworkLocation], Proxy]) -> Iterator[Communicators]:
    """On TCP: the layer is the same on all transports. tests/netq/test_conformance.py has others."""
    with Communicators(plain(Protocol.TCP)) as communicators:
        yield communicators


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(communicators: Communicators, authority: Authority) -> Communicator:
    return communicators.server(seal=authority.seal(Purpose.SERVER, IDS[2]))


def refused(communicators: Communicators, server: Communicator, **options: Any) -> Communicator:
    """A client that the test expects to be refused: it has a message, and gives up when it is closed."""
    client = communicators.client(server.netloc, linger=0.0, **options)
    client.put("never")
    return client


def end(communicators: Communicators, server: Communicator, client: Communicator) -> None:
    assert server.statistics() == {}
    assert client.close(LIMIT) == 1
    communicators.release(client)


@pytest.mark.parametrize("post_quantum", [False, True], ids=["P-256", "ML-DSA-65"])
@pytest.mark.parametrize("slow", [None, "server", "client"])
def test_both_ends_report_the_seal(
    communicators: Communicators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, post_quantum: bool, slow: str | None
) -> None:
    """ChaCha20 is used if one of the two processors has no instructions for AES."""
    authority = Authority(tmp_path, post_quantum=post_quantum)
    monkeypatch.setattr(seal, "has_aes", lambda: slow != "server")
    server = communicators.server(seal=authority.seal(Purpose.SERVER, IDS[1]))
    monkeypatch.setattr(seal, "has_aes", lambda: slow != "client")
    client = communicators.client(server.netloc, seal=authority.seal(Purpose.CLIENT, IDS[0]))
    introduce(server, client)
    assert client.id == IDS[0]
    (at_server,), (at_client,) = server.statistics().values(), client.statistics().values()
    cipher = "AES_256_GCM" if slow is None else "CHACHA20_POLY1305"
    for seal_, id in ((at_server.seal, IDS[0]), (at_client.seal, IDS[1])):
        assert seal_ is not None
        assert seal_[:5] == ("1", cipher, "MLKEM768_X25519", id, "a peer")
        assert seal_.not_after is not None
    assert at_server.security is None
    server.put(bytes(10**6)).result(LIMIT)
    assert client.get(timeout=LIMIT).data == bytes(10**6)
    communicators.abort(client)
    assert server.statistics()[IDS[0]].seal == at_server.seal, "of the last link"


def test_without_seals_there_is_none(communicators: Communicators) -> None:
    server, client = communicators.pair()
    assert server.statistics()[client.id].seal is None


def test_seals_under_tls_name_one_client(communicators: Communicators, authority: Authority, log: LogRecorder) -> None:
    server = communicators.server(security=authority.server(), seal=authority.seal(Purpose.SERVER, None))
    client = communicators.client(
        server.netloc, security=authority.client(IDS[0]), seal=authority.seal(Purpose.CLIENT, IDS[0])
    )
    introduce(server, client)
    (figures,) = server.statistics().values()
    assert figures.seal is not None
    assert figures.security is not None
    assert figures.seal.identity == figures.security.identity == IDS[0]
    other = refused(
        communicators, server, security=authority.client(IDS[1]), seal=authority.seal(Purpose.CLIENT, IDS[2])
    )
    log.wait(f"it claims the id {IDS[2]}, but its certificate is that of {IDS[1]}")
    assert set(server.statistics()) == {IDS[0]}
    communicators.abort(other)


@pytest.mark.parametrize("sealed_server", [True, False])
def test_one_side_without_seals_is_told_at_both_ends(
    communicators: Communicators, authority: Authority, log: LogRecorder, sealed_server: bool
) -> None:
    server = communicators.server(seal=authority.seal(Purpose.SERVER, None) if sealed_server else None)
    client = refused(communicators, server, seal=None if sealed_server else authority.seal(Purpose.CLIENT, IDS[0]))
    for text in ("the peer does not seal what it sends", "the peer seals what it sends"):
        assert "give SealOptions" in log.wait(text)
    end(communicators, server, client)


Wrong = Callable[[Authority, Authority], SealOptions]
WRONG: dict[str, tuple[Wrong, str, str]] = {  # what a client has, and what the server and the client say
    "another authority": (
        lambda authority, other: other.seal(Purpose.CLIENT, IDS[0], authority=authority.path),
        "the certificate of the client is refused: unable to get local issuer certificate",
        "before it has proved who it is: the certificate of the client is refused",
    ),
    "another trust": (
        lambda authority, other: authority.seal(Purpose.CLIENT, IDS[0], authority=other.path),
        "before it has proved who it is: the certificate of the server is refused",
        "the certificate of the server is refused: unable to get local issuer certificate",
    ),
    "a server's certificate": (
        lambda authority, other: authority.seal(Purpose.SERVER, IDS[0]),
        "the peer's certificate is not one of a client",
        "before it has proved who it is: the peer's certificate is not one of a client",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_certificates_are_refused_and_both_ends_say_why(
    communicators: Communicators,
    authority: Authority,
    server: Communicator,
    log: LogRecorder,
    tmp_path: Path,
    case: str,
) -> None:
    make, *texts = WRONG[case]
    client = refused(communicators, server, seal=make(authority, Authority(tmp_path)))
    for text in texts:
        log.wait(text)
    end(communicators, server, client)


def test_client_refuses_a_server_with_a_clients_certificate(
    communicators: Communicators, authority: Authority, log: LogRecorder
) -> None:
    """One client cannot play the server for the others."""
    server = communicators.server(seal=authority.seal(Purpose.CLIENT, IDS[1]))
    client = refused(communicators, server, seal=authority.seal(Purpose.CLIENT, IDS[0]))
    log.wait("the peer's certificate is not one of a server; expected the extended key usage serverAuth")
    end(communicators, server, client)


def test_id_that_the_certificate_does_not_name_is_refused(
    communicators: Communicators,
    authority: Authority,
    server: Communicator,
    log: LogRecorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("netq.core.sealed_id", lambda options: IDS[1])
    impostor = refused(communicators, server, seal=authority.seal(Purpose.CLIENT, IDS[0]))
    log.wait(f"the peer refuses: it claims the id {IDS[1]}, but its certificate is that of {IDS[0]}")
    nameless = refused(communicators, server, seal=authority.seal(Purpose.CLIENT, None))
    log.wait("the peer refuses: its certificate names no client")
    communicators.abort(nameless)
    end(communicators, server, impostor)


def test_files_renewed_on_the_disk_are_those_of_the_next_link(
    communicators: Communicators,
    authority: Authority,
    server: Communicator,
    proxies: Callable[[NetworkLocation], Proxy],
) -> None:
    proxy = proxies(server.netloc)
    old, new = (authority.seal(Purpose.CLIENT, IDS[0]) for _ in range(2))
    client = communicators.client(proxy.netloc, seal=old)
    introduce(server, client)
    serial = authority.serials[new.certificate]
    renew(old, new)
    proxy.cut()
    check_resumed(server, client, serial)


def test_a_link_ends_when_a_certificate_expires_and_the_session_goes_on(
    communicators: Communicators,
    authority: Authority,
    proxies: Callable[[NetworkLocation], Proxy],
    log: LogRecorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """netq's clock reads a later time in the handshake than OpenSSL's does, so that no validity is left."""
    server = communicators.server(seal=authority.seal(Purpose.SERVER, IDS[2]), heartbeat=0.05)
    proxy = proxies(server.netloc)
    client = communicators.client(proxy.netloc, seal=authority.seal(Purpose.CLIENT, IDS[0]))
    introduce(server, client)
    with monkeypatch.context() as patch:
        at = time.time() + 10 * 86400
        patch.setattr(time, "time", lambda: at)
        proxy.cut()
        log.wait("lost (the client's certificate has expired; renew it")
    client.put("after").result(LIMIT)
    assert server.get(timeout=LIMIT) == (IDS[0], "after")


def test_renewed_certificate_takes_over_and_resumes(
    communicators: Communicators,
    authority: Authority,
    server: Communicator,
    proxies: Callable[[NetworkLocation], Proxy],
    log: LogRecorder,
) -> None:
    before, after = proxies(server.netloc), proxies(server.netloc)
    client = communicators.client(before.netloc, seal=authority.seal(Purpose.CLIENT, IDS[0]), linger=0.0)
    introduce(server, client)
    before.refusing = True
    before.cut()
    restarted = communicators.client(after.netloc, seal=authority.seal(Purpose.CLIENT, IDS[0]))
    introduce(server, restarted)
    after.cut()
    restarted.put("resumed").result(LIMIT)
    assert server.get(timeout=0).data == "resumed"
    assert server.statistics()[IDS[0]].messages_in == 2, "the same session"
    assert not log.having("another certificate")
    communicators.abort(client)


@pytest.mark.parametrize("connected", [False, True])
def test_revoked_client_is_refused(
    communicators: Communicators,
    authority: Authority,
    log: LogRecorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    connected: bool,
) -> None:
    monkeypatch.setattr(endpoint, "_REVOCATION_PERIOD", 0.05)
    bad, revoked = authority.seal(Purpose.CLIENT, IDS[0]), tmp_path / "revoked.txt"
    line = f"{authority.serials[bad.certificate]:x}\n"
    revoked.write_text("" if connected else line)
    server = communicators.server(seal=authority.seal(Purpose.SERVER, None, revoked=revoked))
    client = communicators.client(server.netloc, seal=bad, linger=0.0)
    if connected:
        introduce(server, client)
        (tmp_path / "new.txt").write_text(line)
        (tmp_path / "new.txt").replace(revoked)
        with pytest.raises(Closed, match="is revoked"):
            server.get(IDS[0], timeout=LIMIT)
    log.wait(f"the peer refuses: the certificate of {IDS[0]}, serial number")
    introduce(server, communicators.client(server.netloc, seal=authority.seal(Purpose.CLIENT, IDS[1])))
    assert set(server.statistics()) == {IDS[1]}
    communicators.abort(client)


# Files and options that cannot be used.


def make(options: SealOptions, protocol: Protocol = Protocol.TCP, **more: Any) -> None:
    netq.new(protocol, Purpose.CLIENT, CommunicatorOptions(seal=options, **more)).close(0)


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    good = authority.seal(Purpose.CLIENT, IDS[0])
    other = authority.seal(Purpose.CLIENT, IDS[1])
    missing, no_pem = tmp_path / "missing.pem", tmp_path / "text.pem"
    no_pem.write_text("text")
    open_key = tmp_path / "open.pem"
    open_key.write_bytes(good.key.read_bytes())
    open_key.chmod(0o644)
    key, expired = authority.issue([CLIENT], urns=(IDS[0].urn,), days=-1)
    nameless = authority.seal(Purpose.CLIENT, None)
    for changes, text in [
        ({"key": missing}, f"SealOptions.key: {missing}: not readable: No such file"),
        ({"certificate": missing}, f"SealOptions.certificate: {missing}: not readable: No such file"),
        ({"authority": missing}, f"SealOptions.authority: {missing}: not readable: No such file"),
        ({"key": no_pem}, f"SealOptions.key: {no_pem}: no private key in PEM"),
        ({"authority": no_pem}, f"SealOptions.authority: {no_pem}: no certificate in PEM"),
        ({"key": other.key}, f"SealOptions.key: {other.key}: not the key of the certificate {good.certificate}"),
        ({"key": open_key}, f"SealOptions.key: {open_key}: all users of this machine may read it; run: chmod 600"),
        ({"key": key, "certificate": expired}, f"SealOptions.certificate: {expired}: has expired on "),
        ({"key": nameless.key, "certificate": nameless.certificate}, "names no client, or several; expected one"),
    ]:
        fields = {"key": good.key, "certificate": good.certificate, "authority": good.authority, **changes}
        with pytest.raises(SecurityError) as raised:
            make(SealOptions(**fields))
        assert text in str(raised.value)
        assert "\n" not in str(raised.value)
    revoked = authority.seal(Purpose.SERVER, None, revoked=missing)
    with pytest.raises(SecurityError, match=r"SealOptions\.revoked: .* not readable"):
        netq.new(
            Protocol.TCP, Purpose.SERVER, CommunicatorOptions(netloc=netq.NetworkLocation(port=0), seal=revoked)
        ).close(0)


def test_rsa_key_is_named(authority: Authority, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    root, key = issue(new_key(), "root", None, ca=True), rsa.generate_private_key(65537, 2048)
    client = root.issue("client", key=key, usages=(CLIENT,))
    key_path, path = tmp_path / "rsa-key.pem", tmp_path / "rsa.pem"
    plain = serialization.NoEncryption()
    key_path.touch(0o600)
    key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    path.write_bytes(client.certificate.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(
        SecurityError, match=r"SealOptions\.key: .*rsa-key\.pem: a key of the type RSAPrivateKey; expected"
    ):
        make(SealOptions(key_path, path, authority.path))


def test_shared_memory_takes_no_seals(authority: Authority) -> None:
    with pytest.raises(InvalidOption, match=r"CommunicatorOptions\.seal: shared memory takes none"):
        make(authority.seal(Purpose.CLIENT, IDS[0]), Protocol.SHM)


def test_seals_join_small_buffers(authority: Authority) -> None:
    with pytest.raises(InvalidOption, match=r"put_merge: False; sealing joins small buffers"):
        make(authority.seal(Purpose.CLIENT, IDS[0]), connection=ConnectionOptions(put_merge=False))


@pytest.mark.slow
def test_without_the_extra_the_constructor_says_so(authority: Authority) -> None:
    options = authority.seal(Purpose.CLIENT, IDS[0])
    program = (
        "import sys\n"
        "import netq\n"
        "assert not {'cryptography', 'OpenSSL', 'service_identity'} & set(sys.modules)\n"
        "sys.modules['OpenSSL'] = None\n"
        f"seal = netq.SealOptions({str(options.key)!r}, {str(options.certificate)!r}, {str(options.authority)!r})\n"
        "try:\n"
        "    netq.new(options=netq.CommunicatorOptions(seal=seal))\n"
        "except netq.SecurityError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("CommunicatorOptions.seal: import of OpenSSL halted")
    assert done.stdout.endswith("sealing needs the extra `security`: pip install 'netq-fl[security]'\n")
