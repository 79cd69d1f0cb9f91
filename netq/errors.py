"""Every error that netq defines. Imports nothing of netq, so that every module may raise them.

NetqError
 ├── InvalidOption   (ValueError)               an option is out of range, or contradicts another
 │    └── NotNow                                ... or names a file, folder or module that may be there later
 ├── AddressError    (OSError)                  netq cannot listen at this address
 ├── ProtocolError                              the peer violated docs/reference/protocol.md; its link was dropped
 ├── SecurityError                              TLS: a file, a certificate, a handshake
 │    └── InvalidSecurity (InvalidOption)       ... the options contradict one another, or need a package
 ├── SerializationError (TypeError)             a serialiser refused what was put
 ├── Closed          (ConnectionError)          the session, or the communicator, is over; has .peer
 ├── QueueFull                                  queue_size messages already wait for the peer; has .peer
 ├── MessageTooLarge (ValueError)               the message exceeds the peer's message_size; has .peer
 ├── BufferMismatch  (ValueError)               the buffers given to `get` do not fit the message; has .peer, .message
 ├── Unreadable      (pickle.UnpicklingError)   a message was received but cannot be loaded; has .peer
 │    └── NotAllowed                            ... because it names something that `allow` refuses
 └── Refused                                    an exchange (netq/exchange) did not do what a client asked
      ├── NotPermitted    (PermissionError)     ... because no permission allows it
      ├── Busy                                  ... because a work queue, or a client, has too much to do already
      ├── Absent          (ConnectionError)     ... because no client offers the service, or the client has gone
      └── Failed                                ... because the function of the worker or the service has raised
"""

from __future__ import annotations

import pickle
import uuid
from typing import Any


class NetqError(Exception):
    """The base of all errors of netq."""


class InvalidOption(NetqError, ValueError):
    """An option is out of range. The text names it and says what was expected."""


class NotNow(InvalidOption):
    """What an option names is not there, or cannot be used: a file, a folder, a module that raises. It may be later.

    Any other InvalidOption lasts until a person corrects the option.
    """


class AddressError(NetqError, OSError):
    """netq cannot listen at this address: it is in use, not of this machine, or not permitted."""


class ProtocolError(NetqError):
    """The peer sent something that docs/reference/protocol.md forbids. Only its link is dropped."""


class SecurityError(NetqError):
    """A key or certificate cannot be used, or a handshake failed."""


class InvalidSecurity(SecurityError, InvalidOption):
    """Options of TLS or sealing contradict one another, or need a package that is not installed.

    Other than the SecurityError of a file, it lasts until a person changes the options.
    """


class SerializationError(NetqError, TypeError):
    """A serialiser refused what was put, or returned something else than bytes or a Stream. Nothing was sent."""


class Closed(NetqError, ConnectionError):
    """The session with `peer` is over, so the call cannot succeed any more. None: the server was never reached.

    `args` is `(peer,)`; `why` is the reason, as text for people.
    """

    def __init__(self, peer: uuid.UUID | None, why: str = "the session is over") -> None:
        super().__init__(peer)
        self.peer = peer
        self.why = why

    def __str__(self) -> str:
        return f"{self.peer or 'the server'}: {self.why}"


class QueueFull(NetqError):
    """`queue_size` messages or `queue_bytes` wait for `peer` already. Wait for earlier futures, and put it again.

    `dropped`: it was queued, and a newer message has taken its place (drop_oldest).
    `limit`:   what is full, as in "50 messages (queue_size)".
    `size`:    bytes of the message, if it alone has more than `queue_bytes`, and others wait before it.
    """

    def __init__(self, peer: uuid.UUID | None, limit: str, dropped: bool = False, size: int | None = None) -> None:
        super().__init__(peer, limit, dropped, size)
        self.peer = peer
        self.dropped = dropped

    def __str__(self) -> str:
        peer, limit, dropped, size = self.args
        if size is not None:
            return (
                f"{peer or 'the server'}: the message alone has {size} bytes, and {limit} may wait behind the first of "
                "its lane; wait for the earlier futures of the lane, send it in parts, or set a larger queue_bytes"
            )
        if dropped:
            return f"{peer or 'the server'}: dropped for a newer message, as {limit} waited (drop_oldest)"
        return f"{peer or 'the server'}: {limit} already wait for it; wait for their futures first"


class MessageTooLarge(NetqError, ValueError):
    """The message has more bytes than `peer` takes. It was not sent."""

    def __init__(self, peer: uuid.UUID | None, size: int, limit: int) -> None:
        super().__init__(peer, size, limit)
        self.peer = peer

    def __str__(self) -> str:
        peer, size, limit = self.args
        return f"{peer or 'the server'}: a message of {size} bytes; it takes at most {limit} (its message_size)"


class BufferMismatch(NetqError, ValueError):
    """The buffers of `get(into=…)` do not fit the message. Nothing is lost, and no byte of it was put there.

    `message` is the message of `peer`, a netq.Message, loaded in memory of its own. A serialiser's `load_into` raises
    this error; `get` sets both attributes.
    """

    peer: uuid.UUID | None = None
    message: Any = None


class Unreadable(NetqError, pickle.UnpicklingError):
    """A message was received, but its bytes cannot be loaded. The next get returns the next message."""

    peer: uuid.UUID | None = None


class NotAllowed(Unreadable):
    """A message names a global that the `allow` function of PickleSerializer refuses."""


class Refused(NetqError):
    """An exchange did not do what a client asked. The text says what, the name, and why."""


class NotPermitted(Refused, PermissionError):
    """No permission of the exchange allows it."""


class Busy(Refused):
    """A work queue, a service or a client has too much to do already. Try again later."""


class Absent(Refused, ConnectionError):
    """No client offers the service, or the client that was to answer has gone."""


class Failed(Refused):
    """The function of a worker or of a service has raised an exception; or workers have ended with the job."""


def strip_tracebacks(error: Exception) -> Exception:
    """Remove the tracebacks of an error and of its causes; return the error.

    A traceback keeps the local variables of its frames alive, perhaps a large message. And an error that is stored in
    an object that one of these frames refers to makes a reference cycle.
    """
    link: BaseException | None = error
    while link is not None and link.__traceback__ is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
