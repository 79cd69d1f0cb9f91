"""Wires: the transports under test, plain or under TLS.

A wire makes servers and clients in this process, and gives the options for one in another process. The fixtures of
tests/conftest.py and the soak test make wires. A test chooses its kinds with `on` or `together`; a comment there says
why the other kinds are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

import netq
from netq import CommunicatorOptions, MqttOptions, NetworkLocation, Protocol, Purpose, SecurityOptions
from netq.core import Communicator
from netq.security import certificates

SOCKETS = ("tcp", "tls")
BROKERED = ("mqtt", "mqtt+tls")
PROXIED = (*SOCKETS, "mqtt", "grpc")  # go through a TCP proxy; with MQTT, the proxy is between client and broker
PROXIED_TLS = (*PROXIED, "mqtt+tls", "grpc+tls")  # for short tests
ALL = (*PROXIED, "shm")
LISTENING = ("tcp", "tls", "grpc", "shm")  # the server itself listens; with MQTT, the broker does

_PROTOCOLS = {
    "tcp": Protocol.TCP,
    "tls": Protocol.TCP,
    "mqtt": Protocol.MQTT,
    "mqtt+tls": Protocol.MQTT,
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
            mqtt=MqttOptions(prefix=self.prefix),
        )

    def facts(self, purpose: Purpose, netloc: NetworkLocation) -> dict[str, Any]:
        """Return what a process needs to make a communicator (tests/programs/command_line.py)."""
        security = self._security(purpose)
        paths = [str(path) if path else None for path in (security.key, security.certificate)] if security else None
        return {
            "protocol": self.protocol.value,
            "purpose": purpose.value,
            "netloc": self._where(netloc),
            "security": paths,
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


NewWire = Callable[[str], Wire]  # by kind
