"""Fuzz target: what a link receives, in each state of a connection. `Victim` checks what the connection does."""

from __future__ import annotations

from netq.protocol.connection import State
from tests.netq.protocol.test_fuzz import GREETED, PREFIXES, TO_CLIENT, TO_SERVER, attack

STEPS = (1, 5, 24, 10**9)  # bytes that arrive at once
CASES = [
    (server, merge, state, step)
    for server in (False, True)
    for merge in (False, True)
    for state in PREFIXES
    for step in STEPS
]

SEEDS = [
    bytes([number]) + (TO_SERVER if server else TO_CLIENT)[0 if state is State.OPENING else len(GREETED[server]) :]
    for number, (server, _, state, _) in enumerate(CASES)
]


def run(data: bytes) -> None:
    """Feed bytes to a connection. The first byte chooses its side, its options, its state, and how bytes arrive."""
    if data:
        server, merge, state, step = CASES[data[0] % len(CASES)]
        attack("fuzz", PREFIXES[state](server) + data[1:], server=server, step=step, merge=merge)
