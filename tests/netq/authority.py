"""An authority for tests: certificates as they should be, and with one thing wrong."""

from __future__ import annotations

import datetime
import ipaddress
import uuid
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, mldsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from netq.core import Communicator
from netq.options import PostQuantum, Purpose, SealOptions, SecurityOptions
from netq.testing.fixtures import LIMIT

SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
HOSTS = ("localhost", "127.0.0.1", "::1")


class Authority:
    """Issues certificates into a folder. `post_quantum`: sign by ML-DSA-65 instead of P-256."""

    def __init__(self, folder: Path, post_quantum: bool = False) -> None:
        self._folder = folder
        self._new_key = (
            mldsa.MLDSA65PrivateKey.generate if post_quantum else lambda: ec.generate_private_key(ec.SECP256R1())
        )
        self._hash = None if post_quantum else hashes.SHA256()
        self._key: Any = self._new_key()
        self._name = _name(f"authority {uuid.uuid4().hex}")
        builder = _builder(self._name, self._name, self._key.public_key(), days=10)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.path = folder / f"authority-{uuid.uuid4().hex[:8]}.pem"
        self.path.write_bytes(builder.sign(self._key, self._hash).public_bytes(serialization.Encoding.PEM))
        self.serials: dict[Path, int] = {}  # by the path of the certificate

    def server(self, **changes: Any) -> SecurityOptions:
        """Return the options of a server that asks clients for certificates."""
        return self._options(self.issue([SERVER], HOSTS), **changes)

    def client(self, id: uuid.UUID | None, **changes: Any) -> SecurityOptions:
        """Return the options of a client with a certificate for this id."""
        return self._options(self.issue([CLIENT], urns=() if id is None else (id.urn,)), **changes)

    def trusting(self, post_quantum: PostQuantum = "prefer") -> SecurityOptions:
        """Return the options of a client without a certificate."""
        return SecurityOptions(certificate=self.path, post_quantum=post_quantum)

    def seal(self, purpose: Purpose, id: uuid.UUID | None, **changes: Any) -> SealOptions:
        """Return the options of a side that seals, with a certificate for this id."""
        urns = () if id is None else (id.urn,)
        key, certificate = self.issue([SERVER if purpose is Purpose.SERVER else CLIENT], urns=urns)
        fields = {"key": key, "certificate": certificate, "authority": self.path, **changes}
        return SealOptions(**fields)

    def issue(
        self,
        usages: list[x509.ObjectIdentifier],
        hosts: tuple[str, ...] = (),
        urns: tuple[str, ...] = (),
        days: int = 5,
        age: int = 30,
        common_name: str = "a peer",
    ) -> tuple[Path, Path]:
        """Return the paths of a new key and its certificate, valid from `age` days ago to `days` from now."""
        key: Any = self._new_key()
        builder = _builder(self._name, _name(common_name), key.public_key(), days, age)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        names = [*map(_host, hosts), *map(x509.UniformResourceIdentifier, urns)]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, self._hash)
        stem = self._folder / uuid.uuid4().hex[:8]
        key_path, path = stem.with_suffix(".key.pem"), stem.with_suffix(".pem")
        key_path.touch(0o600)
        plain = serialization.NoEncryption()
        key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.serials[path] = certificate.serial_number
        return key_path, path

    def _options(self, files: tuple[Path, Path], **changes: Any) -> SecurityOptions:
        fields = {"key": files[0], "certificate": files[1], "authority": self.path, **changes}
        return SecurityOptions(**fields)


def renew(old: SecurityOptions | SealOptions, new: SecurityOptions | SealOptions, *names: str) -> None:
    """Put new files in the place of old ones, the key first, as a person does by hand."""
    for name in names or ("key", "certificate"):
        getattr(new, name).replace(getattr(old, name))


def check_resumed(server: Communicator, client: Communicator, serial: int) -> None:
    """Check that the session of the only client goes on, and that its last link has this certificate of the client."""
    client.put("resumed").result(LIMIT)
    assert server.get(timeout=LIMIT).data == "resumed"
    (peer,) = server._endpoint.peers.values()
    assert [certificate.serial for certificate in peer.certificates] == [serial]
    assert server.statistics()[client.id].messages_in == 2, "the same session"


def _builder(issuer: x509.Name, subject: x509.Name, key: Any, days: int, age: int = 30) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=age))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
