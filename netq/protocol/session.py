"""The conversation with one peer: numbering, chunks, acknowledgement, cancelling, the window, lanes, resuming.

A session outlives connections. Pure: no socket, no clock, no thread; owned by one loop. What it owes the peer
comes out of `acknowledge` and `frames`; what the peer sends comes in by `take_small`, if it is small and just what is
expected, and otherwise by `place`, `received`, `acked`, `dropped`. Whole messages go to `arrived`.

    new ──put──► queued ──frames─► sent ──acked──► gone          a message, seen by its sender
                   └────cancel────► dropped ──acked──► gone
"""

from __future__ import annotations

import struct
import uuid
from collections import deque
from collections.abc import Callable

from netq.buffers import Buffer
from netq.errors import Closed, MessageTooLarge, NetqError, ProtocolError, QueueFull
from netq.options import ConnectionOptions
from netq.protocol import codec
from netq.protocol.codec import Outgoing
from netq.protocol.flow_control import CREDIT
from netq.protocol.memory import Memory
from netq.protocol.receiver import Item, Receiver
from netq.protocol.sender import SMALL, Part, Sender
from netq.protocol.wire import HEADER_SIZE, LANES, Cursor, Frame, Greeting

_pack = struct.Struct("<BBHIQQ").pack


class Session:
    """What two peers have said to each other, and have yet to say."""

    def __init__(
        self, token: bytes, options: ConnectionOptions, memory: Memory, arrived: deque[Item] | None = None
    ) -> None:
        self.token = token
        self.arrived: deque[Item] = deque() if arrived is None else arrived  # messages that are whole
        self.outbox: deque[Outgoing] = deque()  # messages that are put; any thread may append
        self.messages_in = self.messages_out = self.bytes_in = self.bytes_out = 0
        self.round_trip: float | None = None  # seconds, of the PING that was answered last, on any link
        self.peer: uuid.UUID | None = None  # a client learns it from the first INI
        self.closing = False  # we shall send no more
        self.peer_closed = False  # the peer has said FIN
        self.peer_leaving = False  # its user has closed: it has nothing more to send than what was put before
        self.begun = False  # the peer has known it
        self.ended = False  # nothing can be put any more
        self.epoch = 0  # how often it has begun: a server that forgot it begins it again
        self.confirmed = False  # something has come from the peer in this epoch: a client has heard of it
        self.wake: Callable[[], object] = lambda: None  # an ACK is due, though nothing has come
        self.request_release: Callable[[Receiver], object] = lambda receiver: None  # calls `release_room`, in the loop
        self._options = options
        self.small = min(SMALL, options.message_size)  # bytes of a message that may come in one step
        self._small_out = min(SMALL, options.transport_size)  # and of one that may leave so
        self._memory = memory
        self.senders: dict[int, Sender] = {}
        self.receivers: dict[int, Receiver] = {}
        self._peer_size = 2**62  # what the peer takes, until it says
        self._peer_credit = 0
        self.owed: dict[int, Receiver] = {}  # the lanes of which an ACK is due
        self._turn = 0  # the lane that sent last

    # What the user wants sent.

    def put(self, message: Outgoing) -> None:
        """Queue a message. Raises Closed, QueueFull or MessageTooLarge, and then has not touched it."""
        options = self._options
        if self.closing or self.ended:
            raise Closed(self.peer)
        if not options.drop_oldest and self.queued >= options.queue_size:
            raise QueueFull(self.peer, options.queue_size)
        if message.size > self._peer_size:
            raise MessageTooLarge(self.peer, message.size, self._peer_size)
        sender = self.senders.get(message.lane)
        if sender is None:
            sender = self.senders[message.lane] = self._sender(message.lane)
        if options.drop_oldest and (oldest := sender.oldest(options.queue_size)) is not None:
            oldest.fail(QueueFull(self.peer, options.queue_size, dropped=True))
            sender.drop_oldest(options.queue_size)  # last: an interrupted thread is not to lose it without a word
        sender.put(message)

    def drain(self) -> None:
        """Queue what is in the outbox."""
        outbox, quick = self.outbox, not (self.closing or self.ended or self._options.drop_oldest)
        most = self._options.queue_size
        while outbox:
            message = outbox[0]
            sender = self.senders.get(message.lane)
            if (
                quick
                and sender is not None
                and len(self.senders) == 1
                and len(sender.waiting) + len(sender.sent) < most
                and message.size <= self._peer_size
                and not message.withdrawn
            ):
                message.waits = True
                sender.waiting.append(message)
            elif not message.withdrawn:
                try:
                    self.put(message)
                except (Closed, QueueFull, MessageTooLarge) as error:
                    message.fail(error)
            outbox.popleft()

    def _takes_all(self, sender: Sender) -> bool:
        """Whether the messages in the outbox are the next to leave, and `put` would queue all that are small."""
        return (
            not sender.waiting
            and sender.number >= sender.next
            and len(self.outbox) + len(sender.sent) <= self._options.queue_size
            and self._peer_size >= self._small_out
            and not (self.closing or self.ended or self._options.drop_oldest)
        )

    @property
    def queued(self) -> int:
        """Messages that are not acknowledged."""
        return sum(map(len, self.senders.values()))

    @property
    def due(self) -> bool:
        """Whether the peer must still be sent a message, or the DROP of a cancelled message that has begun to travel.

        Without that DROP the peer would keep its part of the message until its session_timeout.
        """
        return bool(self.outbox) or self.queued > 0

    @property
    def blocked(self) -> bool:
        """Whether a message waits for the peer to widen its window."""
        return any(sender.blocked for sender in self.senders.values())

    def frames(self, out: list[Buffer | Part], limit: int) -> bool:
        """Append headers and bodies of messages, of some `limit` bytes in all; the lanes take turns. Return whether
        bodies are among them that are Parts.
        """
        parts = False
        if len(self.senders) == 1:
            (sender,) = self.senders.values()
            if self.outbox and self._takes_all(sender):
                limit -= codec.batch(sender, out, self._small_out, limit, self.outbox)
                if limit <= 0 or not self.outbox:
                    return False
            self.drain()
            limit -= sender.batch(out, self._small_out, limit)
            if not sender.waiting and sender.number >= sender.next:
                return False
        self.drain()
        grid = min(limit, self._options.transport_size)
        small = min(grid, SMALL)
        turns = self._turns()
        while limit > 0 and turns:
            sender = turns.popleft()
            self._turn = sender.lane
            if sent := sender.batch(out, small, 1 if turns else limit):
                limit -= sent
            else:
                header, body = sender.chunk(min(limit, grid), grid)
                limit -= HEADER_SIZE
                out.append(header)
                if body is not None:
                    limit -= body.size
                    out.append(body)
                    parts = True
            if sender.ready:
                turns.append(sender)
        return parts

    def abandon(self) -> list[Outgoing]:
        """Forget all that is not acknowledged, and return it; and what has begun to come."""
        self.drain()
        gone = [message for sender in self.senders.values() for message in sender]
        for receiver in self.receivers.values():
            receiver.retire()
        self.senders.clear()
        self.receivers.clear()
        self.owed.clear()
        return gone

    def withdraw(self, message: Outgoing) -> None:
        """Take a cancelled message out, if no byte of it has left; if some have, the peer will be told to forget it."""
        sender = self.senders.get(message.lane)
        if sender is not None:
            sender.remove(message)

    def close(self) -> None:
        """Put no more."""
        self.drain()
        self.closing = True
        self._lift_limits_if_both_close()

    def peer_leaves(self) -> None:
        """The peer's user has closed: what it still sends was put before."""
        self.peer_leaving = True
        self._lift_limits_if_both_close()

    def _lift_limits_if_both_close(self) -> None:
        """Take all that the peer still has, whatever the window: else each side would wait for a reader of the other.

        A side that closes while its peer goes on keeps to its window: what the peer may yet put has no bound.
        """
        if self.closing and self.peer_leaving:
            for lane, receiver in self.receivers.items():
                receiver.lift_limit()
                self.owed[lane] = receiver

    # What the peer says of what it holds.

    def acked(self, frame: Frame) -> None:
        """Settle the messages that an ACK acknowledges."""
        sender = self.senders[frame.lane] = self._sender(frame.lane)
        self._count(*sender.acked(frame.number))
        sender.limit = max(sender.limit, frame.value)

    def _count(self, messages: int, size: int) -> None:
        self.messages_out += messages
        self.bytes_out += size

    # What the peer sends.

    @property
    def arriving(self) -> int:
        """Bytes of messages that have begun to come, and are not whole."""
        return sum(receiver.partial for receiver in self.receivers.values())

    def take_small(self, data: memoryview, low: int, high: int) -> int:
        """Take the frames in `data[low:high]` up to the first that is not whole, or neither a small whole message nor
        an ACK, or not just what is expected; return where that begins: the rest is for `place` and the others.

        A user's thread may be interrupted anywhere in it by an exception. Messages are taken by one `extend`; if they
        are not counted after it, they come again, and `Receiver.consume` finds that out.
        """
        return codec.take(self, data, low, high)

    def place(self, frame: Frame, source: Memory | None = None) -> memoryview:
        """Return the memory for the body of a MSG, which may begin in the link's own; raises ProtocolError."""
        receiver = self._receiver(frame.lane)
        body = receiver.place(frame, source)
        if receiver.grant_due:
            self.owed[frame.lane] = receiver
        return body

    def received(self, frame: Frame) -> None:
        """Count the body of a MSG."""
        receiver = self.receivers[frame.lane]
        stream = receiver.received(frame.length)
        if stream is not None:
            assert self.peer is not None
            self.arrived.append(receiver.item(self.peer, stream))
            self.messages_in += 1
            self.bytes_in += stream.nbytes
            self.owed[frame.lane] = receiver

    def pause(self) -> None:
        """The link is lost."""
        for receiver in self.receivers.values():
            receiver.pause()

    def reclaim(self) -> None:
        """It has been lost for a while: what it was allowed to bring is for others."""
        for receiver in self.receivers.values():
            receiver.reclaim()

    def interrupted(self, frame: Frame, length: int) -> None:
        """Keep the bytes of a body that came before its link was lost."""
        self.receivers[frame.lane].interrupted(length)

    def dropped(self, frame: Frame) -> None:
        """Forget the message that the peer has cancelled."""
        receiver = self._receiver(frame.lane)
        receiver.dropped(frame)
        self.owed[frame.lane] = receiver

    def release_room(self, receiver: Receiver) -> bool:
        """Give room back that the user has freed by taking messages (see Receiver); return whether to tell the peer."""
        receiver.release_room()
        if self.receivers.get(receiver.lane) is not receiver or not receiver.grant_due:
            return False
        self.owed[receiver.lane] = receiver
        return True

    @property
    def ready(self) -> bool:
        """Whether a message could be sent now."""
        return bool(self.outbox) or any(not sender.idle and sender.ready for sender in self.senders.values())

    def acknowledge(self, out: list[Buffer | Part]) -> None:
        """Append the ACKs that are due, one a lane, and count them as said."""
        for lane, receiver in self.owed.items():
            out.append(_pack(3, 0, lane, 0, receiver.held, receiver.announce_limit()))
        self.owed.clear()

    # Beginning, and beginning again.

    def greeting(self, id: uuid.UUID, *, resume: bool) -> Greeting:
        """Return what our INI says."""
        options = self._options
        for receiver in self.receivers.values():
            receiver.resume()
        cursors = tuple(self.receivers[lane].cursor for lane in sorted(self.receivers))
        self.owed.clear()
        credit, heartbeat = min(options.window, CREDIT), int(options.heartbeat * 1000)
        return Greeting(id, self.token, options.message_size, credit, heartbeat, cursors, resume, self.epoch)

    def begin(self, greeting: Greeting, epoch: int) -> list[tuple[Outgoing, NetqError]]:
        """Start with a peer that does not know the session. Return the messages that cannot be sent, and why."""
        self.epoch = epoch  # before `begun`: another thread may ask `restarted_elsewhere`
        self.confirmed = False
        self._hear(greeting)
        for sender in self.senders.values():
            sender.limit = greeting.credit
        return self._reject()

    def can_resume(self, greeting: Greeting) -> bool:
        """Return whether the client has heard of the beginning of this session; raises ProtocolError.

        If not, our INI was lost: then nothing that we sent has been received, and all will be sent again.
        """
        if self.is_stale(greeting) or self.restarted_elsewhere(greeting):
            raise ProtocolError(f"the client goes on with epoch {greeting.epoch} of a session in epoch {self.epoch}")
        if greeting.epoch == self.epoch:
            self.confirmed = True
            return True
        for sender in self.senders.values():
            sender.rewind()
        return False

    def restarted_elsewhere(self, greeting: Greeting) -> bool:
        """Return whether the client has begun this session with another server since, so that it is over here.

        A client's epoch never falls, and each beginning raises it. So who says a later one than ours has given up ours,
        on whatever link it says so, and a link of ours that seems alive is one that it has left. May be asked in any
        thread: a server's session keeps its epoch.
        """
        return self.begun and greeting.epoch > self.epoch

    def is_stale(self, greeting: Greeting) -> bool:
        """Return whether an INI was on its way for so long that its client has gone on since: it must change nothing.

        That of an epoch before ours is, unless it is the last before and nothing has come in ours: then our INI may
        have been lost.
        """
        earliest = self.epoch if self.confirmed else self.epoch - 1
        return self.begun and greeting.epoch < earliest

    def resume(self, greeting: Greeting) -> None:
        """Go on where the peer says it stands, and settle what it holds; raises ProtocolError."""
        if self.peer not in (None, greeting.id) or greeting.epoch != self.epoch:
            theirs, ours = (greeting.id, greeting.epoch), (self.peer, self.epoch)
            raise ProtocolError("{}, epoch {}, goes on with a session of {}, epoch {}".format(*theirs, *ours))
        stands = {lane: Cursor(lane, 0, 0, greeting.credit) for lane in self.senders}
        stands |= {cursor.lane: cursor for cursor in greeting.cursors}
        for lane, cursor in stands.items():  # all, before anything is believed
            self._sender(lane).check(cursor)
        self.senders |= {lane: self._sender(lane) for lane in stands}  # a limit that is told is kept
        self._hear(greeting)
        for lane, sender in self.senders.items():
            self._count(*sender.resume(stands[lane]))

    def repair(self) -> None:
        """Put right what a user's thread left that was interrupted; its link is to be lost."""
        if self.outbox and self._sender(self.outbox[0].lane).ends_with(self.outbox[0]):
            self.outbox.popleft()
        if self.outbox:
            self.outbox[0].number, self.outbox[0].left = 0, False  # `batch` gives them before it takes the message
        for sender in self.senders.values():
            sender.repair()
        for receiver in self.receivers.values():
            receiver.repair()

    def restart(self) -> list[Outgoing]:
        """Begin anew: the peer has forgotten us. Return the messages that had begun to travel: nobody can know
        whether they arrived. Those that had not are queued again, in order.
        """
        self.drain()
        unsent = [message for sender in self.senders.values() for message in sender.unsent()]
        kept = set(unsent)
        lost = [message for message in self.abandon() if message not in kept and not message.withdrawn]
        self.begun = self.peer_closed = self.peer_leaving = False
        self._peer_size = 2**62
        self.messages_in = self.messages_out = self.bytes_in = self.bytes_out = 0
        for message in unsent:
            message.number = message.start = 0
            sender = self.senders[message.lane] = self._sender(message.lane)
            sender.put(message)
        return lost

    def _hear(self, greeting: Greeting) -> None:
        self.peer = greeting.id
        self.begun = True
        self._peer_size = greeting.message_size
        self._peer_credit = greeting.credit

    def _reject(self) -> list[tuple[Outgoing, NetqError]]:
        rejected: list[tuple[Outgoing, NetqError]] = []
        for message in [message for sender in self.senders.values() for message in sender]:
            if message.size > self._peer_size and not message.withdrawn:
                message.withdraw()
                self.withdraw(message)
                rejected.append((message, MessageTooLarge(self.peer, message.size, self._peer_size)))
        return rejected

    def _sender(self, lane: int) -> Sender:
        sender = self.senders.get(lane)
        return Sender(lane, self._peer_credit) if sender is None else sender

    def _receiver(self, lane: int) -> Receiver:
        receiver = self.receivers.get(lane)
        if receiver is None:
            options = self._options
            receiver = Receiver(
                lane,
                options.window,
                self._memory,
                merge=options.get_merge,
                on_grant=self._on_grant,
                request_release=self.request_release,
            )
            self.receivers[lane] = receiver
            if self.closing and self.peer_leaving:
                receiver.lift_limit()
        return receiver

    def _on_grant(self, receiver: Receiver) -> None:
        self.owed[receiver.lane] = receiver
        self.wake()

    def _turns(self) -> deque[Sender]:
        """The lanes that have something to send, first the next one after the one that sent last."""
        ready = [sender for sender in self.senders.values() if sender.ready]
        if len(ready) > 1:
            ready.sort(key=lambda sender: (sender.lane - self._turn - 1) % LANES)
        return deque(ready)
