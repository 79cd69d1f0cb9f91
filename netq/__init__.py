"""Queues between one server and many clients: `put` returns a future, `get` waits, futures acknowledge.

    with netq.new(purpose=netq.Purpose.SERVER) as queue:        with netq.new() as queue:
        peer, data = queue.get()                                    queue.put("Hello, server!")
        queue.put("Hello, client!", peer)                           print(queue.get().data)

Start at `new`, then `netq.core.Communicator`. docs/explanation/life-of-a-message.md follows one message in the code.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

import netq.io.process_end  # noqa: F401  # now: a function of atexit may make a communicator, which then delivers
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

if TYPE_CHECKING:
    from netq.core import Communicator as Communicator
    from netq.core import Message as Message
    from netq.polling import poll as poll
    from netq.promise import Promise as Promise
    from netq.runtime.delivery import Delivery as Delivery
    from netq.runtime.statistics import Statistics as Statistics

# Of the public names that need the communicator, which is half of an import's time. They are imported when they are
# first used: a process without a communicator, as one that trains for an agent, starts without it.
_MODULE_OF = {
    "Communicator": "netq.core",
    "Message": "netq.core",
    "poll": "netq.polling",
    "Promise": "netq.promise",
    "Delivery": "netq.runtime.delivery",
    "Statistics": "netq.runtime.statistics",
}
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
    return cast("Communicator", module.Communicator(options))


def __getattr__(name: str) -> Any:
    """Import a public name or a transport at its first use: `netq.tcp.server.Communicator` needs only `import netq`."""
    if name in list(Protocol):
        return importlib.import_module(f"netq.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'netq' has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    """Return the public names, and those of the modules that are imported."""
    return sorted({*globals(), *_MODULE_OF})
