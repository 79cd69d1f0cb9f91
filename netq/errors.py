"""Every error that netq raises of its own. Imports nothing, so that every module may raise them.

NetqError
 ├── InvalidOption   (ValueError)               an option is out of range, or does not go with another
 ├── AddressError    (OSError)                  this address cannot be listened at
 ├── ProtocolError                              the peer broke docs/reference/protocol.md; its link was dropped
 ├── SecurityError                              TLS: a file, a certificate, a handshake
 ├── SerializationError (TypeError)             `dump` returned what is neither bytes nor a Stream
 ├── Closed          (ConnectionError)          the peer's session, or our own, is over; has .peer
 ├── QueueFull                                  queue_size messages wait for the peer already; has .peer
 ├── MessageTooLarge (ValueError)               the message exceeds the peer's message_size; has .peer
 └── Unreadable      (pickle.UnpicklingError)   a message came whole but cannot be loaded; has .peer
      └── NotAllowed                            ... because it names something that `allow` refuses
"""

from __future__ import annotations

import pickle
import uuid


class NetqError(Exception):
    """Any error of netq."""


class InvalidOption(NetqError, ValueError):
    """An option is out of range. The text names it and says what was expected."""


class AddressError(NetqError, OSError):
    """This address cannot be listened at: taken, not ours, or not permitted."""


class ProtocolError(NetqError):
    """The peer sent what docs/reference/protocol.md forbids. The link is dropped, nothing else suffers."""


class SecurityError(NetqError):
    """A key or certificate cannot be used, or a handshake failed."""


class SerializationError(NetqError, TypeError):
    """The `dump` of SerializationOptions returned what is neither bytes nor a Stream. Nothing was sent."""


class Closed(NetqError, ConnectionError):
    """The session with `peer` is over (None: a server never reached), so this can no longer happen.

    `args` is `(peer,)`; `why` is the reason, for people.
    """

    def __init__(self, peer: uuid.UUID | None, why: str = "the session is over") -> None:
        super().__init__(peer)
        self.peer = peer
        self.why = why

    def __str__(self) -> str:
        return f"{self.peer or 'the server'}: {self.why}"


class QueueFull(NetqError):
    """`queue_size` messages wait for `peer` already. This one was not queued; wait for earlier futures.

    `dropped`: it was queued, and a newer one has taken its place (drop_oldest).
    """

    def __init__(self, peer: uuid.UUID | None, size: int, dropped: bool = False) -> None:
        super().__init__(peer, size, dropped)
        self.peer = peer
        self.dropped = dropped

    def __str__(self) -> str:
        peer, size, dropped = self.args
        if dropped:
            return f"{peer or 'the server'}: dropped for a newer message, as {size} (queue_size) waited (drop_oldest)"
        return f"{peer or 'the server'}: {size} messages (queue_size) already wait for it; wait for their futures first"


class MessageTooLarge(NetqError, ValueError):
    """The message has more bytes than `peer` takes. It was not sent."""

    def __init__(self, peer: uuid.UUID | None, size: int, limit: int) -> None:
        super().__init__(peer, size, limit)
        self.peer = peer

    def __str__(self) -> str:
        peer, size, limit = self.args
        return f"{peer or 'the server'}: a message of {size} bytes; it takes at most {limit} (its message_size)"


class Unreadable(NetqError, pickle.UnpicklingError):
    """A message came whole, but its bytes cannot be loaded. The next get goes on with the next message."""

    peer: uuid.UUID | None = None


class NotAllowed(Unreadable):
    """A message names a global that the `allow` function of PickleSerializer refuses."""


def strip_tracebacks(error: Exception) -> Exception:
    """Return an error without the frames that it has come through, nor those of its causes.

    They hold what they were at work on, a message perhaps; and whoever keeps the error where one of them can see it has
    made a cycle.
    """
    link: BaseException | None = error
    while link is not None and link.__traceback__ is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
