"""A server whose port is attacked serves its clients, and is as before when the attack is over."""

from __future__ import annotations

import time

import pytest

from netq import NetworkLocation, Purpose
from netq.testing.fixtures import LIMIT, Communicators
from tests.attacks.under_attack import Attacker
from tests.faults.conftest import Figure
from tests.programs.child import Children
from tests.wires import SOCKETS, NewWire

LISTENING = (*SOCKETS, "grpc", "grpc+tls")  # the server itself accepts connections of any address

MIB = 2**20
ATTACK, NEWCOMERS = 200, 10  # handshakes of the attacker, and clients that connect meanwhile, at the least
SOON = 5.0  # seconds: half of what a server gives an attacker's handshake; a tenth of a second on a quiet machine
MOST_GROWTH = 20 * MIB  # of sessions that were never used, and what the allocator keeps of the handshakes


@pytest.mark.slow
@pytest.mark.parametrize("kind", LISTENING)
def test_attack_delays_no_client_and_leaves_no_memory(
    children: Children, new_wire: NewWire, figure: Figure, kind: str
) -> None:
    wire = new_wire(kind)
    server = children.start("audience", wire, Purpose.SERVER)
    netloc = NetworkLocation(*server.receive()["netloc"])
    with Communicators(wire.make) as communicators:
        regular = communicators.client(netloc)
        regular.put(bytes(MIB)).result(LIMIT)
        assert len(regular.get(timeout=LIMIT).data) == MIB
        before = server.ask("cost")["private"]
        attacker = Attacker(netloc, secure=kind.endswith("tls"))
        try:
            assert attacker.running.wait(LIMIT)
            slowest, newcomers = 0.0, 0
            while newcomers < NEWCOMERS or attacker.tried < ATTACK:
                begin = time.monotonic()
                newcomer = communicators.client(netloc)
                newcomer.put("new")
                assert newcomer.get(timeout=LIMIT).data == "new"
                slowest = max(slowest, time.monotonic() - begin)
                regular.put(bytes(MIB))
                assert len(regular.get(timeout=LIMIT).data) == MIB
                newcomer.close(LIMIT)
                communicators.release(newcomer)
                newcomers += 1
        finally:
            attacker.close()
        end = time.monotonic() + LIMIT
        while (growth := server.ask("cost")["private"] - before) > MOST_GROWTH and time.monotonic() < end:
            pass  # the last links of the attack end
        tried = f"{attacker.tried} handshakes, {attacker.answered} answered"
        figure("41 handshakes, 40 slow", f"{kind}: {tried}; a client in {slowest:.2f} s; {growth / MIB:.0f} MiB more")
        assert slowest < SOON
        assert growth < MOST_GROWTH
