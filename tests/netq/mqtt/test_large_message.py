"""A large message costs each process, and the broker, little more memory than its own size."""

from __future__ import annotations

import pytest

from netq.mqtt.topic import new_id
from netq.security import certificates
from tests.netq.mqtt.conftest import NewBroker
from tests.netq.transports.large_message import send_there_and_back
from tests.programs.child import Children
from tests.wires import Wire

MIB = 1024**2
SIZE = 64 * MIB
OVERHEAD = 16 * MIB  # bytes above the message's own size, for each process


@pytest.mark.slow
def test_large_message_costs_the_broker_less_than_its_size(
    new_broker: NewBroker, children: Children, files: certificates.Files
) -> None:
    broker = new_broker()
    idle = broker.memory()
    wire = Wire("mqtt", files, broker.netloc, f"test/{new_id()}")
    growth = send_there_and_back(wire, children, SIZE)
    overheads = [(factor - 1) * SIZE for factors in growth.values() for factor in factors]
    overheads.append(broker.memory("VmHWM") - idle)
    print("above its size, in MiB:", *(f"{overhead / MIB:.1f}" for overhead in overheads))
    assert len(overheads) == 5
    assert all(overhead < OVERHEAD for overhead in overheads)
