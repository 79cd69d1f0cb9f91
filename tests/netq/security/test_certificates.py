from __future__ import annotations

import datetime
import os
import runpy
import ssl
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store

from netq.errors import SecurityError
from netq.security import certificates
from netq.security.certificates import Files, make


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def load(path: Path) -> x509.Certificate:
    (certificate,) = x509.load_pem_x509_certificates(path.read_bytes())
    return certificate


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_three_files_without_the_key_of_the_authority(tmp_path: Path) -> None:
    files = make(tmp_path / "new" / "directory")
    assert files == Files(*(tmp_path / "new" / "directory" / name for name in NAMES))
    assert sorted(files.key.parent.iterdir()) == sorted(files)
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp256r1"
    assert key.public_key() == load(files.certificate).public_key()
    assert key.public_key() != load(files.authority).public_key()


NAMES = ("authority.pem", "server-key.pem", "server.pem")


def test_only_the_owner_can_read_the_key(tmp_path: Path, no_umask: None) -> None:
    files = make(tmp_path)
    assert mode(files.key) == 0o600
    assert mode(files.certificate) == mode(files.authority) == 0o644


def test_only_the_owner_can_read_the_key_from_the_first_byte(tmp_path: Path, no_umask: None) -> None:
    with pytest.raises(TypeError):  # after a failed write, the file is as it was created
        certificates._write(tmp_path / "key.pem", "no bytes", 0o600)  # type: ignore[arg-type]
    assert mode(tmp_path / "key.pem") == 0o600


def test_extensions(tmp_path: Path) -> None:
    files = make(tmp_path, hosts=["aggregator.local", "*.lab.example", "bücher.example", "10.0.0.7", "fe80::1"])
    authority, server = load(files.authority).extensions, load(files.certificate).extensions
    names = server.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["aggregator.local", "*.lab.example", "xn--bcher-kva.example"]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("10.0.0.7"), ip_address("fe80::1")]
    assert list(server.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert not server.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    constraints = authority.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)


def test_validity(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    files = make(tmp_path, days=3)
    for certificate in (load(files.authority), load(files.certificate)):
        assert now - certificate.not_valid_before_utc > datetime.timedelta(hours=23)  # for slow clocks
        assert abs(certificate.not_valid_after_utc - now - datetime.timedelta(days=3)) < datetime.timedelta(minutes=5)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_strict_verification_by_openssl(tmp_path: Path, host: str) -> None:
    files = make(tmp_path)
    ours, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ours.load_cert_chain(files.certificate, files.key)
    theirs.load_verify_locations(files.authority)
    theirs.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server, client = ours.wrap_bio(up, down, server_side=True), theirs.wrap_bio(down, up, server_hostname=host)
    for side in (client, server):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    client.do_handshake()
    server.do_handshake()


def test_strict_verification_by_cryptography(tmp_path: Path) -> None:
    files = make(tmp_path)
    policy = PolicyBuilder().store(Store([load(files.authority)]))
    for name in (x509.DNSName("localhost"), x509.IPAddress(ip_address("::1"))):
        chain = policy.build_server_verifier(name).verify(load(files.certificate), [])
        assert len(chain) == 2


@pytest.mark.parametrize("name", NAMES)
def test_existing_files_are_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(SecurityError, match=f"{name} exists and is left as it is; .*overwrite=True"):
        make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"


def test_overwrite_replaces_the_files(tmp_path: Path, no_umask: None) -> None:
    (tmp_path / "server-key.pem").write_text("an old one that all could read")
    first = make(tmp_path, overwrite=True)
    assert mode(first.key) == 0o600
    before = [path.read_bytes() for path in first]
    assert make(tmp_path, overwrite=True) == first
    assert all(path.read_bytes() != old for path, old in zip(first, before, strict=True))


def test_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "server-key.pem").symlink_to(tmp_path / "theirs.pem")
    with pytest.raises(SecurityError, match="exists"):
        make(tmp_path / "here")
    files = make(tmp_path / "here", overwrite=True)
    assert not files.key.is_symlink()
    assert not (tmp_path / "theirs.pem").exists()


def test_file_created_during_the_check_is_kept(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("theirs")
    with pytest.raises(FileExistsError):
        certificates._write(tmp_path / "key.pem", b"ours", 0o600)
    assert (tmp_path / "key.pem").read_text() == "theirs"


def test_each_authority_has_its_own_name(tmp_path: Path) -> None:
    first, second = (load(make(tmp_path / name).authority) for name in "ab")
    assert first.subject != second.subject


@pytest.mark.parametrize("host", ["", "https://aggregator", "aggregator:5000", "a b", "a..b", "a" * 64, "10.0.0.0/8"])
def test_invalid_hosts(tmp_path: Path, host: str) -> None:
    with pytest.raises(SecurityError, match="neither a DNS name nor an IP address"):
        make(tmp_path, hosts=["localhost", host])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("hosts", [[], "localhost"])
def test_hosts_that_are_no_list_are_refused(tmp_path: Path, hosts: list[str]) -> None:
    with pytest.raises(SecurityError, match="expected a list of names and addresses"):
        make(tmp_path, hosts=hosts)


@pytest.mark.parametrize("days", [0, -1, 10_001])
def test_days_out_of_range(tmp_path: Path, days: int) -> None:
    with pytest.raises(SecurityError, match=f"a certificate of {days} days; expected 1 to 10000"):
        make(tmp_path, days=days)


def test_without_cryptography(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ImportError, match=r"pip install cryptography"):
        runpy.run_path(certificates.__file__)
