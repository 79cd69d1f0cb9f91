"""The wires under test: what each kind needs, and how both of its sides are made, here and in a process of its own.

Made by the fixtures of conftest.py and by the soak. Knows nothing of cases: on which kinds a case is tried it says
itself, with `on` or `together`, and beside it why not on the others.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import netq
from netq import CommunicatorOptions, MqttOptions, NetworkLocation, Protocol, Purpose, SecurityOptions
from netq.core import Communicator
from netq.security import certificates

SOCKETS = ("tcp", "tls")
BROKERED = ("mqtt", "mqtt+tls")
PROXIED = (*SOCKETS, "mqtt", "grpc")  # what goes through a TCP proxy: with MQTT, one between a client and the broker
PROXIED_TLS = (*PROXIED, "mqtt+tls", "grpc+tls")  # for what takes a moment
ALL = (*PROXIED, "shm")

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
    """Try a test on these, one after the other; a test that does not say it is tried on SOCKETS."""
    return pytest.mark.parametrize("wire", kinds, indirect=True)


def together(*kinds: str) -> pytest.MarkDecorator:
    """Try a test that takes long on these, at the same time."""
    return pytest.mark.parametrize("wires", [kinds], indirect=True, ids=["-".join(kinds)])


@dataclasses.dataclass(frozen=True)
class Wire:
    """What to give a server, and what a client. `broker` and `prefix` are MQTT's: where all of a test meet."""

    kind: str
    files: certificates.Files
    broker: NetworkLocation | None = None
    prefix: str = "netq"

    @property
    def protocol(self) -> Protocol:
        """What carries the bytes."""
        return _PROTOCOLS[self.kind]

    def make(self, purpose: Purpose, options: CommunicatorOptions) -> Communicator:
        """Return a communicator on this wire, as Communicators wants it."""
        return netq.new(self.protocol, purpose, self.fit(purpose, options))

    def fit(self, purpose: Purpose, options: CommunicatorOptions) -> CommunicatorOptions:
        """Return the options with what this wire needs; without a port, at the broker if there is one."""
        return dataclasses.replace(
            options,
            netloc=self._where(options.netloc),
            security=self._security(purpose),
            mqtt=MqttOptions(prefix=self.prefix),
        )

    def facts(self, purpose: Purpose, netloc: NetworkLocation) -> dict[str, Any]:
        """Return what a process needs to be told to make one (programs/told.py)."""
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
        if purpose is Purpose.CLIENT or self.broker is not None:  # of a broker the server too is a client
            return SecurityOptions(certificate=self.files.authority)
        return SecurityOptions(self.files.key, self.files.certificate)
