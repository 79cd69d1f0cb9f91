"""What clients may do."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from netq import InvalidOption
from netq.exchange.envelope import Refusal, Rejected
from netq.exchange.permissions import Permission, Permissions

A, B = uuid.UUID(int=1), uuid.UUID(int=2)


def allowed(permissions: Permissions, client: uuid.UUID, action: str, name: str) -> bool:
    try:
        permissions.check(client, action, name)
    except Rejected as rejection:
        return (rejection.code, str(rejection)) != (Refusal.NOT_PERMITTED, f"not permitted to {client}")
    return True


def test_without_permissions_anybody_may_do_anything() -> None:
    assert allowed(Permissions(None), A, "publish", "any")
    assert not allowed(Permissions([]), A, "publish", "any")


def test_any_permission_that_covers_is_enough() -> None:
    permissions = Permissions(
        [
            Permission([str(A)], publish=["plant/+/temperature"], send=[B]),
            Permission(["*"], subscribe=["plant/#"], call=["add"]),
        ]
    )
    cases = {
        (A, "publish", "plant/3/temperature"): True,
        (A, "publish", "plant/3/pressure"): False,
        (B, "publish", "plant/3/temperature"): False,
        (B, "subscribe", "plant/+/x"): True,
        (B, "subscribe", "#"): False,
        (B, "call", "add"): True,
        (B, "serve", "add"): False,
        (A, "send", str(B)): True,
        (A, "send", str(A)): False,
        (B, "send", str(A)): False,
    }
    assert {case: allowed(permissions, *case) for case in cases} == cases
    assert allowed(Permissions([Permission(["*"], send=["*"])]), A, "send", str(B))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"clients": "*"}, r"Permission\.clients: '\*'; expected a list of texts"),
        ({"clients": ["board"]}, r"Permission\.clients: 'board'; expected an id, as in"),
        ({"clients": [7]}, r"Permission\.clients: 7; expected an id"),
        ({"clients": ["*"], "push": ["a/#/b"]}, r"Permission\.push: 'a/#/b'; expected a filter"),
        ({"clients": ["*"], "send": ["#"]}, r"Permission\.send: '#'; expected an id"),
    ],
)
def test_wrong_permission_is_named(values: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        Permission(**values)


def test_permissions_are_a_list_of_permissions() -> None:
    with pytest.raises(InvalidOption, match=r"Exchange.permissions: 'a'; expected a list of netq.exchange.Permission"):
        Permissions(["a"])  # type: ignore[list-item]
    with pytest.raises(InvalidOption, match=r"Permission.clients: \[\]; expected ids of clients"):
        Permission([])
