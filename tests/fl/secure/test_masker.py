"""A client's masks with certificates: whose keys it takes, and whose not."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

import fl
import netq
from fl import envelope
from fl.envelope import Job
from fl.errors import InvalidUpdate
from fl.messages import Answered, Task
from fl.secure.certified import certified
from fl.secure.masker import Masker
from fl.secure.options import SecurePolicy
from fl.secure.pairs import KEY, Entry
from fl.tensors.json_format import JsonSerializer
from fl.trainer import Trainer
from netq.errors import SecurityError
from netq.security import certificates

KEYS = Task(Job(1, 1, "secure"), {}, {}, secure={"step": "keys", "session": "00" * 16})


@pytest.fixture(scope="module", params=["p256", "ml-dsa-65"])
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Path(tmp_path_factory.mktemp(request.param))
    certificates.init(made, algorithm=request.param)
    for name in ("a", "b"):
        certificates.issue(made, name)
    return made


def security(folder: Path, name: str) -> netq.SecurityOptions:
    return netq.SecurityOptions(folder / f"{name}-key.pem", folder / f"{name}.pem", folder / "authority.pem")


def id_of(folder: Path, name: str) -> str:
    [entry] = [each for each in certificates.show(folder) if each.name == name]
    return str(entry.id)


def signed(folder: Path, name: str, client: str, session: str = "one") -> Entry:
    sign, _ = certified(netq.CommunicatorOptions(security=security(folder, name)))
    return sign(Entry(client, bytes(KEY), bytes(32)), session)


def test_the_key_of_a_certificate_signs_and_the_authority_proves(folder: Path) -> None:
    _, prove = certified(netq.CommunicatorOptions(security=security(folder, "a")))
    assert prove is not None
    prove(signed(folder, "b", id_of(folder, "b")), "one")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda entry, folder: entry._replace(key=b"\1" * KEY), "messages were changed"),
        (lambda entry, folder: entry._replace(commitment=b"\1" * 32), "messages were changed"),
        (lambda entry, folder: entry._replace(signature=b""), "messages were changed"),
        (lambda entry, folder: entry._replace(chain=[]), ""),
        (lambda entry, folder: entry._replace(chain=[b"no certificate"]), "cannot be read"),
        (lambda entry, folder: entry._replace(client=id_of(folder, "a")), "it shows the certificate of"),
        (lambda entry, folder: signed(folder, "b", entry.client, "two"), "messages were changed"),
        (lambda entry, folder: signed(folder, "server", entry.client), "not one of a client"),
    ],
)
def test_a_key_that_is_not_proven_is_refused(folder: Path, change: Callable[..., Entry], reason: str) -> None:
    _, prove = certified(netq.CommunicatorOptions(security=security(folder, "a")))
    entry = change(signed(folder, "b", id_of(folder, "b")), folder)
    assert prove is not None
    with pytest.raises(SecurityError, match=f"is not proven to be its own: .*{reason}"):
        prove(entry, "one")


def test_a_certificate_of_another_authority_is_refused(folder: Path, tmp_path: Path) -> None:
    certificates.init(tmp_path)
    certificates.issue(tmp_path, "b")
    _, prove = certified(netq.CommunicatorOptions(security=security(folder, "a")))
    assert prove is not None
    with pytest.raises(SecurityError, match="the certificate of the client is refused"):
        prove(signed(tmp_path, "b", id_of(folder, "b")), "one")


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    certificates.init(tmp_path)
    for name in ("a", "b"):
        certificates.issue(tmp_path, name)
    sign, _ = certified(netq.CommunicatorOptions(security=security(tmp_path, "b")))
    _, prove = certified(netq.CommunicatorOptions(security=security(tmp_path, "a")))
    assert prove is not None
    entry = Entry(id_of(tmp_path, "b"), bytes(KEY), bytes(32))
    before = sign(entry, "one")
    certificates.issue(tmp_path, "b", renew=True)
    after = sign(entry, "one")
    assert before.chain != after.chain
    prove(after, "one")

    other = tmp_path / "other"
    certificates.init(other)
    (other / "authority.pem").replace(tmp_path / "authority.pem")
    with pytest.raises(SecurityError, match="the certificate of the client is refused"):
        prove(after, "one")


def issue_with(folder: Path, uris: Sequence[str]) -> None:
    """Make x.pem and x-key.pem, the certificate of a client with these names."""
    authority = x509.load_pem_x509_certificate((folder / "authority.pem").read_bytes())
    signs: Any = serialization.load_pem_private_key((folder / "authority-key.pem").read_bytes(), None)
    key, begin = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(each) for each in uris])
    builder = x509.CertificateBuilder(authority.subject, x509.Name([]), key.public_key(), 1)
    builder = builder.not_valid_before(begin - datetime.timedelta(1)).not_valid_after(begin + datetime.timedelta(1))
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(names, critical=False).add_extension(purpose, critical=False)
    made = builder.sign(signs, hashes.SHA256())
    (folder / "x.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "x-key.pem").touch(0o600)
    (folder / "x-key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))


@pytest.mark.parametrize("names", [0, 2])
def test_a_certificate_that_names_no_client_or_two_proves_none(tmp_path: Path, names: int) -> None:
    certificates.init(tmp_path)
    certificates.issue(tmp_path, "a")
    ids = [uuid.UUID(int=each) for each in range(names)]
    issue_with(tmp_path, ["https://example.com", *(each.urn for each in ids)])
    _, prove = certified(netq.CommunicatorOptions(security=security(tmp_path, "a")))
    assert prove is not None
    for client in ("None", *map(str, ids)):
        with pytest.raises(SecurityError, match="names no client, or several"):
            prove(signed(tmp_path, "x", client), "one")


def test_a_revoked_certificate_proves_nothing(tmp_path: Path) -> None:
    certificates.init(tmp_path)
    for name in ("a", "b"):
        certificates.issue(tmp_path, name)
    listed = replace(security(tmp_path, "a"), revoked=tmp_path / "revoked.txt")
    _, prove = certified(netq.CommunicatorOptions(security=listed))
    assert prove is not None
    entry = signed(tmp_path, "b", id_of(tmp_path, "b"))
    prove(entry, "one")
    certificates.revoke(tmp_path, "b")
    with pytest.raises(SecurityError, match=r"its certificate, serial number [0-9a-f]+, is revoked"):
        prove(entry, "one")


def test_a_client_that_wants_certificates_takes_no_part_without(folder: Path) -> None:
    policy = SecurePolicy(certificates=True)
    without = Masker(policy, netq.CommunicatorOptions())
    without.is_client(uuid.UUID(int=1))
    with pytest.raises(InvalidUpdate, match="takes part with certificates only"):
        without.begin(KEYS)
    with pytest.raises(InvalidUpdate, match="under secure aggregation only"):
        without.begin(Task(Job(1, 1, "train"), {}, {}))
    found = Masker(policy, netq.CommunicatorOptions(security=security(folder, "a")))
    found.is_client(uuid.UUID(id_of(folder, "a")))
    assert isinstance(found.begin(KEYS), Answered)


def test_the_first_step_has_the_proof(folder: Path) -> None:
    found = Masker(SecurePolicy(), netq.CommunicatorOptions(security=security(folder, "a")))
    found.is_client(uuid.UUID(id_of(folder, "a")))
    answered = found.begin(KEYS)
    assert isinstance(answered, Answered)
    entry = Entry(id_of(folder, "a"), *(answered.values[name] for name in ("key", "commitment", "chain", "signature")))
    _, prove = certified(netq.CommunicatorOptions(security=security(folder, "b")))
    assert prove is not None
    prove(entry, "00" * 16)


def test_another_id_has_no_keys_of_the_one_before() -> None:
    found = Masker(SecurePolicy(), netq.CommunicatorOptions())
    found.is_client(uuid.UUID(int=1))
    found.begin(KEYS)
    found.is_client(uuid.UUID(int=1))  # a session that begins again
    before = found._participant
    found.is_client(uuid.UUID(int=2))
    assert before is not None
    assert found._participant is None


def test_a_task_without_masks_is_refused_where_they_are_required() -> None:
    plain = Task(Job(1, 1, "train"), {}, {})
    assert Masker(SecurePolicy(), netq.CommunicatorOptions()).begin(plain) is None
    with pytest.raises(InvalidUpdate, match="under secure aggregation only"):
        Masker(SecurePolicy(required=True), netq.CommunicatorOptions()).begin(plain)


def test_a_step_that_is_none_is_answered_with_a_reason() -> None:
    values = envelope.values(KEYS) | {"secure": {}}
    envelope_of = envelope.Task(KEYS.job, 0, 0, 0, 1.0, JsonSerializer().dump(values))
    answer = Trainer(lambda model, config: fl.Update(model, 1)).answer(envelope_of)
    assert "the task cannot be read" in str(answer)


@pytest.mark.parametrize("options", [{"required": 1}, {"certificates": 1}, {"min_clients": 1}, {"min_clients": "3"}])
def test_policies_that_are_not_valid_are_refused(options: Any) -> None:
    with pytest.raises(netq.InvalidOption, match=f"SecurePolicy.{next(iter(options))}"):
        SecurePolicy(**options)
