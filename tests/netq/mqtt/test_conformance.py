"""What every transport does, with a real broker: plain, and under TLS."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from netq import SecurityOptions
from netq.security import certificates
from netq.testing.conformance import CHECKS
from netq.testing.stage import Make
from tests.netq.mqtt.conftest import maker
from tests.servers.mosquitto import Mosquitto


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_plain(check: Callable[[Make], None], broker: Mosquitto) -> None:
    check(maker(broker.netloc))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_tls(check: Callable[[Make], None], tls_broker: Mosquitto, files: certificates.Files) -> None:
    check(maker(tls_broker.netloc, SecurityOptions(certificate=files.authority)))
