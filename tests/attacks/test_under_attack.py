"""A server whose port is attacked serves its clients, and is as before when the attack is over."""

from __future__ import annotations

import time

import pytest

from netq import NetworkLocation, Purpose
from netq.testing.fixtures import LIMIT, Communicators
from tests.attacks.under_attack import Attacker
from tests.programs.child import Children
from tests.wires import SOCKETS, NewWire

MIB = 2**20
ATTACK = 5.0  # seconds
MOST_GROWTH = 30 * MIB  # 20 of the sessions that nobody has used, and what the allocator keeps


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("kind", SOCKETS)
def test_attack_delays_no_client_and_leaves_no_memory(children: Children, new_wire: NewWire, kind: str) -> None:
    wire = new_wire(kind)
    server = children.start("audience", wire, Purpose.SERVER)
    netloc = NetworkLocation(*server.receive()["netloc"])
    with Communicators(wire.make) as communicators:
        regular = communicators.client(netloc)
        regular.put(bytes(MIB)).result(LIMIT)
        assert len(regular.get(timeout=LIMIT).data) == MIB
        before = server.ask("cost")["private"]
        attacker = Attacker(netloc, secure=kind == "tls")
        try:
            assert attacker.running.wait(LIMIT)
            end = time.monotonic() + ATTACK
            while time.monotonic() < end:
                begin = time.monotonic()
                newcomer = communicators.client(netloc)
                newcomer.put("new")
                assert newcomer.get(timeout=LIMIT).data == "new"
                assert time.monotonic() - begin < 1.0
                regular.put(bytes(MIB))
                assert len(regular.get(timeout=LIMIT).data) == MIB
                newcomer.close(LIMIT)
                communicators.release(newcomer)
        finally:
            attacker.close()
        assert attacker.answered > 100 * ATTACK
        assert server.ask("cost")["private"] - before < MOST_GROWTH
