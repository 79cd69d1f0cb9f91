"""gRPC does what the contract of a transport says: each check of the public suite, plain and under TLS."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from netq.testing.conformance import CHECKS
from netq.testing.stage import Make

SLOW = {"check_order"}
PARAMETERS = [
    pytest.param(check, id=check.__name__.removeprefix("check_"), marks=[pytest.mark.slow] * (check.__name__ in SLOW))
    for check in CHECKS
]


@pytest.mark.parametrize("check", PARAMETERS)
def test_conformance(check: Callable[[Make], None], wire: Make) -> None:
    check(wire)
