"""A large message costs each process little more memory than its own size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.netq.transports.large_message import send_there_and_back
from tests.programs.child import Children
from tests.wires import PROXIED_TLS, Wire, on

MIB = 1024**2
KINDS = ("shm", *(kind for kind in PROXIED_TLS if kind != "mqtt"))  # tests/netq/mqtt has a stricter test
SIZES = {"grpc": 80 * MIB, "grpc+tls": 80 * MIB}  # of smaller ones, what grpc's core keeps is more than a quarter
GROWTH = 1.25  # peak growth of a process, as a multiple of the message: the message itself, and a quarter


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the peak")
@pytest.mark.slow
@on(*KINDS)
def test_large_message_costs_little_more_than_itself(wire: Wire, children: Children) -> None:
    growth = send_there_and_back(wire, children, SIZES.get(wire.kind, 32 * MIB))
    assert all(factor <= GROWTH for factors in growth.values() for factor in factors)
