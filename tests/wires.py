"""Wires: the transports under test, plain, under TLS or sealed.

A wire makes servers and clients in this process, and gives the options for one in another process. The fixtures of
tests/conftest.py and the soak test make wires. A test chooses its kinds with `on` or `together`; a comment there says
why the other kinds are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import netq
from netq import CommunicatorOptions, MqttOptions, NetworkLocation, Protocol, Purpose, SealOptions, SecurityOptions
from netq.core import Communicator
from netq.security import certificates
from tests.netq.authority import Authority

SOCKETS = ("tcp", "tls")
BROKERED = ("mqtt", "mqtt+tls", "mqtt+seal")
PROXIED = (*SOCKETS, "mqtt", "grpc")  # go through a TCP proxy; with MQTT, the proxy is between client and broker
SEALED = ("tcp+seal", "mqtt+seal")
PROXIED_TLS = (*PROXIED, "mqtt+tls", "grpc+tls", *SEALED)  # for short tests
ALL = (*PROXIED, "shm")
LISTENING = ("tcp", "tls", "grpc", "shm")  # the server itself listens; with MQTT, the broker does

_PROTOCOLS = {
    "tcp": Protocol.TCP,
    "tls": Protocol.TCP,
    "tcp+seal": Protocol.TCP,
    "mqtt": Protocol.MQTT,
    "mqtt+tls": Protocol.MQTT,
    "mqtt+seal": Protocol.MQTT,
    "grpc": Protocol.GRPC,
    "grpc+tls": Protocol.GRPC,
    "shm": Protocol.SHM,
}


def on(*kinds: str) -> pytest.MarkDecorator:
    """Run a test once on each of these kinds, instead of on those of the folder's `wire` fixture."""
    return pytest.mark.parametrize("wire", kinds, indirect=True)


def together(*kinds: str) -> pytest.MarkDecorator:
    """Run a slow test on these kinds at the same time."""
    return pytest.mark.parametrize("wires", [kinds], indirect=True, ids=["-".join(kinds)])


@dataclasses.dataclass(frozen=True)
class Wire:
    """Makes servers and clients of one kind. `broker` and `prefix` are for MQTT: the peers of a test meet there."""

    kind: str
    files: certificates.Files
    broker: NetworkLocation | None = None
    prefix: str = "netq"

    @property
    def protocol(self) -> Protocol:
        """The protocol of `netq.new`."""
        return _PROTOCOLS[self.kind]

    def make(self, purpose: Purpose, options: CommunicatorOptions) -> Communicator:
        """Return a communicator on this wire; a `Make` for Communicators."""
        return netq.new(self.protocol, purpose, self.fit(purpose, options))

    def fit(self, purpose: Purpose, options: CommunicatorOptions) -> CommunicatorOptions:
        """Return the options with what this wire needs; port 0 means the broker, if there is one."""
        return dataclasses.replace(
            options,
            netloc=self._where(options.netloc),
            security=self._security(purpose),
            seal=self._seal(purpose, options.id),
            mqtt=MqttOptions(prefix=self.prefix),
        )

    def facts(self, purpose: Purpose, netloc: NetworkLocation, id: uuid.UUID) -> dict[str, Any]:
        """Return what a process needs to make a communicator (tests/programs/command_line.py)."""
        security, seal = self._security(purpose), self._seal(purpose, id)
        return {
            "id": str(id),
            "protocol": self.protocol.value,
            "purpose": purpose.value,
            "netloc": self._where(netloc),
            "security": None if security is None else _paths(security.key, security.certificate),
            "seal": None if seal is None else _paths(seal.key, seal.certificate, seal.authority),
            "prefix": self.prefix,
        }

    def _where(self, netloc: NetworkLocation) -> NetworkLocation:
        return netloc if netloc.port or self.broker is None else self.broker

    def _security(self, purpose: Purpose) -> SecurityOptions | None:
        if not self.kind.endswith("tls"):
            return None
        if purpose is Purpose.CLIENT or self.broker is not None:  # the server, too, is a client of the broker
            return SecurityOptions(certificate=self.files.authority)
        return SecurityOptions(self.files.key, self.files.certificate)

    def _seal(self, purpose: Purpose, id: uuid.UUID) -> SealOptions | None:
        return _authority(self.files.authority.parent).seal(purpose, id) if self.kind in SEALED else None


@functools.cache
def _authority(folder: Path) -> Authority:
    """The authority of the sealed wires in a folder. It issues a certificate for each id."""
    return Authority(folder)


def _paths(*paths: Path | None) -> list[str | None]:
    return [None if path is None else str(path) for path in paths]


NewWire = Callable[[str], Wire]  # by kind
