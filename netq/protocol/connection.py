"""The protocol on one link: handshake, heartbeat, legality of frames, order of what is sent, goodbye.

Pure: bytes and the time are arguments, events are return values. The same code serves every transport. A connection is
made with its link and ends with it; its session outlives it. Owned by one loop.

The table says what the peer may send in each of our states. It is checked at each *header*, before memory is allocated
or the session is changed.

    state     entered when                                      the peer may send
    OPENING   the link is there                                 INI, and to a client FIN(refused)
    GREETED   a server has received INI and not answered yet    nothing
    OPEN      both have sent INI                                MSG ACK DROP PING FIN
    CLOSING   our user has closed; we flush, then send FIN      MSG ACK DROP PING FIN
    ENDING    the peer has sent FIN; we have not                ACK PING FIN(not DONE)
    CLOSED    both have sent FIN, or the link must be dropped   nothing

    OPENING ──INI──► GREETED ──accept──► OPEN ──close──► CLOSING
        └────────────INI (a client)───────▲ └──FIN──► ENDING ─┴──FIN──► CLOSED
"""

from __future__ import annotations

import enum
import math
import uuid
from collections.abc import Callable
from typing import cast

from netq.buffers import Buffer
from netq.errors import ProtocolError, strip_tracebacks
from netq.identity import Protection
from netq.options import ConnectionOptions
from netq.protocol.events import Event, Failed, Finished, Hello, Lost, Opened
from netq.protocol.receiver import Receiver
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
    FrameKind,
    Greeting,
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


_ANY_BUT_INI = frozenset({FrameKind.MSG, FrameKind.ACK, FrameKind.DROP, FrameKind.PING, FrameKind.FIN})
LEGAL: dict[State, frozenset[FrameKind]] = {
    State.OPENING: frozenset({FrameKind.INI, FrameKind.FIN}),
    State.GREETED: frozenset(),
    State.OPEN: _ANY_BUT_INI,
    State.CLOSING: _ANY_BUT_INI,
    State.ENDING: frozenset({FrameKind.ACK, FrameKind.PING, FrameKind.FIN}),
    State.CLOSED: frozenset(),
}
_WITHOUT_LANE = frozenset({FrameKind.INI, FrameKind.PING, FrameKind.FIN})  # frames of the link: their lane is 0
_PROBE_TIMEOUT = 2.0  # seconds: a link that is probed is lost if it receives nothing for so long
_BUSY = 0.1  # seconds: timers are later than that only if their process stands still
_NANOSECONDS = 1_000_000_000  # per second: the number of a PING is the age of its link in nanoseconds
_MESSAGES = frozenset({State.OPEN, State.CLOSING})  # the peer may send messages
LENGTH = {  # bytes of a body, least and most. The session checks those of MSG further
    FrameKind.INI: (VERSION_SIZE, GREETING_LIMIT),
    FrameKind.MSG: (0, 2**32 - 1),
    FrameKind.ACK: (0, 0),
    FrameKind.DROP: (0, 0),
    FrameKind.PING: (0, 0),
    FrameKind.FIN: (0, REASON),
}


class Connection:
    """All that a link calls. A client passes its session; a server finds the session by the client's INI.

    It has more attributes than others: `state` and what is derived from it are read for each message, and are no
    properties therefore.
    """

    protection: Protection | None = None  # by seals of its own (netq/security/sealed.py)

    def __init__(self, id: uuid.UUID, options: ConnectionOptions, now: float, session: Session | None = None) -> None:
        # The two ends that this connects: the session, and the bytes of the link.
        self.session = session
        self._id = id
        self._options = options
        self._reader = Reader(self._place)
        self.buffer = self._reader.buffer  # the memory for the next received bytes: at least one byte
        self.ahead = self._reader.ahead  # the memory for what follows once that is full; perhaps none
        self._is_block: Callable[[Part], bool] | None = None  # within `pieces`: which Parts the link gets
        # The state, as in the table above; `open` and `closed` are derived from it.
        self._state = State.OPENING
        self.open = False  # both INIs have been exchanged, and not both FINs
        self.closed = False  # nothing more will be received or queued: flush, then close the link
        # What is to be sent, and what has been sent once and for all.
        self._control: list[bytes] = []  # frames to send before all others: INI, PING, FIN
        self._leaving_sent = False  # PING with LEAVING
        self._fin_sent = False
        self._ping_to_answer: int | None = None  # number of the peer's last PING, until its ANSWER is sent
        # Times, for the heartbeat and for the silence that ends a link.
        self._probed: float | None = None  # time of a probe, until anything is received
        self._created = self._last_received = self._last_sent = now
        self._timeout = options.handshake_timeout  # seconds; once open, those of silence
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
        self._reader.take = self._session.take_small if state in _MESSAGES else take_nothing

    # Called by the link.

    def received(self, n: int, now: float) -> list[Event]:
        """Process n bytes, received into `buffer()` and `ahead()`; return the events, in order. Never raises.

        Whole messages go to `Session.arrived`, and acknowledged ones are settled, without an event.
        """
        events: list[Event] = []
        if self.closed:
            return events  # sent before the peer received our FIN
        self._last_received, self._probed = now, None
        if self.session is not None and self.open:
            self.session.confirmed = True
        try:
            for frame in self._reader.advance(n):
                if frame.kind is FrameKind.MSG:
                    self._session.received(frame)
                else:
                    _HANDLE[frame.kind](self, frame, events)
                if self.closed:
                    break
        except (ProtocolError, MemoryError) as error:
            self._reader.reset()  # ignore all that follows
            self._lose(error, events)
        if self.session is not None and self.session.closing:
            self._finish(events)
        return events

    @property
    def owes(self) -> bool:
        """Whether something could be sent now."""
        session = self.session
        if self._control or self._ping_to_answer is not None:
            return True
        return session is not None and (bool(session.owed) or session.ready)

    def feed(self, packet: memoryview, now: float) -> list[Event]:
        """Process a packet in the link's own memory; return the events, as `received` does."""
        events: list[Event] = []
        while packet and not self.closed:
            buffer = self.buffer()
            n = min(len(buffer), len(packet))
            buffer[:n] = packet[:n]
            packet = packet[n:]
            events += self.received(n, now)
        return events

    def to_send(self, limit: int, now: float) -> list[Buffer]:
        """Return the next bytes to send, about `limit`; an empty list if there are none."""
        # Control frames first, then ACKs, then messages: an ACK that waits behind a large body would stall the peer.
        out: list[Buffer | Part] = []
        if self._control:
            out += self._control
            self._control = []
        session, parts = self.session, False
        if session is not None and self.open:
            if self._ping_to_answer is not None:
                out.append(Frame(FrameKind.PING, ANSWER, number=self._ping_to_answer).header())
                self._ping_to_answer = None
            if session.owed:
                session.acknowledge(out)
            if session.closing and not self._leaving_sent and session.blocked:
                self._leaving_sent = True
                out.append(self._ping(now, LEAVING))
            parts = session.frames(out, limit, limit if self._is_block is None else SMALL)
        if out:
            self._last_sent = now
        if not parts:
            return cast(list[Buffer], out)
        pieces: list[Buffer | Part] = []
        for piece in out:
            if isinstance(piece, Part) and (self._is_block is None or not self._is_block(piece)):
                pieces += piece.buffers()
            else:
                pieces.append(piece)
        return cast(list[Buffer], pieces)

    def pieces(self, limit: int, now: float, is_block: Callable[[Part], bool]) -> list[Buffer | Part]:
        """Do as `to_send`, but return the bodies that `is_block` accepts as Parts.

        For a link that can send one packet to several peers: a Part is the same for all of them.
        """
        self._is_block = is_block
        pieces = cast(list[Buffer | Part], self.to_send(limit, now))
        self._is_block = None  # it refers to the link, which refers to this connection: no cycle is to stay
        return pieces

    def deadline(self) -> float:
        """Return when `tick` must be called, if nothing is received or sent before."""
        if self.open:
            return min(self._silence_ends, self._last_sent + self._options.heartbeat)
        return math.inf if self.closed else self._created + self._timeout

    def tick(self, now: float) -> list[Event]:
        """Send a PING or give the link up, if it is time for that. With a PING, free memory for received bytes."""
        events: list[Event] = []
        if self.open:
            late = now - self.deadline()
            if late > max(_BUSY, self._options.heartbeat):  # this process stood still: the silence begins anew
                self._last_received = now
                self._probed = None if self._probed is None else now
            if now >= self._silence_ends:
                self._lose(TimeoutError(f"nothing heard for {now - self._last_received:.1f} s"), events)
            elif now >= self._last_sent + self._options.heartbeat:
                self._control.append(self._ping(now))
                self._reader.trim()
        elif now >= self.deadline():
            self._lose(TimeoutError(f"no greeting within {self._timeout:g} s"), events)
        return events

    def probe(self, now: float) -> None:
        """Send a PING, and give the link up unless something is received soon; `deadline` moves."""
        if self.open and self._probed is None:
            self._probed = now
            self._control.append(self._ping(now))

    def close(self) -> list[Event]:
        """Send what is queued, then FIN."""
        events: list[Event] = []
        if self.state is State.OPEN:
            self.state = State.CLOSING
        self._finish(events)
        return events

    # The server's answer to Hello.

    def accept(self, session: Session, greeting: Greeting, *, resumed: bool, now: float) -> list[Event]:
        """Open the connection with this session. If the link was lost meanwhile, the session is unchanged."""
        if self.closed:
            return [Lost(ConnectionResetError("the link was lost before its greeting was answered"))]
        self.session = session
        self._last_received = now
        events: list[Event] = []
        try:
            resumes = resumed and session.can_resume(greeting)
            self._open(greeting, greeting.epoch + 1, events, resumed=resumes, known=resumed)
        except ProtocolError as error:
            self._lose(error, events)
        else:
            self._control.append(session.greeting(self._id, resume=resumes).frame().whole())
        self._finish(events)
        return events

    def refuse(self, code: Code, reason: str) -> None:
        """End the link with a FIN that gives the reason. The caller flushes the link, then closes it."""
        self.detach()
        body = reason.encode()[:REASON]
        self._control = [Frame(FrameKind.FIN, length=len(body), number=code, body=body).whole()]

    @property
    def arriving(self) -> int:
        """Bytes received of the frame of a message that is being received. In the loop of the link."""
        frame, got = self._reader.incomplete or (None, 0)
        return got if frame is not None and frame.kind is FrameKind.MSG else 0

    def move_out(self, receiver: Receiver) -> list[Event]:
        """Receive the rest of a message elsewhere than in the memory that a user has lent; return the events.

        What has arrived counts as a frame. Without memory for it the link is lost, and the message begins again.
        """
        events: list[Event] = []
        frame, got = self._reader.incomplete or (None, 0)
        try:
            if frame is None or frame.kind is not FrameKind.MSG or frame.lane != receiver.lane:
                receiver.move_out()
            else:
                receiver.interrupted(got)
                receiver.move_out()
                self._reader.place_rest()
        except MemoryError as error:
            self._reader.reset()
            self._lose(error, events)
            receiver.evict()
        return events

    def detach(self) -> None:
        """The link is gone: pass what was received of a message to the session."""
        if self.session is not None and not self.closed:
            frame, got = self._reader.incomplete or (None, 0)
            if self.open and frame is not None and frame.kind is FrameKind.MSG:
                self.session.interrupted(frame, got)
            self.session.pause()
        self._reader.reset()
        self.state = State.CLOSED

    # Frames.

    def _place(self, frame: Frame) -> memoryview:
        if frame.kind is not FrameKind.MSG or self._state not in _MESSAGES:
            return self._place_rare(frame)
        if frame.value > self._options.message_size:
            raise ProtocolError(f"a message of {frame.value} bytes; message_size is {self._options.message_size}")
        return self._session.place(frame)

    def _place_rare(self, frame: Frame) -> memoryview:
        # The order of the checks gives the most useful error: illegal in this state, then its lane, then its length.
        least, most = LENGTH[frame.kind]
        if not self._is_legal(frame.kind):
            raise ProtocolError(f"{frame.kind.name} in state {self.state.name}")
        if frame.lane and frame.kind in _WITHOUT_LANE:
            raise ProtocolError(f"{frame.kind.name} in lane {frame.lane}; expected lane 0")
        if not least <= frame.length <= most:
            raise ProtocolError(f"{frame.kind.name} of {frame.length} bytes; expected {least} to {most}")
        return memoryview(bytearray(frame.length))

    def _is_legal(self, kind: FrameKind) -> bool:
        to_a_server = kind is FrameKind.FIN and self.session is None  # it has no session before INI
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
        """Resume or begin the session. `known`: the user has seen this session before, so it is no new one for them."""
        session = self._session
        if resumed:
            session.resume(greeting)
            events.append(Opened(session, resumed=True))
        else:
            events += [Failed(message, None) for message in (session.restart() if session.begun else ())]
            events.append(Opened(session, resumed=known))
            events += [Failed(message, error) for message, error in session.begin(greeting, epoch)]
        self._timeout = max(self._options.heartbeat, min(greeting.heartbeat / 1000, 3600.0)) * self._options.misses
        self.state = State.CLOSING if session.closing else State.OPEN

    def _on_ack(self, frame: Frame, events: list[Event]) -> None:
        self._session.acked(frame)

    def _on_drop(self, frame: Frame, events: list[Event]) -> None:
        self._session.dropped(frame)

    def _on_ping(self, frame: Frame, events: list[Event]) -> None:
        if frame.flags == ANSWER:
            seconds = self._last_received - self._created - frame.number / _NANOSECONDS
            if seconds >= 0:  # otherwise we never sent this number
                self._session.round_trip = seconds
            return
        self._ping_to_answer = frame.number
        if frame.flags == LEAVING:
            self._session.peer_leaves()

    def _on_fin(self, frame: Frame, events: list[Event]) -> None:
        if frame.number != Code.DONE:
            self._refused(frame, events)
        elif self.state in (State.OPENING, State.ENDING) or frame.length:
            raise ProtocolError(f"FIN with code 0 and {frame.length} bytes in state {self.state.name}")
        else:
            self._session.peer_closed = True
            self.state = State.CLOSED if self._fin_sent else State.ENDING
            events.append(Finished(self._session, over=self._fin_sent))

    def _refused(self, frame: Frame, events: list[Event]) -> None:
        if frame.number not in (Code.REFUSED, Code.SUPERSEDED, Code.OVER):
            raise ProtocolError(f"FIN with code {frame.number}")
        reason = printable(bytes(frame.body).decode(errors="replace"))
        over = frame.number == Code.OVER
        error = (reason or "it has closed") if over else f"the peer refuses: {reason}"
        self._lose(ConnectionRefusedError(error), events, Code(frame.number))

    def _finish(self, events: list[Event]) -> None:
        """Send FIN once all our messages are acknowledged."""
        session = self.session
        if session is None or not session.closing or self._fin_sent or session.queued or not self.open:
            return
        self._fin_sent = True
        self._control.append(Frame(FrameKind.FIN).header())
        if self.state is State.ENDING:
            self.state = State.CLOSED
            events.append(Finished(session, over=True))

    def _ping(self, now: float, flags: int = 0) -> bytes:
        """Return a PING that carries the time as its number.

        The answer repeats the number. So each answer is measured from its own PING, even if several are under way, and
        no list of them is needed.
        """
        self._last_sent = now
        return Frame(FrameKind.PING, flags, number=int((now - self._created) * _NANOSECONDS)).header()

    @property
    def _silence_ends(self) -> float:
        """The time at which the link is lost, if nothing is received before."""
        ends = self._last_received + self._timeout
        return ends if self._probed is None else min(ends, self._probed + _PROBE_TIMEOUT)

    def _lose(self, error: Exception, events: list[Event], code: Code = Code.DONE) -> None:
        self.detach()
        events.append(Lost(strip_tracebacks(error), code))

    @property
    def _session(self) -> Session:
        assert self.session is not None  # LEGAL admits no frame that needs a session before INI
        return self.session


_OPEN = frozenset({State.OPEN, State.CLOSING, State.ENDING})
_HANDLE = {
    FrameKind.INI: Connection._on_ini,
    FrameKind.ACK: Connection._on_ack,
    FrameKind.DROP: Connection._on_drop,
    FrameKind.PING: Connection._on_ping,
    FrameKind.FIN: Connection._on_fin,
}
