"""The programs' side of the pipes: options on the command line, commands on stdin, and reports on stdout as JSON.

Imported by the programs only; child.py is the test's side.
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
    SealOptions,
    SecurityOptions,
)
from netq.core import Communicator


def facts() -> dict[str, Any]:
    """Return the facts that the test has put on the command line."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def options(**changes: Any) -> CommunicatorOptions:
    """Return the options of the command line, with these fields replaced."""
    given = facts()
    options = CommunicatorOptions(
        id=uuid.UUID(given["id"]),
        netloc=NetworkLocation(*given["netloc"]),
        connection=ConnectionOptions(**given["connection"]),
        security=None if given["security"] is None else SecurityOptions(*given["security"]),
        seal=None if given["seal"] is None else SealOptions(*given["seal"]),
        mqtt=MqttOptions(prefix=given["prefix"]),
    )
    return dataclasses.replace(options, **changes)


def communicator(**changes: Any) -> Communicator:
    """Return the communicator of the command line, with these fields of its CommunicatorOptions replaced."""
    given = facts()
    return netq.new(Protocol(given["protocol"]), Purpose(given["purpose"]), options(**changes))


def report(**facts: object) -> None:
    """Send a line to the test."""
    sys.stdout.write(f"{json.dumps(facts)}\n")  # in one write: a forked child may write at the same time
    sys.stdout.flush()


def next_command() -> str:
    """Wait for a command of the test; "" at the end."""
    return sys.stdin.readline().strip()
