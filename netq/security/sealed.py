"""A connection whose link carries sealed records: a layer between a Connection and its link, for any transport.

    frames ── to_send ──► records ──► link ──► records ── received ──► frames

A link calls it as it calls a Connection. All frames, INI too, are in records: what carries the link sees the sizes and
times of units, and nothing else. A unit that does not authenticate ends the link; no byte of it reaches a frame. The
session resumes on the next link, under new keys. Made by the communicator (netq/runtime/endpoint.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple, cast

from netq.buffers import NOTHING, Buffer
from netq.errors import SecurityError
from netq.identity import Protection, negotiated
from netq.options import ConnectionOptions
from netq.protocol.connection import Connection
from netq.protocol.events import Event
from netq.protocol.sender import Part
from netq.protocol.session import Session
from netq.protocol.wire import Code
from netq.security.handshake import GROUP, PREFACE, TAG, VERSION, Cipher, Credentials, Handshake, Unit, unit_header
from netq.security.records import RECORD, RecordReader, RecordWriter
from netq.security.shared import LARGEST, OPENING, Opening, SharedBlocks
from netq.security.units import Received, UnitReader
from netq.text import printable

REASON = 256  # bytes of text in an ALERT
_PADDING = 32  # bytes of text, at least: a side that does not seal reads 24 bytes before it looks at them
_CIPHERS = {Cipher.AES_256_GCM: "AES_256_GCM", Cipher.CHACHA20_POLY1305: "CHACHA20_POLY1305"}


class Sealing(NamedTuple):
    """What all links of a communicator share."""

    credentials: Credentials
    blocks: SharedBlocks
    is_client: bool


class SealedConnection(Connection):
    """See Connection. It seals what `to_send` returns, and opens what `received` is given."""

    def __init__(
        self,
        sealing: Sealing,
        id: uuid.UUID,
        options: ConnectionOptions,
        now: float,
        session: Session | None = None,
    ) -> None:
        super().__init__(id, options, now, session)
        self._blocks = sealing.blocks
        # Before the end of the handshake: units of its own. After it: a reader and a writer of records.
        self._is_client = sealing.is_client
        self._handshake: Handshake | None = Handshake(sealing.credentials, is_client=sealing.is_client)
        self._units = UnitReader({self._handshake.expected: self._handshake.limit, Unit.ALERT: REASON})
        self.buffer, self.ahead = self._units.buffer, lambda: NOTHING
        self._records = {Unit.DATA: RECORD + TAG}  # what the peer may send after it
        if sealing.is_client:
            self._records[Unit.SHARED] = OPENING + TAG
        self._greeted = False  # our preface was sent
        self._record_reader: RecordReader | None = None
        self._record_writer: RecordWriter | None = None
        self._opening: Opening | None = None  # of the BLOCK that must come next
        self._alert = b""  # why we end the link before there are keys
        self.protection: Protection | None = None

    # Receiving.

    def received(self, n: int, now: float) -> list[Event]:
        """Process the n bytes that were received into `buffer()`; return the events, in order. Never raises."""
        events: list[Event] = []
        if self.closed:
            return events
        self._last_received, self._probed = now, None  # a part of a long record shows, too, that the link is alive
        try:
            for unit in self._units.advance(n):
                events += self._process(unit, now)
                if self.closed:
                    break
        except (SecurityError, ConnectionRefusedError, MemoryError) as error:
            self._units.reset()
            self._lose(error, events)
        return events

    def _process(self, unit: Received, now: float) -> list[Event]:
        if unit.kind is Unit.ALERT:
            reason = printable(bytes(unit.body).decode(errors="replace").strip())
            raise ConnectionRefusedError(f"the peer refuses, before it has proved who it is: {reason}")
        if self._handshake is not None and self._record_reader is None:
            self._shake_hands(self._handshake, unit)
            return []
        reader, opening = self._record_reader, self._opening
        assert reader is not None
        size = len(unit.body) - TAG
        if unit.kind is Unit.SHARED:
            self._opening = Opening(reader.open(unit.header, unit.body))
            self._units.limits = {Unit.BLOCK: self._opening.length}
            return []
        if opening is not None:
            if size != opening.size:
                raise SecurityError(f"a shared block of {size} bytes; {opening.size} were announced")
            events = self._decrypt(size, lambda target: opening.open_into(unit.header, unit.body, target), now)
        elif size < 1:
            raise SecurityError(f"a record of {len(unit.body)} bytes; expected more than {TAG}")
        else:
            events = self._decrypt(size, lambda target: reader.open_into(unit.header, unit.body, target), now)
        self._opening = None
        self._units.limits = self._records
        return events

    def _decrypt(self, size: int, open_into: Callable[[memoryview], None], now: float) -> list[Event]:
        """Decrypt into the memory where the frames belong, if it has room; else through memory of its own."""
        # The memory may be that of the user's message. If the bytes do not authenticate it holds some of them, but none
        # is counted as received: the peer sends them again on the next link, to the same place.
        target = self._reader.buffer()
        if size <= len(target):
            open_into(target[:size])
            return super().received(size, now)
        plaintext = memoryview(bytearray(size))
        open_into(plaintext)
        events: list[Event] = []
        while plaintext and not self.closed:
            target = self._reader.buffer()
            n = min(len(target), len(plaintext))
            target[:n] = plaintext[:n]
            plaintext = plaintext[n:]
            events += super().received(n, now)
        return events

    def _shake_hands(self, handshake: Handshake, unit: Received) -> None:
        handshake.receive(unit.header, unit.body)
        if (keys := handshake.keys) is None:
            self._units.limits = {handshake.expected: handshake.limit, Unit.ALERT: REASON}
            return
        self._record_reader = RecordReader(keys.cipher, keys.receive)
        self._record_writer = RecordWriter(keys.cipher, keys.send)
        self.protection = negotiated(str(VERSION), _CIPHERS[keys.cipher], GROUP, keys.peer)
        # A server may still refuse the client's proof. Its first record shows that it does not.
        self._units.limits = self._records | ({Unit.ALERT: REASON} if self._is_client else {})

    # Sending.

    def to_send(self, limit: int, now: float) -> list[Buffer]:
        """Return the next bytes to send, about `limit`; an empty list if there are none.

        Within `pieces` the Parts that its `is_block` accepts are among them, sealed as they are for all peers.
        """
        out: list[Buffer | Part] = []
        if self._handshake is not None:
            out += self._handshake.take_output()
            self._greeted = self._greeted or bool(out)
            if self._record_writer is not None:
                self._handshake = None
        if self._record_writer is not None:
            self._seal(cast(list[Buffer | Part], super().to_send(limit, now)), out)
        elif self._alert:
            if not self._greeted:
                out.append(PREFACE)
            out.append(unit_header(Unit.ALERT, len(self._alert)) + self._alert)
            self._alert = b""
        return cast(list[Buffer], out)

    def refuse(self, code: Code, reason: str) -> None:
        """End the link with the reason: in a FIN, or before there are keys in an ALERT."""
        super().refuse(code, reason)
        if self._record_writer is None:
            self._alert = reason.encode()[:REASON].ljust(_PADDING)

    def _seal(self, pieces: list[Buffer | Part], out: list[Buffer | Part]) -> None:
        """Append the records of these pieces."""
        writer = self._record_writer
        assert writer is not None
        for piece in pieces:
            if not isinstance(piece, Part):
                writer.add(piece, out)
            elif piece.size <= LARGEST:
                writer.flush(out)
                block = self._blocks.seal(piece)
                out += writer.seal(Unit.SHARED, block.opening)
                out.append(piece._replace(sealed=block))
            else:
                for buffer in piece.buffers():
                    writer.add(buffer, out)
        writer.flush(out)
