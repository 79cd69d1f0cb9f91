"""One link's worth of protocol: who is there, is it alive, what is legal, what goes out next.

Pure: bytes and the time come in by arguments, events come out as values; the same for every transport. A
connection is made with its link and dies with it; the session goes on. Owned by one loop.

What a peer may send, by our state. It is looked up at each *header*, before memory is taken or the session is
touched.

    state     entered when                                      the peer may send
    OPENING   the link is there                                 INI, and to a client FIN(refused)
    GREETED   a server has heard INI and not yet answered       nothing
    OPEN      both have said INI                                MSG ACK DROP PING FIN
    CLOSING   our user has closed; we flush, then say FIN       MSG ACK DROP PING FIN
    ENDING    the peer has said FIN; we have not                ACK PING FIN(not DONE)
    CLOSED    both have said FIN, or the link is to be dropped  nothing

    OPENING ──INI──► GREETED ──accept──► OPEN ──close──► CLOSING
        └────────────INI (a client)───────▲ └──FIN──► ENDING ─┴──FIN──► CLOSED
"""

from __future__ import annotations

import enum
import math
import uuid
from typing import cast

from netq.buffers import Buffer
from netq.errors import ProtocolError, strip_tracebacks
from netq.options import ConnectionOptions
from netq.protocol.events import Event, Failed, Finished, Hello, Lost, Opened
from netq.protocol.memory import Memory
from netq.protocol.sender import SMALL, Part
from netq.protocol.session import Session
from netq.protocol.wire import (
    ANSWER,
    GREETING_LIMIT,
    LEAVING,
    REASON,
    VERSION_SIZE,
    Code,
    Frame,
    Greeting,
    Kind,
    Reader,
    take_nothing,
)
from netq.text import printable


class State(enum.IntEnum):
    """See the table above."""

    OPENING = enum.auto()
    GREETED = enum.auto()
    OPEN = enum.auto()
    CLOSING = enum.auto()
    ENDING = enum.auto()
    CLOSED = enum.auto()


_TALK = frozenset({Kind.MSG, Kind.ACK, Kind.DROP, Kind.PING, Kind.FIN})
LEGAL: dict[State, frozenset[Kind]] = {
    State.OPENING: frozenset({Kind.INI, Kind.FIN}),
    State.GREETED: frozenset(),
    State.OPEN: _TALK,
    State.CLOSING: _TALK,
    State.ENDING: frozenset({Kind.ACK, Kind.PING, Kind.FIN}),
    State.CLOSED: frozenset(),
}
_OF_NO_LANE = frozenset({Kind.INI, Kind.PING, Kind.FIN})
_PROBE_TIMEOUT = 2.0  # seconds within which a link that is doubted has to bring something
_NANOSECONDS = 1_000_000_000  # in a second: the number of a PING is when it was made, by the age of its link
_TALKING = frozenset({State.OPEN, State.CLOSING})
LENGTH = {  # of a body: least, most. The session judges those of MSG
    Kind.INI: (VERSION_SIZE, GREETING_LIMIT),
    Kind.MSG: (0, 2**32 - 1),
    Kind.ACK: (0, 0),
    Kind.DROP: (0, 0),
    Kind.PING: (0, 0),
    Kind.FIN: (0, REASON),
}


class Connection:
    """All that a link ever calls. A client gives its session; a server learns the session from the INI."""

    def __init__(self, id: uuid.UUID, options: ConnectionOptions, now: float, session: Session | None = None) -> None:
        self.session = session
        self._reader = Reader(self._place)
        self._state = State.OPENING
        self.open = False  # both have greeted, and not both have said goodbye
        self.closed = False  # all has been said: flush, then close the link
        self.source: Memory | None = None  # of the link's own memory, if it wants bodies to begin there
        self._id = id
        self._options = options
        self._control: list[bytes] = []
        self._keeps_parts = False  # `pieces` is used: bodies are to stay Parts
        self._leaving = False  # we have said that we close, and that the peer's window keeps us
        self._finished = False  # we have said FIN
        self._unanswered: int | None = None  # number of the peer's last PING, until it is answered
        self._probed: float | None = None  # since when nothing has come of a link that is doubted
        self._born = self._heard = self._spoke = now
        self._patience = options.handshake_timeout
        if session is not None:
            self._control.append(session.greeting(id, resume=session.begun).frame().whole())

    @property
    def state(self) -> State:
        """See the table above."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        self.open = state in _OPEN
        self.closed = state is State.CLOSED
        self._reader.take = self._session.take_small if state in _TALKING else take_nothing

    # What a link tells.

    def buffer(self) -> memoryview:
        """Return where the next received bytes go; at least one byte."""
        return self._reader.buffer()

    def received(self, n: int, now: float) -> list[Event]:
        """Take the n bytes that are now in `buffer()`; return what they mean, in order, beside messages that are whole
        (see `Session.arrived`) and acknowledged. Never raises.
        """
        events: list[Event] = []
        if self.closed:
            return events  # what crossed our FIN
        self._heard, self._probed = now, None
        if self.session is not None and self.open:
            self.session.confirmed = True
        try:
            for frame in self._reader.advance(n):
                _HANDLE[frame.kind](self, frame, events)
                if self.closed:
                    break
        except (ProtocolError, MemoryError) as error:
            self._reader.reset()  # what comes behind is not looked at
            self._lose(error, events)
        if self.session is not None and self.session.closing:
            self._finish(events)
        return events

    def read_small(self, data: memoryview, low: int, high: int, now: float) -> int:
        """Take small messages and ACKs where they lie, as `received_small`; return where the first byte is left."""
        session = self.session
        reader = self._reader
        if self._state is not State.OPEN or session is None or reader.frame is not None or not reader.empty:
            return low
        self._heard, self._probed, session.confirmed = now, None, True
        return session.take_small(data, low, high)

    def buffer_for_small(self) -> memoryview | None:
        """Return `buffer()` if `received_small` may be called; None if the next bytes are for `received`."""
        reader = self._reader
        return reader.buffer() if self._state is State.OPEN and reader.frame is None else None

    def received_small(self, n: int, now: float) -> bool:
        """Take the n bytes that are now in `buffer()` as far as they are small messages and ACKs: all that a user's
        thread may do, which can be interrupted anywhere. Return False if `received(0)` is to go on with the rest.
        """
        assert self.session is not None
        self._heard, self._probed, self.session.confirmed = now, None, True
        return self._reader.advance_small(n, SMALL)

    def feed(self, packet: memoryview, now: float) -> list[Event]:
        """Take a packet: the same, for links that bring memory of their own."""
        events: list[Event] = []
        while packet and not self.closed:
            buffer = self.buffer()
            n = min(len(buffer), len(packet))
            buffer[:n] = packet[:n]
            packet = packet[n:]
            events += self.received(n, now)
        return events

    def to_send(self, limit: int, now: float) -> list[Buffer]:
        """Return what goes out next, of some `limit` bytes; nothing when there is nothing."""
        out: list[Buffer | Part] = []
        if self._control:
            out += self._control
            self._control = []
        session, parts = self.session, False
        if session is not None and self.open:
            if self._unanswered is not None:
                out.append(Frame(Kind.PING, ANSWER, number=self._unanswered).header())
                self._unanswered = None
            if session.owed:
                session.acknowledge(out)
            if session.closing and not self._leaving and session.blocked:
                self._leaving = True
                out.append(self._ping(now, LEAVING))
            parts = session.frames(out, limit)
        if out:
            self._spoke = now
        if not parts or self._keeps_parts:
            return cast(list[Buffer], out)
        buffers: list[Buffer] = []
        for piece in out:
            if isinstance(piece, Part):
                buffers += piece.buffers()
            else:
                buffers.append(piece)
        return buffers

    def pieces(self, limit: int, now: float) -> list[Buffer | Part]:
        """The same with the bodies of large messages as Parts, for links that send once what goes to several peers."""
        self._keeps_parts = True
        return cast(list[Buffer | Part], self.to_send(limit, now))

    def deadline(self) -> float:
        """Return when `tick` should be called, unless something comes earlier."""
        if self.open:
            return min(self._silence_ends, self._spoke + self._options.heartbeat)
        return math.inf if self.closed else self._born + self._patience

    def tick(self, now: float) -> list[Event]:
        """Do what the time asks for."""
        events: list[Event] = []
        if self.open:
            if now >= self._silence_ends:
                self._lose(TimeoutError(f"nothing heard for {now - self._heard:.1f} s"), events)
            elif now >= self._spoke + self._options.heartbeat:
                self._control.append(self._ping(now))
        elif now >= self.deadline():
            self._lose(TimeoutError(f"no greeting within {self._patience:g} s"), events)
        return events

    def probe(self, now: float) -> None:
        """Ask whether the peer is still there, and give the link up soon if nothing comes; `deadline` moves."""
        if self.open and self._probed is None:
            self._probed = now
            self._control.append(self._ping(now))

    def close(self) -> list[Event]:
        """Say no more than what is queued, then FIN."""
        events: list[Event] = []
        if self.state is State.OPEN:
            self.state = State.CLOSING
        self._finish(events)
        return events

    # What a server answers to Hello.

    def accept(self, session: Session, greeting: Greeting, *, resumed: bool, now: float) -> list[Event]:
        """Open, with this session. A link that was lost after its Hello stays so, and the session untouched."""
        if self.closed:
            return [Lost(ConnectionResetError("the link was lost before its greeting was answered"))]
        self.session = session
        self._heard = now
        events: list[Event] = []
        try:
            heard = resumed and session.can_resume(greeting)
            self._open(greeting, greeting.epoch + 1, events, resumed=heard, known=resumed)
        except ProtocolError as error:
            self._lose(error, events)
        else:
            self._control.append(session.greeting(self._id, resume=heard).frame().whole())
        self._finish(events)
        return events

    def refuse(self, code: Code, reason: str) -> None:
        """Say why this link is over. The link should be flushed, then closed."""
        self.detach()
        body = reason.encode()[:REASON]
        self._control = [Frame(Kind.FIN, length=len(body), number=code, body=body).whole()]

    def discard_input(self) -> None:
        """What has been received of the next frames is of no use: the thread that took it was interrupted."""
        self._reader.reset()

    def detach(self) -> None:
        """The link is gone: leave to the session what has come of a message."""
        if self.session is not None and not self.closed:
            self._place_rest()
            frame, got = self._reader.partial or (None, 0)
            if self.open and frame is not None and frame.kind is Kind.MSG:
                self.session.interrupted(frame, got)
            self.session.pause()
        self._reader.reset()
        self.state = State.CLOSED

    def _place_rest(self) -> None:
        """Have the begin of a small message counted: what `received_small` left, and no more bytes complete."""
        try:
            for _ in self._reader.advance(0) if self.open and self._reader.partial is None else ():
                return  # a whole frame, which was left: it comes again
        except (ProtocolError, MemoryError):
            return

    # Frames.

    def _place(self, frame: Frame) -> memoryview:
        if frame.kind is not Kind.MSG or self.state not in _TALKING:
            return self._place_rare(frame)
        if frame.value > self._options.message_size:
            raise ProtocolError(f"a message of {frame.value} bytes; message_size is {self._options.message_size}")
        return self._session.place(frame, self.source)

    def _place_rare(self, frame: Frame) -> memoryview:
        least, most = LENGTH[frame.kind]
        if not self._is_legal(frame.kind):
            raise ProtocolError(f"{frame.kind.name} in state {self.state.name}")
        if frame.lane and frame.kind in _OF_NO_LANE:
            raise ProtocolError(f"{frame.kind.name} in lane {frame.lane}; expected lane 0")
        if not least <= frame.length <= most:
            raise ProtocolError(f"{frame.kind.name} of {frame.length} bytes; expected {least} to {most}")
        return memoryview(bytearray(frame.length))

    def _is_legal(self, kind: Kind) -> bool:
        to_a_server = kind is Kind.FIN and self.session is None  # which has not heard yet who it is
        return kind in LEGAL[self.state] and not to_a_server

    def _on_ini(self, frame: Frame, events: list[Event]) -> None:
        greeting = Greeting.read(frame)
        if self.session is None:
            self.state = State.GREETED
            events.append(Hello(greeting))
            return
        if not greeting.resume and greeting.epoch != self.session.epoch + 1:
            raise ProtocolError(
                f"the server begins epoch {greeting.epoch} of a session in epoch {self.session.epoch}; "
                f"expected {self.session.epoch + 1}"
            )
        self._open(greeting, greeting.epoch, events, resumed=greeting.resume, known=greeting.resume)

    def _open(self, greeting: Greeting, epoch: int, events: list[Event], *, resumed: bool, known: bool) -> None:
        """Go on with the session or begin it; `known`: its user has been told of it before."""
        session = self._session
        if resumed:
            session.resume(greeting)
            events.append(Opened(session, resumed=True))
        else:
            events += [Failed(message, None) for message in (session.restart() if session.begun else ())]
            events.append(Opened(session, resumed=known))
            events += [Failed(message, error) for message, error in session.begin(greeting, epoch)]
        self._patience = max(self._options.heartbeat, min(greeting.heartbeat / 1000, 3600.0)) * self._options.misses
        self.state = State.CLOSING if session.closing else State.OPEN

    def _on_msg(self, frame: Frame, events: list[Event]) -> None:
        self._session.received(frame)

    def _on_ack(self, frame: Frame, events: list[Event]) -> None:
        self._session.acked(frame)

    def _on_drop(self, frame: Frame, events: list[Event]) -> None:
        self._session.dropped(frame)

    def _on_ping(self, frame: Frame, events: list[Event]) -> None:
        if frame.flags == ANSWER:
            seconds = self._heard - self._born - frame.number / _NANOSECONDS
            if seconds >= 0:  # else the peer has made the number up
                self._session.round_trip = seconds
            return
        self._unanswered = frame.number
        if frame.flags == LEAVING:
            self._session.peer_leaves()

    def _on_fin(self, frame: Frame, events: list[Event]) -> None:
        if frame.number != Code.DONE:
            self._refused(frame, events)
        elif self.state in (State.OPENING, State.ENDING) or frame.length:
            raise ProtocolError(f"FIN with code 0 and {frame.length} bytes in state {self.state.name}")
        else:
            self._session.peer_closed = True
            self.state = State.CLOSED if self._finished else State.ENDING
            events.append(Finished(self._session, over=self._finished))

    def _refused(self, frame: Frame, events: list[Event]) -> None:
        if frame.number not in (Code.REFUSED, Code.SUPERSEDED, Code.OVER):
            raise ProtocolError(f"FIN with code {frame.number}")
        reason = printable(bytes(frame.body).decode(errors="replace"))
        self._lose(ConnectionRefusedError(f"the peer refuses: {reason}"), events, Code(frame.number))

    def _finish(self, events: list[Event]) -> None:
        """Say FIN as soon as all our messages are acknowledged."""
        session = self.session
        if session is None or not session.closing or self._finished or session.queued or not self.open:
            return
        self._finished = True
        self._control.append(Frame(Kind.FIN).header())
        if self.state is State.ENDING:
            self.state = State.CLOSED
            events.append(Finished(session, over=True))

    def _ping(self, now: float, flags: int = 0) -> bytes:
        """Return a PING whose number is the time, for the answer repeats it: so nothing need be kept of those that are
        under way, and each answer is measured from its own.
        """
        self._spoke = now
        return Frame(Kind.PING, flags, number=int((now - self._born) * _NANOSECONDS)).header()

    @property
    def _silence_ends(self) -> float:
        """When the link is lost, if nothing comes."""
        ends = self._heard + self._patience
        return ends if self._probed is None else min(ends, self._probed + _PROBE_TIMEOUT)

    def _lose(self, error: Exception, events: list[Event], code: Code = Code.DONE) -> None:
        self.detach()
        events.append(Lost(strip_tracebacks(error), code))

    @property
    def _session(self) -> Session:
        assert self.session is not None  # LEGAL admits no frame that needs one before there is one
        return self.session


_OPEN = frozenset({State.OPEN, State.CLOSING, State.ENDING})
_HANDLE = {
    Kind.INI: Connection._on_ini,
    Kind.MSG: Connection._on_msg,
    Kind.ACK: Connection._on_ack,
    Kind.DROP: Connection._on_drop,
    Kind.PING: Connection._on_ping,
    Kind.FIN: Connection._on_fin,
}
