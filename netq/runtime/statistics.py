"""The figures of one peer, which `statistics()` returns.

To add a figure, see CONTRIBUTING.md, "A figure in `statistics()`".
"""

from __future__ import annotations

from dataclasses import dataclass

from netq.identity import Security


@dataclass(frozen=True)
class Statistics:
    """The figures of one peer. A session that begins anew counts messages and bytes from 0."""

    connected: bool
    address: str  # of the present or last link
    absent: float  # seconds since the last link was lost; 0 while connected
    queued: int  # messages that the peer has not acknowledged
    messages_in: int  # whole messages received, taken by the user or not
    messages_out: int  # messages that the peer has acknowledged
    bytes_in: int  # bytes of `messages_in`
    bytes_out: int  # bytes of `messages_out`
    arriving: int  # bytes received of messages that are not whole yet; not in `bytes_in`
    expected: int  # bytes of those messages in all
    waits: bool  # the rest of one of them waits for `memory` of this side
    security: Security | None  # of the present or last link; None without TLS. With MQTT: of the link to the broker
    seal: Security | None  # of the present or last link, from end to end; None without SealOptions
    round_trip: float | None  # seconds, of the last PING of this side that was answered; None before the first
