"""Queues between one server and many clients: put never waits, get waits, futures acknowledge.

    with netq.new(purpose=netq.Purpose.SERVER) as queue:        with netq.new() as queue:
        peer, data = queue.get()                                    queue.put("Hello, server!")
        queue.put("Hello, client!", peer)                           print(queue.get().data)

Start at `new`, then `netq.core.Communicator`; docs/design.md shows the way of one message.
"""

from __future__ import annotations

import importlib
from types import NoneType
from typing import cast

from netq.core import Communicator, Message
from netq.delivery import Delivery
from netq.errors import (
    AddressError,
    Closed,
    InvalidOption,
    MessageTooLarge,
    NetqError,
    NotAllowed,
    ProtocolError,
    QueueFull,
    SecurityError,
    Unreadable,
)
from netq.options import (
    CommunicatorOptions,
    ConnectionOptions,
    EventOptions,
    MqttOptions,
    NetworkLocation,
    Protocol,
    Purpose,
    SecurityOptions,
    SerializationOptions,
)
from netq.peer import Statistics

__all__ = [
    "new",
    "Communicator",
    "Delivery",
    "Message",
    "Statistics",
    "Protocol",
    "Purpose",
    "NetworkLocation",
    "CommunicatorOptions",
    "ConnectionOptions",
    "EventOptions",
    "MqttOptions",
    "SecurityOptions",
    "SerializationOptions",
    "NetqError",
    "AddressError",
    "Closed",
    "InvalidOption",
    "MessageTooLarge",
    "NotAllowed",
    "ProtocolError",
    "QueueFull",
    "SecurityError",
    "Unreadable",
]


def new(
    protocol: Protocol = Protocol.TCP, purpose: Purpose = Purpose.CLIENT, options: CommunicatorOptions | None = None
) -> Communicator:
    """Return a communicator. Never waits: server and clients may start in either order."""
    if not isinstance(options, (CommunicatorOptions, NoneType)):
        raise InvalidOption(f"new: options are a {type(options).__name__}; expected CommunicatorOptions")
    for name, value, kind in (("protocol", protocol, Protocol), ("purpose", purpose, Purpose)):
        if not isinstance(value, kind):
            choices = ", ".join(str(choice) for choice in kind)
            raise InvalidOption(f"new: the {name} is a {type(value).__name__}; expected one of {choices}")
    module = importlib.import_module(f"netq.{protocol.value}.{purpose.value}")
    return cast(Communicator, module.Communicator(options))
