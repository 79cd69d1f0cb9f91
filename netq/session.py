"""The conversation with one peer: numbering, chunks, acknowledgement, cancelling, the window, lanes, resuming.

A session outlives connections. Pure: no socket, no clock, no thread; owned by one loop. What it owes the peer
comes out of `acks` and `chunks`; what the peer owes it comes in by `place`, `received`, `acked`, `dropped`.

    new ──put──► queued ──chunk──► sent ──acked──► gone          a message, seen by its sender
                   └────cancel────► dropped ──acked──► gone
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator

from netq.budget import CREDIT
from netq.errors import MessageTooLarge, NetqError, ProtocolError, QueueFull
from netq.lane import Outgoing, Part, Receiver, Sender
from netq.memory import Memory
from netq.options import ConnectionOptions
from netq.utils.stream import Stream
from netq.wire import HEADER_SIZE, LANES, Cursor, Frame, Greeting, Kind

_EPOCHS = 2**32 - 1  # they go round, from 1
_HALF = _EPOCHS // 2


def following(epoch: int) -> int:
    """Return the epoch in which a server begins a session that the client has known in `epoch`; never 0."""
    return epoch % _EPOCHS + 1


class Session:
    """What two peers have said to each other, and have yet to say."""

    def __init__(self, token: bytes, options: ConnectionOptions, memory: Memory) -> None:
        self.token = token
        self.peer: uuid.UUID | None = None  # a client learns it from the first INI
        self.closing = False  # we shall send no more
        self.peer_closed = False  # the peer has said FIN
        self.peer_leaving = False  # its user has closed: it has nothing more to send than what was put before
        self.begun = False  # the peer has known it
        self.epoch = 0  # how often it has begun: a server that forgot it begins it again
        self.confirmed = False  # something has come from the peer in this epoch: a client has heard of it
        self.wake: Callable[[], object] = lambda: None  # an ACK is due, though nothing has come
        self._options = options
        self._memory = memory
        self._senders: dict[int, Sender] = {}
        self._receivers: dict[int, Receiver] = {}
        self._peer_size = 2**62  # what the peer takes, until it says
        self._peer_credit = 0
        self._acks: dict[int, Receiver] = {}  # whose peer is owed an ACK
        self._turn = 0  # the lane that sent last

    # What the user wants sent.

    def put(self, message: Outgoing) -> Outgoing | None:
        """Queue a message; return the one that is dropped for it, if `drop_oldest` asks for that.

        Raises QueueFull or MessageTooLarge, and then has not touched it.
        """
        options = self._options
        if not options.drop_oldest and self.queued >= options.queue_size:
            raise QueueFull(self.peer, options.queue_size)
        if message.size > self._peer_size:
            raise MessageTooLarge(self.peer, message.size, self._peer_size)
        sender = self._senders[message.lane] = self._sender(message.lane)
        dropped = sender.drop_oldest(options.queue_size) if options.drop_oldest else None
        sender.put(message)
        return dropped

    @property
    def queued(self) -> int:
        """Messages that are not acknowledged."""
        return sum(map(len, self._senders.values()))

    @property
    def due(self) -> bool:
        """Whether a message waits that somebody still wants delivered."""
        return any(not message.cancelled for sender in self._senders.values() for message in sender)

    @property
    def stuck(self) -> bool:
        """Whether a message waits for the peer to widen its window."""
        return any(sender.stuck for sender in self._senders.values())

    def chunks(self, limit: int) -> Iterator[tuple[bytes, Part | None]]:
        """Yield frames of messages, header and body, of some `limit` bytes in all; the lanes take turns."""
        grid = min(limit, self._options.transport_size)
        turns = self._turns()
        while limit > 0 and turns:
            sender = turns.popleft()
            self._turn = sender.lane
            header, body = sender.chunk(min(limit, grid), grid)
            limit -= HEADER_SIZE + (body.size if body else 0)
            yield header, body
            if sender.ready:
                turns.append(sender)

    def abandon(self) -> list[Outgoing]:
        """Forget all that is not acknowledged, and return it; and what has begun to come."""
        gone = [message for sender in self._senders.values() for message in sender]
        for receiver in self._receivers.values():
            receiver.retire()
        self._senders.clear()
        self._receivers.clear()
        self._acks.clear()
        return gone

    def withdraw(self, message: Outgoing) -> None:
        """Take a cancelled message out, if no byte of it has left; if some have, the peer will be told to forget it."""
        sender = self._senders.get(message.lane)
        if sender is not None:
            sender.remove(message)

    def close(self) -> None:
        """Put no more."""
        self.closing = True
        self._drain_if_both_close()

    def peer_leaves(self) -> None:
        """The peer's user has closed: what it still sends was put before."""
        self.peer_leaving = True
        self._drain_if_both_close()

    def _drain_if_both_close(self) -> None:
        """Take all that the peer still has, whatever the window: else each side would wait for a reader of the other.

        A side that closes while its peer goes on keeps to its window: what the peer may yet put has no bound.
        """
        if self.closing and self.peer_leaving:
            for lane, receiver in self._receivers.items():
                receiver.drain()
                self._acks[lane] = receiver

    # What the peer says of what it holds.

    def acked(self, frame: Frame) -> list[Outgoing]:
        """Return the messages that an ACK acknowledges."""
        sender = self._senders[frame.lane] = self._sender(frame.lane)
        gone = sender.acked(frame.number)
        sender.limit = max(sender.limit, frame.value)
        return gone

    # What the peer sends.

    @property
    def arriving(self) -> int:
        """Bytes of messages that have begun to come, and are not whole."""
        return sum(receiver.partial for receiver in self._receivers.values())

    def place(self, frame: Frame, source: Memory | None = None) -> memoryview:
        """Return the memory for the body of a MSG, which may begin in the link's own; raises ProtocolError."""
        receiver = self._receiver(frame.lane)
        body = receiver.place(frame, source)
        if receiver.grant_due:
            self._acks[frame.lane] = receiver
        return body

    def received(self, frame: Frame) -> tuple[Receiver, Stream] | None:
        """Return the message that the body of a MSG completes, if it does, and what to tell when it is taken."""
        receiver = self._receivers[frame.lane]
        stream = receiver.received(frame.length)
        if stream is None:
            return None
        self._acks[frame.lane] = receiver
        return receiver, stream

    def pause(self) -> None:
        """The link is lost."""
        for receiver in self._receivers.values():
            receiver.pause()

    def leave(self) -> None:
        """It has been lost for a while: what it was allowed to bring is for others."""
        for receiver in self._receivers.values():
            receiver.leave()

    def interrupted(self, frame: Frame, length: int) -> None:
        """Keep the bytes of a body that came before its link was lost."""
        self._receivers[frame.lane].interrupted(length)

    def dropped(self, frame: Frame) -> None:
        """Forget the message that the peer has cancelled."""
        receiver = self._receiver(frame.lane)
        receiver.dropped(frame)
        self._acks[frame.lane] = receiver

    def taken(self, receiver: Receiver, cost: int) -> bool:
        """Give room back that the user has freed by taking messages (see Receiver); return whether to tell the peer."""
        receiver.taken(cost)
        if self._receivers.get(receiver.lane) is not receiver or not receiver.grant_due:
            return False
        self._acks[receiver.lane] = receiver
        return True

    def acks(self) -> list[Frame]:
        """Return the ACKs that are due, one a lane, and count them as said."""
        if not self._acks:
            return []
        cursors = [receiver.cursor for receiver in self._acks.values()]
        self._acks.clear()
        return [Frame(Kind.ACK, lane=c.lane, number=c.held, value=c.limit) for c in cursors]

    def said(self, flags: int) -> Frame:
        """Return an ACK of lane 0, whether or not it is due: the answer to a PING."""
        self._acks.pop(0, None)
        cursor = self._receiver(0).cursor
        return Frame(Kind.ACK, flags, number=cursor.held, value=cursor.limit)

    # Beginning, and beginning again.

    def greeting(self, id: uuid.UUID, *, resume: bool) -> Greeting:
        """Return what our INI says."""
        options = self._options
        for receiver in self._receivers.values():
            receiver.resume()
        cursors = tuple(self._receivers[lane].cursor for lane in sorted(self._receivers))
        self._acks.clear()
        credit, heartbeat = min(options.window, CREDIT), int(options.heartbeat * 1000)
        return Greeting(id, self.token, options.message_size, credit, heartbeat, cursors, resume, self.epoch)

    def begin(self, greeting: Greeting, epoch: int) -> list[tuple[Outgoing, NetqError]]:
        """Start with a peer that does not know the session. Return the messages that cannot be sent, and why."""
        self.epoch = epoch  # before `begun`: another thread may ask `elsewhere`
        self.confirmed = False
        self._hear(greeting)
        for sender in self._senders.values():
            sender.limit = greeting.credit
        return self._reject()

    def heard(self, greeting: Greeting) -> bool:
        """Return whether the client has heard of the beginning of this session; raises ProtocolError.

        If not, our INI was lost: then nothing that we sent has been received, and all will be sent again.
        """
        if self.late(greeting) or self.elsewhere(greeting):
            raise ProtocolError(f"the client goes on with epoch {greeting.epoch} of a session in epoch {self.epoch}")
        if greeting.epoch == self.epoch:
            self.confirmed = True
            return True
        for sender in self._senders.values():
            sender.rewind()
        return False

    def elsewhere(self, greeting: Greeting) -> bool:
        """Return whether the client has begun this session with another server since, so that it is over here.

        A client's epoch never falls, and each beginning raises it. So who says a later one than ours has given up ours,
        on whatever link it says so, and a link of ours that seems alive is one that it has left. May be asked in any
        thread: a server's session keeps its epoch.
        """
        return self.begun and 0 < self._ahead(greeting) < _HALF

    def late(self, greeting: Greeting) -> bool:
        """Return whether an INI was on its way for so long that its client has gone on since: it must change nothing.

        That of an epoch before ours is, unless it is the last before and nothing has come in ours: then our INI may
        have been lost.
        """
        if not self.begun or not self._ahead(greeting) or self.elsewhere(greeting):
            return False
        return self.confirmed or following(greeting.epoch) != self.epoch

    def _ahead(self, greeting: Greeting) -> int:
        """How many beginnings after ours the client's epoch is, going round; 0 is before all."""
        return (greeting.epoch - self.epoch) % _EPOCHS if greeting.epoch else _EPOCHS - 1

    def resume(self, greeting: Greeting) -> list[Outgoing]:
        """Go on where the peer says it stands. Return what it acknowledges; raises ProtocolError."""
        if self.peer not in (None, greeting.id) or greeting.epoch != self.epoch:
            theirs, ours = (greeting.id, greeting.epoch), (self.peer, self.epoch)
            raise ProtocolError("{}, epoch {}, goes on with a session of {}, epoch {}".format(*theirs, *ours))
        stands = {lane: Cursor(lane, 0, 0, greeting.credit) for lane in self._senders}
        stands |= {cursor.lane: cursor for cursor in greeting.cursors}
        for lane, cursor in stands.items():  # all, before anything is believed
            self._sender(lane).check(cursor)
        self._senders |= {lane: self._sender(lane) for lane in stands}  # a limit that is told is kept
        self._hear(greeting)
        return [message for lane, sender in self._senders.items() for message in sender.resume(stands[lane])]

    def restart(self) -> list[Outgoing]:
        """Begin anew: the peer has forgotten us. Return the messages that had begun to travel: nobody can know
        whether they arrived. Those that had not are queued again, in order.
        """
        unsent = [message for sender in self._senders.values() for message in sender.unsent()]
        kept = set(unsent)
        lost = [message for message in self.abandon() if message not in kept and not message.cancelled]
        self.begun = self.peer_closed = self.peer_leaving = False
        self._peer_size = 2**62
        for message in unsent:
            sender = self._senders[message.lane] = self._sender(message.lane)
            sender.put(message)
        return lost

    def _hear(self, greeting: Greeting) -> None:
        self.peer = greeting.id
        self.begun = True
        self._peer_size = greeting.message_size
        self._peer_credit = greeting.credit

    def _reject(self) -> list[tuple[Outgoing, NetqError]]:
        rejected: list[tuple[Outgoing, NetqError]] = []
        for message in [message for sender in self._senders.values() for message in sender]:
            if message.size > self._peer_size and message.claim():
                message.cancel()
                rejected.append((message, MessageTooLarge(self.peer, message.size, self._peer_size)))
        return rejected

    def _sender(self, lane: int) -> Sender:
        sender = self._senders.get(lane)
        return Sender(lane, self._peer_credit) if sender is None else sender

    def _receiver(self, lane: int) -> Receiver:
        receiver = self._receivers.get(lane)
        if receiver is None:
            options = self._options
            receiver = Receiver(lane, options.window, self._memory, merge=options.get_merge, grown=self._grown)
            self._receivers[lane] = receiver
            if self.closing and self.peer_leaving:
                receiver.drain()
        return receiver

    def _grown(self, receiver: Receiver) -> None:
        self._acks[receiver.lane] = receiver
        self.wake()

    def _turns(self) -> deque[Sender]:
        """The lanes that have something to send, first the next one after the one that sent last."""
        ready = [sender for sender in self._senders.values() if sender.ready]
        if len(ready) > 1:
            ready.sort(key=lambda sender: (sender.lane - self._turn - 1) % LANES)
        return deque(ready)
