"""What TLS negotiates on each transport, as both ends report it.

    python -m tests.attacks.negotiated

Prints a row for each transport and value of `post_quantum`, with mutual TLS where the server sees the client's
certificate. MQTT needs mosquitto.
"""

from __future__ import annotations

import dataclasses
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import netq
from netq import CommunicatorOptions, MqttOptions, NetworkLocation, Protocol, Purpose, Security, SecurityOptions
from netq.core import Communicator
from netq.options import PostQuantum
from netq.security import certificates
from tests.servers.mosquitto import Mosquitto

LIMIT = 20.0  # seconds
CHOICES: dict[Protocol, tuple[PostQuantum, ...]] = {
    Protocol.TCP: ("off", "prefer", "require"),
    Protocol.GRPC: ("prefer", "require"),
    Protocol.MQTT: ("off", "prefer"),
}
TITLES = ("transport", "post_quantum", "at the", "version", "cipher", "group", "identity")


def rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Connect over each transport, and yield what both ends report."""
    server = certificates.init(folder)
    client = certificates.issue(folder, "client")
    with Mosquitto(folder / "broker", certificate=server.certificate, key=server.key) as broker:
        for protocol, choices in CHOICES.items():
            for choice in choices:
                if protocol is Protocol.MQTT:
                    trusting = SecurityOptions(certificate=server.authority, post_quantum=choice)
                    sides, netloc = [trusting, trusting], broker.netloc
                else:
                    sides = [
                        SecurityOptions(files.key, files.certificate, files.authority, choice)
                        for files in (server, client)
                    ]
                    netloc = NetworkLocation(port=0)
                for side, security in negotiate(protocol, sides, netloc).items():
                    yield protocol.value, choice, side, *describe(security)


def negotiate(protocol: Protocol, sides: list[SecurityOptions], netloc: NetworkLocation) -> dict[str, Security | None]:
    """Return what the server and the client report after a message in each direction."""
    options = CommunicatorOptions(netloc=netloc, mqtt=MqttOptions(prefix=f"test/{uuid.uuid4().hex}"))
    with netq.new(protocol, Purpose.SERVER, dataclasses.replace(options, security=sides[0])) as server:
        there = dataclasses.replace(options, id=uuid.uuid4(), netloc=server.netloc, security=sides[1])
        with netq.new(protocol, Purpose.CLIENT, there) as client:
            client.put("there")
            server.put("back", server.get(timeout=LIMIT).peer)
            client.get(timeout=LIMIT)
            return {name: reported(side) for name, side in (("server", server), ("client", client))}


def reported(side: Communicator) -> Security | None:
    """Return the security of the only peer."""
    (figures,) = side.statistics().values()
    return figures.security


def describe(security: Security | None) -> tuple[str, ...]:
    """Return the cells of a row."""
    if security is None:
        return ("none",) * 4
    identity = "" if security.identity is None else f"{str(security.identity)[:8]}…"
    return security.version, security.cipher or "not told", security.group or "not told", identity or "none"


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        cells = [TITLES, *rows(Path(folder))]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, tuple("-" * width for width in widths))
    for row in cells:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")


if __name__ == "__main__":
    main()
