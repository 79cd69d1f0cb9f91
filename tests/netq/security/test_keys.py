"""Which certificates prove a peer, and which do not."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, mldsa, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from netq.errors import SecurityError
from netq.security import keys

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
KEYS: dict[str, Callable[[], Any]] = {
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
    "ML-DSA-44": mldsa.MLDSA44PrivateKey.generate,
    "ML-DSA-65": mldsa.MLDSA65PrivateKey.generate,
    "ML-DSA-87": mldsa.MLDSA87PrivateKey.generate,
}
NOW = datetime.datetime.now(datetime.UTC)
ID = uuid.UUID(int=7)


def new_key() -> Any:
    return KEYS["P-256"]()


class Issuer:
    """A certificate with its key, which may sign others."""

    def __init__(self, key: Any, certificate: x509.Certificate) -> None:
        self.key = key
        self.certificate = certificate

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    def trust(self, folder: Path, *, of_servers: bool = False) -> keys.Authority:
        """Return what verifies chains up to this certificate."""
        path = folder / "authority.pem"
        path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return keys.Authority("SealOptions.authority", path, of_servers=of_servers)

    def issue(
        self,
        name: str,
        *,
        ca: bool = False,
        usages: tuple[x509.ObjectIdentifier, ...] = (),
        days: tuple[int, int] = (-1, 1),
        signs: bool = True,
        key: Any = None,
    ) -> Issuer:
        return issue(key or new_key(), name, self, ca=ca, usages=usages, days=days, signs=signs)


def issue(
    key: Any,
    name: str,
    issuer: Issuer | None,
    *,
    ca: bool = False,
    usages: tuple[x509.ObjectIdentifier, ...] = (),
    days: tuple[int, int] = (-1, 1),
    signs: bool = True,
) -> Issuer:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer = key if issuer is None else issuer.key
    builder = x509.CertificateBuilder(
        issuer_name=subject if issuer is None else issuer.certificate.subject,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=NOW + datetime.timedelta(days[0]),
        not_valid_after=NOW + datetime.timedelta(days[1]),
    ).add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    usage = dict.fromkeys(["content_commitment", "key_encipherment", "data_encipherment", "encipher_only"], False)
    usage |= {
        "decipher_only": False,
        "key_agreement": not ca,
        "key_cert_sign": ca,
        "crl_sign": ca,
        "digital_signature": signs and not ca,
    }
    builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(ID.urn)])
    builder = builder if ca else builder.add_extension(names, critical=False)
    hash = hashes.SHA256() if isinstance(signer, ec.EllipticCurvePrivateKey) else None
    return Issuer(key, builder.sign(signer, hash))


@pytest.fixture
def root() -> Issuer:
    return issue(new_key(), "root", None, ca=True)


@pytest.mark.parametrize("kind", KEYS)
def test_each_kind_of_key_signs_and_verifies(tmp_path: Path, kind: str) -> None:
    authority = issue(KEYS[kind](), "root", None, ca=True)
    client = authority.issue("client", usages=(CLIENT,), key=KEYS[kind]())
    shown = authority.trust(tmp_path).verify([client.der])
    assert shown.certificate.identity == ID
    assert shown.certificate.serial == client.certificate.serial_number
    signature = keys.signer("key.pem", client.key)(b"data")
    shown.verify(signature, b"data")
    for wrong, data in ((signature, b"other data"), (signature[:-1], b"data"), (b"", b"data")):
        with pytest.raises(SecurityError, match="does not hold the key of its certificate"):
            shown.verify(wrong, data)


def test_rsa_keys_are_refused(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    with pytest.raises(SecurityError, match=r"key\.pem: a key of the type RSAPrivateKey; expected P-256"):
        keys.signer("SealOptions.key: key.pem", key)
    authority = issue(new_key(), "root", None, ca=True)
    client = authority.issue("client", usages=(CLIENT,), key=key)
    with pytest.raises(SecurityError, match="a key of the type RSAPublicKey; expected P-256"):
        authority.trust(tmp_path).verify([client.der]).verify(b"", b"")


def test_chain_over_an_intermediate_authority(tmp_path: Path, root: Issuer) -> None:
    middle = root.issue("middle", ca=True)
    client = middle.issue("client", usages=(CLIENT,))
    authority = root.trust(tmp_path)
    assert authority.verify([client.der, middle.der]).certificate.identity == ID
    with pytest.raises(SecurityError, match="unable to get local issuer certificate"):
        authority.verify([client.der])


def test_certificate_that_is_no_authority_signs_no_other(tmp_path: Path, root: Issuer) -> None:
    client = root.issue("client", usages=(CLIENT,))
    forged = client.issue("forged", usages=(CLIENT,))
    with pytest.raises(SecurityError, match="the certificate of the client is refused: invalid CA certificate"):
        root.trust(tmp_path).verify([forged.der, client.der])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"usages": (SERVER,)}, "not one of a client; expected the extended key usage clientAuth"),
        ({"usages": ()}, "not one of a client"),
        ({"usages": (CLIENT,), "signs": False}, "and digital signatures"),
        ({"usages": (CLIENT,), "days": (-3, -2)}, "has expired"),
        ({"usages": (CLIENT,), "days": (2, 3)}, "not yet valid"),
    ],
)
def test_unfit_certificates_are_refused(tmp_path: Path, root: Issuer, changes: dict[str, Any], text: str) -> None:
    client = root.issue("client", **changes)
    with pytest.raises(SecurityError, match=text):
        root.trust(tmp_path).verify([client.der])


def test_client_takes_certificates_of_servers_only(tmp_path: Path, root: Issuer) -> None:
    authority = root.trust(tmp_path, of_servers=True)
    authority.verify([root.issue("server", usages=(SERVER,)).der])
    with pytest.raises(SecurityError, match="not one of a server; expected the extended key usage serverAuth"):
        authority.verify([root.issue("client", usages=(CLIENT,)).der])


def test_certificate_of_an_unknown_authority_is_refused(tmp_path: Path, root: Issuer) -> None:
    other = issue(new_key(), "root", None, ca=True)  # of the same name
    client = other.issue("client", usages=(CLIENT,))
    for chain in ([client.der], [client.der, other.der]):
        with pytest.raises(SecurityError, match="the certificate of the client is refused"):
            root.trust(tmp_path).verify(chain)


def test_bytes_that_are_no_certificate_are_refused(tmp_path: Path, root: Issuer) -> None:
    client = root.issue("client", usages=(CLIENT,))
    version_5 = client.der.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020104"))
    assert version_5 != client.der
    for der in (b"", b"0", client.der[:-1], client.der + b"0", b"\0" * 1000, version_5):
        with pytest.raises(SecurityError, match="cannot be read"):
            root.trust(tmp_path).verify([der])
