"""A large message from a client process to a server process and back, and what it costs each of them."""

from __future__ import annotations

from netq import NetworkLocation, Purpose
from tests.programs.child import Children
from tests.wires import Wire

TIMEOUT = 100.0  # seconds


def send_there_and_back(
    wire: Wire, children: Children, size: int, server_cgroup: str = "", client_cgroup: str = ""
) -> dict[str, list[float]]:
    """Return the peak growth of both processes, as multiples of the message: after one way, and after both."""
    # One arena: glibc gives each thread its own, and free memory in another thread's arena is no cost of the message.
    environment = {"MALLOC_ARENA_MAX": "1"}
    server = children.start("large", wire, Purpose.SERVER, environment=environment, size=size, cgroup=server_cgroup)
    netloc = NetworkLocation(*server.receive()["netloc"])
    client = children.start("large", wire, Purpose.CLIENT, netloc, environment, size=size, cgroup=client_cgroup)
    growth = {"client": client.receive(TIMEOUT)["growth"], "server": server.receive(TIMEOUT)["growth"]}
    client.finish()
    server.finish()
    print(wire.kind, growth)
    return growth
