"""The errors of netq: their base classes, their texts, and the tree in the docstring."""

from __future__ import annotations

import inspect
import pickle
import re
import uuid

import pytest

from netq import errors
from netq.errors import (
    Absent,
    AddressError,
    BufferMismatch,
    Busy,
    Closed,
    Failed,
    InvalidOption,
    InvalidSecurity,
    MessageTooLarge,
    NetqError,
    NotAllowed,
    NotNow,
    NotPermitted,
    ProtocolError,
    QueueFull,
    Refused,
    SecurityError,
    SerializationError,
    Unreadable,
)

PEER = uuid.UUID(int=7)
STANDARD = {
    InvalidOption: ValueError,
    NotNow: InvalidOption,
    AddressError: OSError,
    ProtocolError: NetqError,
    SecurityError: NetqError,
    InvalidSecurity: InvalidOption,
    SerializationError: TypeError,
    Closed: ConnectionError,
    QueueFull: NetqError,
    MessageTooLarge: ValueError,
    BufferMismatch: ValueError,
    Unreadable: pickle.UnpicklingError,
    NotAllowed: Unreadable,
    Refused: NetqError,
    NotPermitted: PermissionError,
    Busy: Refused,
    Absent: ConnectionError,
    Failed: Refused,
}


@pytest.mark.parametrize(("error", "standard"), STANDARD.items())
def test_errors_derive_from_netq_and_standard_error(error: type, standard: type) -> None:
    assert issubclass(error, NetqError)
    assert issubclass(error, standard)


def test_docstring_tree_has_all_errors() -> None:
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    defined = [name for name, _ in inspect.getmembers(errors, inspect.isclass) if issubclass(_, NetqError)]
    assert sorted([*drawn, "NetqError"]) == sorted(defined)
    assert sorted(drawn) == sorted(error.__name__ for error in STANDARD)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Closed(PEER), f"{PEER}: the session is over"),
        (Closed(PEER, "it never answered"), f"{PEER}: it never answered"),
        (Closed(None, "nobody listens"), "the server: nobody listens"),
        (
            QueueFull(PEER, "8 messages (queue_size)"),
            f"{PEER}: 8 messages (queue_size) already wait for it; wait for their futures first",
        ),
        (
            QueueFull(None, "8 messages (queue_size)"),
            "the server: 8 messages (queue_size) already wait for it; wait for their futures first",
        ),
        (
            QueueFull(PEER, "8 messages (queue_size)", dropped=True),
            f"{PEER}: dropped for a newer message, as 8 messages (queue_size) waited (drop_oldest)",
        ),
        (
            QueueFull(PEER, "8 bytes (queue_bytes)", size=9),
            f"{PEER}: the message alone has 9 bytes, and 8 bytes (queue_bytes) may wait behind the first of its lane; "
            "wait for the earlier futures of the lane, send it in parts, or set a larger queue_bytes",
        ),
        (
            MessageTooLarge(PEER, 100, 10),
            f"{PEER}: a message of 100 bytes; it takes at most 10 (its message_size)",
        ),
        (
            MessageTooLarge(None, 100, 10),
            "the server: a message of 100 bytes; it takes at most 10 (its message_size)",
        ),
    ],
)
def test_texts_name_the_peer_and_what_to_do(error: Closed | QueueFull | MessageTooLarge, text: str) -> None:
    assert str(error) == text
    assert error.peer == (PEER if str(PEER) in text else None)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.peer) == (type(error), text, error.peer)


def test_unreadable_has_no_peer_at_first() -> None:
    error = NotAllowed("a message names os.system")
    assert error.peer is None
    error.peer = PEER
    assert Unreadable.peer is None
    assert str(error) == "a message names os.system"
