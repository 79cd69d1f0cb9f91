"""What the programs of this folder share: they are told what to be by their command line, and speak in JSON lines.

Imported by the programs alone, each in a process of its own; child.py is the other end.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import uuid
from typing import Any

import netq
from netq import (
    CommunicatorOptions,
    ConnectionOptions,
    MqttOptions,
    NetworkLocation,
    Protocol,
    Purpose,
    SecurityOptions,
)
from netq.core import Communicator


def told() -> dict[str, Any]:
    """Return what the command line says."""
    facts: dict[str, Any] = json.loads(sys.argv[1])
    return facts


def communicator(**changes: Any) -> Communicator:
    """Return what the command line asks for, but for these fields of its CommunicatorOptions."""
    facts = told()
    options = CommunicatorOptions(
        id=uuid.UUID(facts["id"]),
        netloc=NetworkLocation(*facts["netloc"]),
        connection=ConnectionOptions(**facts["connection"]),
        security=None if facts["security"] is None else SecurityOptions(*facts["security"]),
        mqtt=MqttOptions(prefix=facts["prefix"]),
    )
    return netq.new(Protocol(facts["protocol"]), Purpose(facts["purpose"]), dataclasses.replace(options, **changes))


def say(**facts: object) -> None:
    """Tell the test."""
    sys.stdout.write(f"{json.dumps(facts)}\n")  # in one piece: a fork may be saying something too
    sys.stdout.flush()


def hear() -> str:
    """Wait for a word of the test; "" when it will say none any more."""
    return sys.stdin.readline().strip()
