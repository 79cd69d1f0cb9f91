"""The figures of one peer, which `statistics()` returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Statistics:
    """The figures of one peer. Bytes are those of whole messages."""

    connected: bool
    address: str  # of the present or last link
    absent: float  # seconds since the last link was lost; 0 while connected
    queued: int  # messages that the peer has not acknowledged
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    arriving: int  # bytes of messages that have arrived in part
    round_trip: float | None  # seconds, of the last heartbeat that was answered
