"""What is in the certificates of an authority, and who accepts them."""

from __future__ import annotations

import contextlib
import datetime
import runpy
import ssl
import sys
import uuid
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, mldsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store
from OpenSSL import SSL

from netq.errors import SecurityError
from netq.security import authority
from netq.security.authority import Algorithm, CertificateKind, Signed, new_authority, sign

ID = uuid.UUID("7f0c5e0a-6f0e-4c0e-9d6b-0d3c1f2a4b5c")
HOSTS = ["aggregator.local", "*.lab.example", "bücher.example", "10.0.0.7", "fe80::1"]
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def signer() -> Signed:
    return new_authority(Algorithm.P256)


def test_server_certificate(signer: Signed) -> None:
    signed = sign(signer, "server", ID, HOSTS, 3)
    extensions = signed.certificate.extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["aggregator.local", "*.lab.example", "xn--bcher-kva.example"]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("10.0.0.7"), ip_address("fe80::1")]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"urn:uuid:{ID}"]
    assert [*extensions.get_extension_for_class(x509.ExtendedKeyUsage).value] == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert signed.certificate.public_key() == signed.key.public_key() != signer.key.public_key()
    assert authority.kind_of(signed.certificate) is CertificateKind.SERVER
    assert authority.hosts_of(signed.certificate) == (*HOSTS[:2], "xn--bcher-kva.example", *HOSTS[3:])


def test_client_certificate(signer: Signed) -> None:
    certificate = sign(signer, "board", ID, [], 3).certificate
    extensions = certificate.extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [*names] == [x509.UniformResourceIdentifier(f"urn:uuid:{ID}")]
    assert [*extensions.get_extension_for_class(x509.ExtendedKeyUsage).value] == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert (authority.kind_of(certificate), authority.id_of(certificate)) == (CertificateKind.CLIENT, ID)
    assert authority.hosts_of(certificate) == ()


def test_authority_signs_no_further_authority(signer: Signed) -> None:
    constraints = signer.certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    assert authority.kind_of(signer.certificate) is CertificateKind.AUTHORITY


def test_each_authority_has_its_own_name(signer: Signed) -> None:
    assert new_authority(Algorithm.P256).certificate.subject != signer.certificate.subject


def test_validity(signer: Signed) -> None:
    now = datetime.datetime.now(datetime.UTC)
    for certificate, days in ((signer.certificate, 3650), (sign(signer, "board", ID, [], 3).certificate, 3)):
        assert now - certificate.not_valid_before_utc > 0.9 * DAY  # for slow clocks
        assert abs(certificate.not_valid_after_utc - now - days * DAY) < datetime.timedelta(minutes=5)


def test_no_certificate_outlives_its_authority(signer: Signed) -> None:
    certificate = sign(signer, "board", ID, [], 3650).certificate
    assert certificate.not_valid_after_utc == signer.certificate.not_valid_after_utc


@pytest.mark.parametrize("days", [0, -1, 3651])
def test_days_out_of_range(signer: Signed, days: int) -> None:
    with pytest.raises(SecurityError, match=f"a certificate of {days} days; expected 1 to 3650, the days left"):
        sign(signer, "board", ID, [], days)


def test_expired_authority_signs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority, "MAX_DAYS", -0.5)
    expired = new_authority(Algorithm.P256)
    with pytest.raises(SecurityError, match=r"the authority has expired on .*; make a new one"):
        sign(expired, "board", ID, [], 1)


@pytest.mark.parametrize("host", ["", "https://aggregator", "aggregator:5000", "a b", "a..b", "a" * 64, "10.0.0.0/8"])
def test_invalid_hosts(signer: Signed, host: str) -> None:
    with pytest.raises(SecurityError, match="neither a DNS name nor an IP address"):
        sign(signer, "server", ID, ["localhost", host], 1)


@pytest.mark.parametrize(
    ("algorithm", "key"), [("p256", ec.EllipticCurvePrivateKey), ("ml-dsa-65", mldsa.MLDSA65PrivateKey)]
)
def test_all_keys_have_the_algorithm_of_the_authority(algorithm: str, key: type) -> None:
    signer = new_authority(Algorithm(algorithm))
    for signed in (signer, sign(signer, "server", ID, ["a.local"], 1), sign(signer, "board", ID, [], 1)):
        assert isinstance(signed.key, key)
        assert authority.algorithm_of(signed.certificate) == algorithm
        assert authority.is_signed_by(signed.certificate, signer.certificate)
        assert authority.parse(signed.certificate_pem()) == signed.certificate
        assert authority.parse_key(signed.key_pem()).public_key() == signed.key.public_key()


def test_another_authority_has_not_signed_it(signer: Signed) -> None:
    other = new_authority(Algorithm.P256)
    imposter = Signed(signer.certificate, other.key)  # the right name, and the wrong key
    certificate = sign(imposter, "board", ID, [], 1).certificate
    assert not authority.is_signed_by(certificate, signer.certificate)
    assert not authority.is_signed_by(certificate, other.certificate)


def test_strict_verification_by_cryptography(signer: Signed) -> None:
    policy = PolicyBuilder().store(Store([signer.certificate]))
    server = sign(signer, "server", ID, ["localhost", "::1"], 1).certificate
    for name in (x509.DNSName("localhost"), x509.IPAddress(ip_address("::1"))):
        assert len(policy.build_server_verifier(name).verify(server, [])) == 2
    client = sign(signer, "board", ID, [], 1).certificate
    assert policy.build_client_verifier().verify(client, []).subjects == [x509.UniformResourceIdentifier(ID.urn)]


def write(folder: Path, signer: Signed, **sides: Signed) -> None:
    (folder / "authority.pem").write_bytes(signer.certificate_pem())
    for name, signed in sides.items():
        (folder / f"{name}.pem").write_bytes(signed.certificate_pem())
        (folder / f"{name}-key.pem").write_bytes(signed.key_pem())


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_strict_mutual_tls_by_the_standard_library(tmp_path: Path, signer: Signed, host: str) -> None:
    write(tmp_path, signer, server=sign(signer, "server", ID, [host], 1), board=sign(signer, "board", ID, [], 1))
    contexts = []
    for side, protocol in (("server", ssl.PROTOCOL_TLS_SERVER), ("board", ssl.PROTOCOL_TLS_CLIENT)):
        context = ssl.SSLContext(protocol)
        context.load_cert_chain(tmp_path / f"{side}.pem", tmp_path / f"{side}-key.pem")
        context.load_verify_locations(tmp_path / "authority.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
        contexts.append(context)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = contexts[0].wrap_bio(up, down, server_side=True)
    client = contexts[1].wrap_bio(down, up, server_hostname=host)
    for tls in (client, server):
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
    client.do_handshake()
    server.do_handshake()
    shown = server.getpeercert()
    assert shown is not None
    assert shown["subjectAltName"] == (("URI", ID.urn),)


def test_mutual_tls_with_ml_dsa_by_pyopenssl(tmp_path: Path) -> None:
    signer = new_authority(Algorithm.ML_DSA_65)
    write(tmp_path, signer, server=sign(signer, "server", ID, ["localhost"], 1), board=sign(signer, "board", ID, [], 1))
    sides = []
    for side, method in (("server", SSL.TLS_SERVER_METHOD), ("board", SSL.TLS_CLIENT_METHOD)):
        context = SSL.Context(method)
        context.use_certificate_chain_file(str(tmp_path / f"{side}.pem"))
        context.use_privatekey_file(str(tmp_path / f"{side}-key.pem"))
        context.load_verify_locations(str(tmp_path / "authority.pem"))
        context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT)
        sides.append(SSL.Connection(context))
    server, client = sides
    server.set_accept_state()
    client.set_connect_state()
    for one, other in [(client, server), (server, client), (client, server)]:
        with contextlib.suppress(SSL.WantReadError):
            one.do_handshake()
        other.bio_write(one.bio_read(2**17))
    server.do_handshake()
    shown = server.get_peer_certificate(as_cryptography=True)
    assert shown is not None
    assert authority.id_of(shown) == ID


@pytest.mark.parametrize("pem", [b"", b"nothing", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_file_without_a_certificate(pem: bytes) -> None:
    with pytest.raises(SecurityError, match="no certificate in PEM"):
        authority.parse(pem)


def test_file_without_a_usable_key(signer: Signed) -> None:
    other = ed25519.Ed25519PrivateKey.generate()
    locked = BestAvailableEncryption(b"secret")
    for pem, why in [
        (signer.certificate_pem(), "no private key in PEM"),
        (signer.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked), "without a password"),
        (other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), "a key of Ed25519PrivateKey"),
    ]:
        with pytest.raises(SecurityError, match=why):
            authority.parse_key(pem)


def test_certificate_of_another_authority_without_extensions(signer: Signed) -> None:
    name = x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    key = ed25519.Ed25519PrivateKey.generate()
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + DAY)
    certificate = builder.sign(key, None)
    assert (authority.kind_of(certificate), authority.id_of(certificate)) == (CertificateKind.CLIENT, None)
    assert (authority.hosts_of(certificate), authority.algorithm_of(certificate)) == ((), None)
    assert not authority.is_signed_by(certificate, signer.certificate)


def test_openssl_without_ml_dsa_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def generate() -> None:
        raise UnsupportedAlgorithm("ML-DSA")

    monkeypatch.setattr(mldsa, "MLDSA65PrivateKey", type("", (), {"generate": generate}))
    with pytest.raises(SecurityError, match=r"ml-dsa-65: the OpenSSL of this cryptography does not have it; .* p256"):
        new_authority(Algorithm.ML_DSA_65)


def test_without_cryptography(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ImportError, match=r"pip install 'netq-fl\[security\]'"):
        runpy.run_path(authority.__file__)
