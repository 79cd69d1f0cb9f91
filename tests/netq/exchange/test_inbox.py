"""The inbox of a client: bounded in number and in bytes."""

from __future__ import annotations

import uuid

import pytest

from netq.errors import Closed
from netq.exchange.envelope import Envelope, EnvelopeKind, Rejected
from netq.exchange.inbox import Inbox
from netq.utils.stream import Stream


def envelope(kind: EnvelopeKind, name: str, size: int = 0) -> Envelope:
    return Envelope(kind, name=name, data=Stream([bytes(size)]))


def publications(inbox: Inbox, *sizes: int) -> None:
    inbox.add_publications([envelope(EnvelopeKind.PUBLICATION, str(size), size) for size in sizes])


def taken(inbox: Inbox) -> list[str]:
    found = []
    while True:
        try:
            found.append(inbox.get(0).name)
        except TimeoutError:
            return found


def test_oldest_publications_are_dropped_for_new_ones() -> None:
    inbox = Inbox(2, 100)
    publications(inbox, 10, 20, 30)
    assert inbox.dropped == 1
    publications(inbox, 75)  # needs the room of both that wait
    assert inbox.dropped == 3
    assert taken(inbox) == ["75"]


def test_publication_larger_than_the_inbox_takes_all_of_it() -> None:
    inbox = Inbox(10, 100)
    publications(inbox, 10, 1000)
    assert (taken(inbox), inbox.dropped) == (["1000"], 1)
    publications(inbox, 100)  # the bytes of what was taken count no more
    assert (taken(inbox), inbox.dropped) == (["100"], 1)


def test_message_is_refused_and_never_dropped() -> None:
    inbox = Inbox(2, 100)
    inbox.add_message(envelope(EnvelopeKind.REQUEST, "first", 60))
    with pytest.raises(Rejected, match=r"^its inbox has 60 of 100 bytes \(inbox_memory\)$"):
        inbox.add_message(envelope(EnvelopeKind.REQUEST, "large", 60))
    publications(inbox, 60)
    assert inbox.dropped == 1
    inbox.add_message(envelope(EnvelopeKind.REQUEST, "second"))
    with pytest.raises(Rejected, match=r"^its inbox has 2 messages$"):
        inbox.add_message(envelope(EnvelopeKind.REQUEST, "third"))
    assert taken(inbox) == ["first", "second"]


def test_inbox_that_has_ended_raises_when_it_is_empty() -> None:
    inbox = Inbox(2, 100)
    publications(inbox, 1)
    inbox.end(Closed(uuid.uuid4(), "over"))
    assert inbox.get(None).name == "1"
    with pytest.raises(Closed, match="over"):
        inbox.get(None)
