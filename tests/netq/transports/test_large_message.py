"""A large message costs each process little more memory than its own size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.netq.transports.large_message import send_there_and_back
from tests.programs.child import Children
from tests.wires import PROXIED_TLS, Wire, on

MIB = 1024**2
GROWTH = 1.25  # peak growth of a process, as a multiple of the message: the message itself, and a quarter


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the peak")
@pytest.mark.slow
@on(*PROXIED_TLS, "shm")
def test_100_mib_each_way_cost_little_more_than_themselves(wire: Wire, children: Children) -> None:
    growth = send_there_and_back(wire, children, 100 * MIB)
    assert all(factor <= GROWTH for factors in growth.values() for factor in factors)
