"""The session with one peer: lanes, acknowledgement, cancelling, flow control, resuming.

A session outlives its connections. Pure: no socket, no clock, no thread; owned by one loop. `acknowledge` and `frames`
return what must be sent. `take_small` receives frames on a short path: small whole messages and ACKs that are exactly
the next expected. `place`, `received`, `acked` and `dropped` receive all other frames. Whole messages go to `arrived`.

    new ──put──► waiting ──frames──► sent ──acked──► gone          a message, seen by its sender
                    │                  └──cancel──► dropped ──acked──► gone
                    └──cancel──► gone
"""

from __future__ import annotations

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
from netq.protocol.wire import ANY_LANE, HEADER_SIZE, LANES, OVERHEAD, UNORDERED, Cursor, Frame, Greeting, ack_header


class Session:
    """The state that both peers must agree on to resume after a lost link: one Sender and one Receiver per lane.

    It has more attributes than others. The codec uses them by name, and each step for a small message reads several of
    the groups below: an object for each group would cost a look-up for each of these reads.
    """

    def __init__(
        self, token: bytes, options: ConnectionOptions, memory: Memory, arrived: deque[Item] | None = None
    ) -> None:
        # Wiring. The owner replaces the three callbacks.
        self._options = options
        self._memory = memory
        self.wake: Callable[[], object] = lambda: None  # asks for a flush: an ACK is due, though nothing was received
        self.request_release: Callable[[Receiver], object] = lambda receiver: None  # calls `release_room`, in the loop
        self.is_awaited: Callable[[uuid.UUID], bool] = lambda peer: False  # whether a `get` waits for this peer
        # Identity: which peer, and which beginning of the session. From INI.
        self.token = token
        self.peer: uuid.UUID | None = None  # a client learns it from the first INI
        self.begun = False  # INIs have been exchanged at least once
        self.epoch = 0  # how often the session has begun: a server that has forgotten it begins it again
        self.confirmed = False  # the peer has sent something in this epoch, so it has received our INI
        self._peer_size = 2**62  # bytes: message_size of the peer's INI; no limit before that
        self._peer_credit = 0  # bytes: credit of the peer's INI
        # How far each side is on its way to the end.
        self.closing = False  # our user has closed: put refuses messages
        self.peer_leaving = False  # the peer's user has closed: the peer sends only what was put before
        self.peer_closed = False  # FIN has come from the peer
        self.ended = False  # the session is over
        self.is_held = False  # our user wants no message beyond the window now
        # Messages between users and lanes.
        self.outbox: deque[Outgoing] = deque()  # messages that `drain` will queue; any thread may append
        self.arrived: deque[Item] = deque() if arrived is None else arrived  # whole, and not taken by the user
        self.small = min(SMALL, options.message_size)  # bytes: the largest message that the short path receives
        # The lanes, by number, and which of them send next.
        self.senders: dict[int, Sender] = {}
        self.receivers: dict[int, Receiver] = {}
        self.owed: dict[int, Receiver] = {}  # lanes for which an ACK is due
        self._turn = 0  # the lane that sent last: the next one goes first
        self._advanced = -1  # the lane that `advance` chose last: the next one goes first
        self.unordered = UNORDERED[0]  # the lane of the last message without order
        self._unordered_room = 0  # bytes of the next ones that get it, too
        # Figures for `statistics()`. `restart` sets the counts to 0 again.
        self.messages_in = self.messages_out = self.bytes_in = self.bytes_out = 0
        self.round_trip: float | None = None  # seconds, of the last PING that was answered, on any link

    # Messages to send.

    def put(self, message: Outgoing) -> None:
        """Queue a message. If this raises Closed, QueueFull or MessageTooLarge, the message is unchanged."""
        options = self._options
        if message.lane == ANY_LANE:
            message.lane = self._free_lane(message.size)
        if self.closing or self.ended:
            raise Closed(self.peer)
        drops = options.drop_oldest and message.bounded
        if message.bounded and not drops:
            self._check_room(message)
        if message.size > self._peer_size:
            raise MessageTooLarge(self.peer, message.size, self._peer_size)
        sender = self.senders.get(message.lane)
        if sender is None:
            sender = self.senders[message.lane] = self._sender(message.lane)
        while drops and (oldest := sender.oldest()) and (limit := self._full_lane(sender, message)):
            oldest.fail(QueueFull(self.peer, limit, dropped=True))
            sender.drop_oldest()  # after `fail`: an interrupt in between must not lose it silently
        sender.put(message)

    def _free_lane(self, size: int) -> int:
        """Return the lane for a message without order: the one on which the least waits.

        Some SMALL bytes in a row get the same lane, if the peer takes them: those of one lane leave together.
        """
        limit, _ = self._sender(self.unordered).delay(size)
        if limit or self._unordered_room <= 0:
            self.unordered = min(UNORDERED, key=lambda lane: self._sender(lane).delay(size))
            self._unordered_room = SMALL
        self._unordered_room -= size + OVERHEAD
        return self.unordered

    def _check_room(self, message: Outgoing) -> None:
        """Raise QueueFull if one more message exceeds a limit."""
        options, sender = self._options, self.senders.get(message.lane)
        if self.queued >= options.queue_size:
            raise QueueFull(self.peer, f"{options.queue_size} messages (queue_size)")
        # The first of a lane always has a place: the others of its lane wait for it, and those of other lanes pass it.
        if sender is None or sender.oldest() is None:
            return
        if message.size > options.queue_bytes:
            raise QueueFull(self.peer, f"{options.queue_bytes} bytes (queue_bytes)", size=message.size)
        behind = self.bytes_behind
        if behind + message.size > options.queue_bytes:
            raise QueueFull(self.peer, f"{behind} of {options.queue_bytes} bytes (queue_bytes)")

    def _full_lane(self, sender: Sender, message: Outgoing) -> str:
        """Return which limit one more message exceeds, counting only what waits on its lane."""
        options = self._options
        if sender.waiting_count >= options.queue_size:
            return f"{options.queue_size} messages (queue_size)"
        if sender.waiting_bytes + message.size > options.queue_bytes:
            return f"{sender.waiting_bytes} of {options.queue_bytes} bytes (queue_bytes)"
        return ""

    def drain(self) -> None:
        """Queue the messages of the outbox."""
        # The first branch is `put` in place, for a lane that exists and a message that `put` would certainly accept.
        outbox, options = self.outbox, self._options
        if not outbox:
            return
        quick = not (self.closing or self.ended or options.drop_oldest)
        queued, room = self.queued, options.queue_bytes - self.bytes_behind
        while outbox:
            message = outbox[0]
            if message.lane == ANY_LANE:
                message.lane = self._free_lane(message.size)
            sender = self.senders.get(message.lane)
            if (
                quick
                and sender is not None
                and queued < options.queue_size
                and message.size <= room
                and message.size <= self._peer_size
                and not message.withdrawn
            ):
                message.waits = True
                sender.waiting.append(message)
                sender.waiting_bytes += message.size
                room -= message.size
            elif not message.withdrawn:
                try:
                    self.put(message)
                except (Closed, QueueFull, MessageTooLarge) as error:
                    message.fail(error)
            queued += 1
            outbox.popleft()

    def _takes_all(self) -> bool:
        """Whether the outbox is next to be sent, and `put` would accept its small messages."""
        queued = len(self.outbox)
        for sender in self.senders.values():
            if sender.waiting or sender.number < sender.next:
                return False
            queued += len(sender.sent)
        return queued <= self._options.queue_size and not (self.closing or self.ended or self._options.drop_oldest)

    @property
    def queued(self) -> int:
        """How many messages are not acknowledged; cancelled ones count once a byte of them has left."""
        return sum(map(len, self.senders.values()))

    @property
    def bytes_behind(self) -> int:
        """How many bytes wait, without the first message of each lane."""
        return sum([sender.bytes_behind for sender in self.senders.values()])

    @property
    def due(self) -> bool:
        """Whether the peer must still be sent a message, or the DROP of a cancelled message that has begun to travel.

        Without that DROP the peer would keep its part of the message until its session_timeout.
        """
        return bool(self.outbox) or self.queued > 0

    @property
    def blocked(self) -> bool:
        """Whether a message waits because the peer's window is full."""
        return any(sender.blocked for sender in self.senders.values())

    def frames(self, out: list[Buffer | Part], limit: int, whole: int) -> bool:
        """Append the next frames, about `limit` bytes; the lanes take turns. Return whether some bodies are Parts.

        Messages of up to `whole` bytes are not cut, where `limit` and `transport_size` allow that.
        """
        # Whole messages go straight from the outbox, up to the first of another lane, if no earlier ones wait. Those of
        # a single lane need no turns.
        grid = min(limit, self._options.transport_size)
        parts, whole = False, min(whole, grid, self._peer_size)
        if self.outbox and self._takes_all() and (first := self.senders.get(self.outbox[0].lane)) is not None:
            self._turn = first.lane
            limit -= codec.batch(first, out, whole, limit, self.outbox)
            if limit <= 0 or not self.outbox:
                return False
        self.drain()
        if len(self.senders) == 1:
            (only,) = self.senders.values()
            limit -= only.batch(out, whole, limit)
            if not only.waiting and only.number >= only.next:
                return False
        turns = self._turns()
        while limit > 0 and turns:
            sender = turns.popleft()
            self._turn = sender.lane
            if sent := sender.batch(out, whole, 1 if turns else limit):
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
        """Drop all messages, sent and received; return those that are not acknowledged."""
        self.drain()
        gone = [message for sender in self.senders.values() for message in sender]
        for message in gone:
            message.waits = False  # a message that was cancelled may be withdrawn later, and is in no queue then
        for receiver in self.receivers.values():
            receiver.retire()
        self.senders.clear()
        self.receivers.clear()
        self.owed.clear()
        return gone

    def withdraw(self, message: Outgoing) -> None:
        """Remove a cancelled message if no byte of it has left; otherwise `frames` will send a DROP."""
        sender = self.senders.get(message.lane)
        if sender is not None:
            sender.remove(message)

    def close(self) -> None:
        """Refuse further messages; those that are queued will still be sent."""
        self.drain()
        self.closing = True
        self._lift_limits_if_both_close()

    def peer_leaves(self) -> None:
        """Note that the peer's user has closed, so that the peer sends only what was put before."""
        self.peer_leaving = True
        self._lift_limits_if_both_close()

    def _lift_limits_if_both_close(self) -> None:
        """Lift the flow control of all lanes if both users have closed.

        Neither user reads any more then, so each side would wait for the other to free its window. What the peer still
        has is bounded, because nothing can be put after `close`. While only our side closes, the peer may put without
        bound, so its window stays.
        """
        if self.closing and self.peer_leaving:
            for lane, receiver in self.receivers.items():
                receiver.lift_limit()
                self.owed[lane] = receiver

    # Acknowledgements.

    def acked(self, frame: Frame) -> None:
        """Settle the messages that an ACK acknowledges."""
        sender = self.senders[frame.lane] = self._sender(frame.lane)
        self._count(*sender.acked(frame.number))
        sender.limit = max(sender.limit, frame.value)

    def _count(self, messages: int, size: int) -> None:
        self.messages_out += messages
        self.bytes_out += size

    # Messages from the peer.

    @property
    def arriving(self) -> int:
        """Bytes received of messages that are not whole yet, without the frame that is being received."""
        return sum(receiver.partial for receiver in self.receivers.values())

    @property
    def expected(self) -> int:
        """Bytes in all of messages that are not whole yet."""
        return sum(receiver.size for receiver in self.receivers.values() if receiver.parts)

    @property
    def untaken(self) -> int:
        """Bytes of whole messages that the user has not taken, with what each counts besides its own."""
        return sum(receiver.untaken for receiver in self.receivers.values())

    def take_small(self, data: memoryview, low: int, high: int) -> int:
        """Receive frames from `data[low:high]` on the short path; return where the rest begins.

        It stops at the first frame that is incomplete, that is neither a small whole message nor an ACK, or that is not
        exactly the next expected. `place` and the other methods receive that one, and refuse it if it is illegal.
        """
        return codec.take(self, data, low, high)

    def place(self, frame: Frame) -> memoryview:
        """Return the memory for the body of a MSG, or for the begin of it. Raises ProtocolError."""
        receiver = self._receiver(frame.lane)
        destination = self._memory.destination
        if destination is not None and not receiver.parts and destination.suits(self.peer, frame.value):
            self._memory.destination = None
            destination.begin(self.peer, frame.value)
            body = receiver.place(frame, destination)
        else:
            body = receiver.place(frame)
        # A message that the announced limit covers needs no ACK before it is whole.
        if receiver.start + receiver.size > receiver.announced and receiver.grant_due:
            self.owed[frame.lane] = receiver
        return body

    def received(self, frame: Frame) -> None:
        """Count the body of a MSG that is complete."""
        receiver = self.receivers[frame.lane]
        stream = receiver.received(frame.length)
        if stream is not None:
            assert self.peer is not None
            self.arrived.append(receiver.item(self.peer, stream))
            self.messages_in += 1
            self.bytes_in += stream.nbytes
            self.owed[frame.lane] = receiver

    def pause(self) -> None:
        """Note that the link is lost."""
        for receiver in self.receivers.values():
            receiver.pause()

    def reclaim(self) -> None:
        """Give the room that this session was granted to other peers: its link has been lost for a while."""
        for receiver in self.receivers.values():
            receiver.reclaim()

    def hold(self) -> None:
        """Take back the room that messages beyond the window were granted, and grant no more until `let_go`.

        The link must be lost: the peer learns its new limits from our next INI.
        """
        self.is_held = True
        for receiver in self.receivers.values():
            receiver.is_held = True
            receiver.reclaim()

    def let_go(self, *, connected: bool) -> None:
        """Grant room again."""
        self.is_held = False
        for receiver in self.receivers.values():
            receiver.is_held = False
            if connected:
                receiver.resume()

    def interrupted(self, frame: Frame, length: int) -> None:
        """Keep the first `length` bytes of a body whose link was lost."""
        self.receivers[frame.lane].interrupted(length)

    def dropped(self, frame: Frame) -> None:
        """Discard a message that the peer has cancelled."""
        receiver = self._receiver(frame.lane)
        receiver.dropped(frame)
        self.owed[frame.lane] = receiver
        self._advance_awaited()

    def release_room(self, receiver: Receiver) -> bool:
        """Reuse the room of messages that the user has taken; return whether an ACK is now due."""
        receiver.release_room()
        self._advance_awaited()
        if self.receivers.get(receiver.lane) is not receiver or not receiver.grant_due:
            return False
        self.owed[receiver.lane] = receiver
        return True

    @property
    def waits(self) -> bool:
        """Whether a message that has begun waits for the budget. In any thread."""
        return any(receiver.waits for receiver in list(self.receivers.values()))

    @property
    def is_stopped(self) -> bool:
        """Whether the peer can go on with none of the messages that it has begun: all wait for the budget.

        In any thread.
        """
        receivers = list(self.receivers.values())
        return any(each.waits for each in receivers) and all(each.waits for each in receivers if each.parts)

    def advance(self) -> None:
        """Let the peer complete a message beyond the budget, because a `get` waits for it: one at a time."""
        # A lane that has a share of the budget, and waits for no more, has a large message on its way or untaken: the
        # `get` gets that one. A lane that has a part of its message goes first, so that there is one part at most.
        lanes = self.receivers.values()
        waiting = [receiver for receiver in lanes if receiver.waits]
        if waiting and all(receiver.waits for receiver in lanes if receiver.claimed):
            last = self._advanced
            first = min(waiting, key=lambda receiver: (-receiver.claimed, (receiver.lane - last - 1) % LANES))
            self._advanced = first.lane
            first.go_beyond()

    def _advance_awaited(self) -> None:
        if self._memory.budget.is_short and self.peer is not None and self.is_awaited(self.peer):
            self.advance()

    @property
    def ready(self) -> bool:
        """Whether a message could be sent now."""
        return bool(self.outbox) or any(not sender.idle and sender.ready for sender in self.senders.values())

    def acknowledge(self, out: list[Buffer | Part]) -> None:
        """Append the ACKs that are due, one per lane, and count them as sent."""
        for lane, receiver in self.owed.items():
            out.append(ack_header(lane, receiver.held, receiver.announce_limit()))
        self.owed.clear()

    # Handshake.

    def greeting(self, id: uuid.UUID, *, resume: bool) -> Greeting:
        """Return the content of our INI."""
        options = self._options
        for receiver in self.receivers.values():
            receiver.resume()
        cursors = tuple(self.receivers[lane].cursor for lane in sorted(self.receivers))
        self.owed.clear()
        credit, heartbeat = min(options.window, CREDIT), int(options.heartbeat * 1000)
        return Greeting(id, self.token, options.message_size, credit, heartbeat, cursors, resume, self.epoch)

    def begin(self, greeting: Greeting, epoch: int) -> list[tuple[Outgoing, NetqError]]:
        """Begin the session with a peer that does not know it. Return the messages that cannot be sent, and why."""
        self.epoch = epoch  # before `begun`: another thread may call `restarted_elsewhere`
        self.confirmed = False
        self._apply(greeting)
        for sender in self.senders.values():
            sender.limit = greeting.credit
        return self._reject()

    def can_resume(self, greeting: Greeting) -> bool:
        """Return whether the client knows this epoch of the session. Raises ProtocolError.

        If it does not, our INI was lost. The client has then received nothing of this epoch, so all is sent again.
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
        """Return whether the client has begun this session again with another server, so that it is over here.

        A client's epoch never falls, and each beginning raises it. A higher epoch than ours therefore means that the
        client has given up our epoch, on whatever link the INI came. A link of ours that still seems alive is stale.
        Callable in any thread: a server's session keeps its epoch.
        """
        return self.begun and greeting.epoch > self.epoch

    def is_stale(self, greeting: Greeting) -> bool:
        """Return whether an INI was delayed for so long that its client has moved on: it must change nothing.

        An INI of an earlier epoch is stale. The one exception is the epoch just before ours while nothing has come in
        ours: then our INI may have been lost.
        """
        earliest = self.epoch if self.confirmed else self.epoch - 1
        return self.begun and greeting.epoch < earliest

    def resume(self, greeting: Greeting) -> None:
        """Continue from the peer's cursors, and settle the messages that it holds. Raises ProtocolError."""
        if self.peer not in (None, greeting.id) or greeting.epoch != self.epoch:
            theirs, ours = (greeting.id, greeting.epoch), (self.peer, self.epoch)
            raise ProtocolError("{}, epoch {}, goes on with a session of {}, epoch {}".format(*theirs, *ours))
        cursors = {lane: Cursor(lane, 0, 0, greeting.credit) for lane in self.senders}
        cursors |= {cursor.lane: cursor for cursor in greeting.cursors}
        for lane, cursor in cursors.items():  # check all before any of them changes a lane
            self._sender(lane).check(cursor)
        self.senders |= {lane: self._sender(lane) for lane in cursors}  # a lane without messages keeps its limit too
        self._apply(greeting)
        for lane, sender in self.senders.items():
            self._count(*sender.resume(cursors[lane]))

    def restart(self) -> list[Outgoing]:
        """Start over with a peer that has forgotten the session. Return the messages that had begun to travel.

        It is unknown whether those arrived. All others are queued again, in order.
        """
        self.drain()
        # The old server may have delivered a message of which a byte was sent. To send it again could deliver it twice,
        # so it fails instead, and the user decides.
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

    def _apply(self, greeting: Greeting) -> None:
        self.peer = greeting.id
        self.begun = True
        self._peer_size = greeting.message_size
        self._peer_credit = greeting.credit

    def _reject(self) -> list[tuple[Outgoing, NetqError]]:
        """Remove the messages that are larger than the peer takes; return them with their errors."""
        most = self._peer_size
        rejected = [message for sender in self.senders.values() for message in sender.remove_larger(most)]
        return [(message, MessageTooLarge(self.peer, message.size, most)) for message in rejected]

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
                on_wait=self._advance_awaited,
                on_grant=self._on_grant,
                request_release=self.request_release,
            )
            receiver.is_held = self.is_held
            self.receivers[lane] = receiver
            if self.closing and self.peer_leaving:
                receiver.lift_limit()
        return receiver

    def _on_grant(self, receiver: Receiver) -> None:
        self.owed[receiver.lane] = receiver
        self.wake()

    def _turns(self) -> deque[Sender]:
        """Return the lanes that can send, beginning with the next after the lane that sent last."""
        ready = [sender for sender in self.senders.values() if sender.ready]
        if len(ready) > 1:
            ready.sort(key=lambda sender: (sender.lane - self._turn - 1) % LANES)
        return deque(ready)
