"""Makers of communicators, one per transport, as the conformance suite needs them (netq/testing/fixtures.py, Make)."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import netq
from netq import CommunicatorOptions, MqttOptions, NetworkLocation, Protocol, Purpose, SecurityOptions
from netq.core import Communicator
from netq.mqtt.topic import new_id
from netq.options import PostQuantum
from netq.security import certificates
from netq.testing import loopback
from netq.testing.fixtures import Make
from tests.netq.authority import Authority


def in_process(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
    return loopback.Server(options) if purpose is Purpose.SERVER else loopback.Client(options)


def plain(protocol: Protocol) -> Make:
    return lambda purpose, options: netq.new(protocol, purpose, options)


def under_tls(protocol: Protocol, files: certificates.Files, post_quantum: PostQuantum = "prefer") -> Make:
    security = {
        Purpose.SERVER: SecurityOptions(files.key, files.certificate, post_quantum=post_quantum),
        Purpose.CLIENT: SecurityOptions(certificate=files.authority, post_quantum=post_quantum),
    }
    make = plain(protocol)
    return lambda purpose, options: make(purpose, dataclasses.replace(options, security=security[purpose]))


def at_broker(netloc: NetworkLocation, security: SecurityOptions | None = None, **mqtt: object) -> Make:
    """Communicators that meet at a broker, under a prefix of their own."""
    ours = MqttOptions(**{"prefix": f"test/{new_id()}"} | mqtt)  # type: ignore[arg-type]

    def make(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
        where = options.netloc if options.netloc.port else netloc
        told = dataclasses.replace(options, netloc=where, mqtt=ours, security=security)
        return netq.new(Protocol.MQTT, purpose, told)

    return make


def sealed(make: Make, authority: Authority) -> Make:
    """Communicators that `make` returns, with seals. Each has a certificate of its own, for the id of its options."""
    return lambda purpose, options: make(
        purpose, dataclasses.replace(options, seal=authority.seal(purpose, options.id))
    )


def at_path(folder: Path) -> Make:
    """Communicators over shared memory. Each server with port 0 gets a socket of its own in this folder."""
    numbers, make_shm = itertools.count(1), plain(Protocol.SHM)

    def make(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
        host, port = options.netloc
        if purpose is Purpose.SERVER and not host.startswith("/"):
            host, port = str(folder / f"server-{next(numbers)}"), 0
        return make_shm(purpose, dataclasses.replace(options, netloc=NetworkLocation(host, port)))

    return make
