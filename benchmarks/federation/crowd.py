"""Many clients of fl in one thread, on netq's protocol without its threads: so they cost little beside their server.

Used by benchmarks/federation/many.py. Each client has a connection and a session of its own; one selector watches all
sockets. A client introduces itself, adds 1 to each model, offers the update, and sends it when it may.
"""

from __future__ import annotations

import selectors
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.federation import work
from fl.envelope import End, Introduction, Offer, Permit
from fl.messages import MESSAGES, Reply, Task, Update
from netq.io.sockets import tune, wrap
from netq.options import ConnectionOptions
from netq.protocol.codec import Outgoing
from netq.protocol.connection import Connection
from netq.protocol.events import Finished, Lost, Opened
from netq.protocol.memory import Memory
from netq.protocol.session import Session
from netq.security.tls import Tls
from netq.utils.secret import new_token
from netq.utils.stream import Stream

_AT_ONCE = 64  # clients that connect at a time
_LOOK = 0.5  # seconds between looks at the heartbeats
_BATCH = 2**20  # bytes that are taken from a session at once
_OPTIONS, _MEMORY = ConnectionOptions(), Memory()
_SELECTOR = selectors.DefaultSelector()


def run(port: int, count: int, tls: Callable[[], Tls] | None = None) -> None:
    """Run so many clients until the server has ended their federation."""
    clients: list[_Client] = []
    left, next_look = count, 0.0
    while left:
        opening = sum(not each.is_open for each in clients[-_AT_ONCE:])
        more = min(_AT_ONCE - opening, count - len(clients))
        clients += [_Client(port, tls) for _ in range(more)]
        for key, _ in _SELECTOR.select(0.01 if len(clients) < count else _LOOK):
            left -= key.data.go_on()
        if (now := time.monotonic()) >= next_look:
            next_look = now + _LOOK
            for each in clients:
                each.tick(now)


class _Client:
    def __init__(self, port: int, tls: Callable[[], Tls] | None) -> None:
        self._port, self._tls, self._id = port, tls, uuid.uuid4()
        self._session = Session(new_token(), _OPTIONS, _MEMORY)
        self._reply: Stream | None = None  # waits for its permit
        self._put(Introduction({}))
        self._connect()

    def _connect(self) -> None:
        """Connect, for the first time or again: the session goes on."""
        self.is_open = False
        self._sock = socket.create_connection(("127.0.0.1", self._port))
        tune(self._sock)
        self._stream = wrap(self._sock, self._tls)
        self._connection = Connection(self._id, _OPTIONS, time.monotonic(), self._session)
        self._unsent: list[memoryview] = []
        self._events = selectors.EVENT_READ
        _SELECTOR.register(self._sock, self._events, self)
        self._flush()

    def _reconnect(self) -> None:
        self._connection.detach()
        _SELECTOR.unregister(self._sock)
        self._sock.close()
        self._connect()

    def go_on(self) -> bool:
        """Receive, answer and send. Return whether the federation is over."""
        is_over = self._receive()
        self._flush()
        if is_over:
            _SELECTOR.unregister(self._sock)
            self._sock.close()
        return is_over

    def tick(self, now: float) -> None:
        """Send a heartbeat, if it is time for that."""
        if self.is_open and now >= self._connection.deadline():
            self._expect(self._connection.tick(now))
            self._flush()

    def _receive(self) -> bool:
        connection, stream, is_over = self._connection, self._stream, False
        while not is_over:
            try:
                got = stream.recv_into(connection.buffer(), connection.ahead())
            except BlockingIOError:
                break
            self._expect(connection.received(got, time.monotonic()))
            while self._session.arrived:
                _, data, receiver, mark = self._session.arrived.popleft()
                is_over |= self._handle(MESSAGES.load(data if isinstance(data, Stream) else Stream([data])))
                receiver.taken_room = mark
                self._session.release_room(receiver)
            if not stream.more or connection is not self._connection:
                break
        return is_over

    def _expect(self, events: Iterable[object]) -> None:
        for event in events:
            assert not isinstance(event, Finished), event
            self.is_open |= isinstance(event, Opened)
            if isinstance(event, Lost):  # a server lets others go first, for example
                self._reconnect()

    def _handle(self, message: Any) -> bool:
        """Answer a message. Return whether it is the end."""
        match message:
            case Task(job, _, _, unasked):
                model: Any = message.model
                work.train(model)
                update = Update(model, 1)
                self._reply = MESSAGES.dump(Reply(job, update))
                if update.nbytes > unasked:
                    self._put(Offer(job, update.nbytes))
                    return False
                self._put(self._reply)
            case Permit():
                assert self._reply is not None
                self._put(self._reply)
                self._reply = None
        return isinstance(message, End)

    def _put(self, message: Any) -> None:
        data = message if isinstance(message, Stream) else MESSAGES.dump(message)
        self._session.outbox.append(Outgoing(data))

    def _flush(self) -> None:
        stream = self._stream
        while stream.push():
            if not self._unsent:
                buffers = self._connection.to_send(_BATCH, time.monotonic())
                self._unsent = [memoryview(buffer) for buffer in buffers if len(buffer)]
            if not self._unsent:
                break
            sent = stream.send(self._unsent)
            while sent:
                first = self._unsent[0].nbytes
                self._unsent[:1] = [self._unsent[0][sent:]] if sent < first else []
                sent -= min(sent, first)
            if stream.blocked:
                break
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if stream.blocked else 0)
        if events != self._events:
            self._events = events
            _SELECTOR.modify(self._sock, events, self)
