"""Both sides must agree on TLS, and on whom to trust; the client's log says what is wrong, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from netq import CommunicatorOptions, NetworkLocation, Protocol, Purpose, SecurityError, SecurityOptions, new
from netq.security import certificates
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from tests.servers import ports

AGAIN = 4  # attempts


def of_server(files: certificates.Files) -> SecurityOptions:
    return SecurityOptions(files.key, files.certificate)


def of_client(files: certificates.Files) -> SecurityOptions:
    return SecurityOptions(certificate=files.authority)


def trouble(
    communicators: Communicators,
    log: LogRecorder,
    server: SecurityOptions | None,
    client: SecurityOptions | None,
    host: str = "127.0.0.1",
) -> str:
    """Return what the client's log says; nothing is delivered, it is said once, and one who does it right is served."""
    listener = communicators.server(security=server)
    wrong = communicators.client(NetworkLocation(host, listener.netloc.port), security=client, linger=0.0)
    future = wrong.put("never")
    line = log.wait("trying again")
    while wrong._endpoint.reconnector.attempt < AGAIN:
        with pytest.raises(TimeoutError):
            wrong.get(timeout=0.01)
    assert len(log.having("trying again")) == 1
    assert not future.done()
    assert listener.statistics() == {}
    assert wrong.close(LIMIT) == 1
    communicators.release(wrong)
    return line


def test_tls_at_the_client_alone(communicators: Communicators, files: certificates.Files, log: LogRecorder) -> None:
    assert "is not TLS; set SecurityOptions on both sides, or on neither" in trouble(
        communicators, log, None, of_client(files)
    )


def test_tls_at_the_server_alone(communicators: Communicators, files: certificates.Files, log: LogRecorder) -> None:
    assert "SecurityOptions on both or on neither?" in trouble(communicators, log, of_server(files), None)


def test_untrusted_server_is_refused(
    communicators: Communicators, files: certificates.Files, log: LogRecorder, tmp_path: Path
) -> None:
    line = trouble(communicators, log, of_server(files), of_client(certificates.init(tmp_path)))
    assert "the certificate of the server 127.0.0.1 is refused: " in line
    assert "SecurityOptions.certificate" in line


def test_system_authorities_do_not_trust_a_private_server(
    communicators: Communicators, files: certificates.Files, log: LogRecorder
) -> None:
    assert "is refused: " in trouble(communicators, log, of_server(files), SecurityOptions())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_certificate_for_another_name_is_refused(
    communicators: Communicators, log: LogRecorder, tmp_path: Path, host: str
) -> None:
    elsewhere = certificates.init(tmp_path, hosts=["elsewhere.example"])
    line = trouble(communicators, log, of_server(elsewhere), of_client(elsewhere), host)
    assert f"the certificate of the server {host} is refused: it is for another name" in line


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_trusted_server_is_accepted(communicators: Communicators, files: certificates.Files, host: str) -> None:
    server = communicators.server(NetworkLocation(host, 0), security=of_server(files))
    introduce(server, communicators.client(server.netloc, security=of_client(files)))


def test_own_certificate_of_the_server_can_be_trusted(communicators: Communicators, files: certificates.Files) -> None:
    server = communicators.server(security=of_server(files))
    introduce(server, communicators.client(server.netloc, security=SecurityOptions(certificate=files.certificate)))


def test_unusable_keys_raise_and_leave_nothing_open(files: certificates.Files, tmp_path: Path) -> None:
    """The fixture sees the descriptors."""
    bad = tmp_path / "bad.pem"
    bad.write_text("no key")
    other = certificates.init(tmp_path / "other")
    here = ports.free()
    for purpose, security, text in (
        (Purpose.SERVER, SecurityOptions(bad, bad), r"bad\.pem"),
        (Purpose.SERVER, SecurityOptions(other.key, files.certificate), "not the key of the certificate"),
        (Purpose.CLIENT, SecurityOptions(certificate=bad), r"bad\.pem"),
        (Purpose.CLIENT, of_server(files), "a client with a key of its own needs `authority`"),
    ):
        with pytest.raises(SecurityError, match=text):
            new(Protocol.GRPC, purpose, CommunicatorOptions(netloc=here, security=security, workers=2))
