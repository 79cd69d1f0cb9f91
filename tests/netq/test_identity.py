from __future__ import annotations

import uuid

import pytest

from netq.identity import certificate_of, identity_in, is_post_quantum, negotiated

ID = uuid.uuid4()


@pytest.mark.parametrize(
    ("uris", "expected"),
    [
        ([], None),
        ([ID.urn], ID),
        ([ID.urn.upper()], ID),
        (["https://example.org", ID.urn], ID),
        ([ID.urn, ID.urn], ID),
        ([ID.urn, uuid.uuid4().urn], None),
        ([str(ID)], None),
        ([f"urn:uuid:{ID.hex}"], None),
        ([f"{ID.urn} "], None),
        ([f"{ID.urn}\n"], None),
        ([f"urn:uuid:{{{ID}}}"], None),
    ],
)
def test_identity_in(uris: list[str], expected: uuid.UUID | None) -> None:
    assert identity_in(uris) == expected


def test_a_certificate_is_known_by_its_bytes() -> None:
    first, second = (certificate_of(der, 1, 0.0, [ID.urn]) for der in (b"one", b"two"))
    assert first != second
    assert first == certificate_of(b"one", 1, 0.0, [ID.urn])


def test_name_of_a_certificate_is_printable_and_short() -> None:
    certificate = certificate_of(b"one", 1, 5.0, [ID.urn], "board\x1b[2J" + "x" * 100)
    assert certificate.name is not None
    assert certificate.name.startswith("board\\x1b[2J")
    assert len(certificate.name) == 64
    assert negotiated("TLSv1.3", None, None, certificate).security[3:] == (ID, certificate.name, 5.0)
    assert negotiated("TLSv1.3", None, None, None).security[3:] == (None, None, None)


@pytest.mark.parametrize("group", ["X25519MLKEM768", "SecP256r1MLKEM768", "SecP384r1MLKEM1024"])
def test_hybrid_groups_are_post_quantum(group: str) -> None:
    assert is_post_quantum(group)


@pytest.mark.parametrize("group", ["X25519", "secp256r1", "", None])
def test_classical_and_unknown_groups_are_not(group: str | None) -> None:
    assert not is_post_quantum(group)
