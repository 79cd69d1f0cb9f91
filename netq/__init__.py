"""Queues between one server and many clients: `put` returns a future, `get` waits, futures acknowledge.

    with netq.new(purpose=netq.Purpose.SERVER) as queue:        with netq.new() as queue:
        peer, data = queue.get()                                    queue.put("Hello, server!")
        queue.put("Hello, client!", peer)                           print(queue.get().data)

Start at `new`, then `netq.core.Communicator`. docs/explanation/life-of-a-message.md follows one message in the code.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import cast

from netq.core import Communicator, Message
from netq.errors import (
    AddressError,
    BufferMismatch,
    Closed,
    InvalidOption,
    MessageTooLarge,
    NetqError,
    NotAllowed,
    ProtocolError,
    QueueFull,
    SecurityError,
    SerializationError,
    Unreadable,
)
from netq.identity import Security
from netq.io.interrupts import outside_steps
from netq.options import (
    CommunicatorOptions,
    ConnectionOptions,
    EventOptions,
    MqttOptions,
    NetworkLocation,
    Protocol,
    Purpose,
    SealOptions,
    SecurityOptions,
    SerializationOptions,
)
from netq.polling import poll
from netq.promise import Promise
from netq.runtime.delivery import Delivery
from netq.runtime.statistics import Statistics

__all__ = [
    "new",
    "poll",
    "outside_steps",
    "Communicator",
    "Delivery",
    "Message",
    "Promise",
    "Statistics",
    "Security",
    "Protocol",
    "Purpose",
    "NetworkLocation",
    "CommunicatorOptions",
    "ConnectionOptions",
    "EventOptions",
    "MqttOptions",
    "SecurityOptions",
    "SealOptions",
    "SerializationOptions",
    "NetqError",
    "AddressError",
    "BufferMismatch",
    "Closed",
    "InvalidOption",
    "MessageTooLarge",
    "NotAllowed",
    "ProtocolError",
    "QueueFull",
    "SecurityError",
    "SerializationError",
    "Unreadable",
]


def new(
    protocol: Protocol | str = Protocol.TCP,
    purpose: Purpose | str = Purpose.CLIENT,
    options: CommunicatorOptions | None = None,
) -> Communicator:
    """Return a communicator. Never waits: server and clients may start in either order.

    `new("tcp", "server")` is `new(Protocol.TCP, Purpose.SERVER)`. Without `options` they are CommunicatorOptions().
    Raises InvalidOption, AddressError and SecurityError.
    """
    for name, value, kind in (("protocol", protocol, Protocol), ("purpose", purpose, Purpose)):
        if value not in list(kind):
            raise InvalidOption(f"new: the {name} is {value!r}; expected one of {', '.join(kind)}")
    module = importlib.import_module(f"netq.{protocol}.{purpose}")
    return cast(Communicator, module.Communicator(options))


def __getattr__(name: str) -> ModuleType:
    """Import a transport at its first use: `netq.tcp.server.Communicator` needs only `import netq`."""
    if name not in list(Protocol):
        raise AttributeError(f"module 'netq' has no attribute {name!r}")
    return importlib.import_module(f"netq.{name}")
