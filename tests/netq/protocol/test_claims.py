"""Which link and which process gets a session, over TCP with hand-written frames. Mirrors no module.

Late INIs, clients that restart a session elsewhere, two processes with one id, and links that only seem alive.
"""

from __future__ import annotations

import dataclasses
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

import netq
from netq import Closed, NetworkLocation, Protocol
from netq.core import Communicator
from netq.options import EventOptions
from netq.protocol.wire import ANSWER, Code, Cursor, Frame, FrameKind, Greeting, Reader
from netq.runtime.peer import Peer
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy

MIB = 2**20
QUIET: dict[str, Any] = {"heartbeat": 60.0}  # seconds: no link is lost for silence during a test


@pytest.fixture
def communicators(proxies: Callable[[NetworkLocation], Proxy]) -> Iterator[Communicators]:
    with Communicators(lambda purpose, options: netq.new(Protocol.TCP, purpose, options)) as communicators:
        yield communicators


class Raw:
    """A link of a client, of which every frame is written by hand."""

    def __init__(self, netloc: NetworkLocation, greeting: Greeting) -> None:
        self._reader = Reader(lambda frame: memoryview(bytearray(frame.length)))
        self._frames: list[Frame] = []
        self._sock = socket.create_connection(netloc, LIMIT)
        self.send(greeting.frame())

    def send(self, frame: Frame) -> None:
        self._sock.sendall(frame.whole())

    def read(self, *kinds: FrameKind) -> Frame:
        """Return the next frame that is of these kinds."""
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if frame.kind in kinds:
                    return frame
            n = self._sock.recv_into(self._reader.buffer())
            assert n, "the link has ended"
            self._frames += self._reader.advance(n)

    def ends(self) -> str:
        """Return the reason of the FIN(REFUSED) that comes."""
        fin = self.read(FrameKind.FIN)
        assert fin.number == Code.REFUSED
        return bytes(fin.body).decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._sock.close()


def greeting_of(client: Communicator, epoch: int, *cursors: Cursor) -> Greeting:
    """What an INI of this client says, or has said, in an epoch."""
    return Greeting(client.id, only(client).session.token, 2**40, 2**18, 60_000, cursors, epoch > 0, epoch)


def stranger(epoch: int = 0) -> Greeting:
    return Greeting(uuid.uuid4(), b"t" * 16, 2**40, 2**18, 60_000, epoch=epoch)


def only(communicator: Communicator) -> Peer:
    (peer,) = communicator._endpoint.peers.values()
    return peer


# Late links of a client.


def test_late_ini_of_earlier_epoch_changes_nothing(communicators: Communicators) -> None:
    server, client = communicators.pair(**QUIET)
    link = only(client).link
    with Raw(server.netloc, greeting_of(client, epoch=0)) as late:
        assert "older than the session's last" in late.ends()
    client.put("after it").result(LIMIT)
    assert server.get(timeout=0).data == "after it"
    assert only(client).link is link


def test_client_reconnects_after_its_late_ini_took_over(communicators: Communicators, log: LogRecorder) -> None:
    server, client = communicators.pair(**QUIET)
    server.put("before").result(LIMIT)
    with Raw(server.netloc, greeting_of(client, 1, Cursor(0, 1, 0, 2**18))) as late:
        assert late.read(FrameKind.INI).flags
        log.wait("a newer link has taken the session over; trying again")
        assert late.read(FrameKind.FIN).number == Code.SUPERSEDED
    client.put("after it").result(LIMIT)
    server.put("and back").result(LIMIT)
    assert server.get(timeout=0).data == "after it"
    assert [client.get(timeout=0).data for _ in range(2)] == ["before", "and back"]


def test_late_ini_does_not_lose_sent_messages(communicators: Communicators) -> None:
    """The client holds messages whose ACK is lost with its link, and of which the late INI knows nothing."""
    server = communicators.server(**QUIET)
    greeting = dataclasses.replace(stranger(), credit=2**40)
    with Raw(server.netloc, greeting) as true:
        assert true.read(FrameKind.INI)
        true.send(Frame(FrameKind.PING))
        true.read(FrameKind.PING)
        futures = [server.put(bytes(8 * MIB)) for _ in range(4)]
        while true.read(FrameKind.MSG).number < 4:
            pass
    begun = dataclasses.replace(greeting, epoch=1, resume=True)
    with Raw(server.netloc, begun) as late:  # it does not read all that the server sends again
        assert late.read(FrameKind.INI).flags
        assert late.read(FrameKind.MSG).number == 1
        with Raw(server.netloc, dataclasses.replace(begun, cursors=(Cursor(0, 3, 0, 2**40),))) as again:
            assert again.read(FrameKind.INI).flags
            for future in futures[:3]:
                future.result(LIMIT)
            came = 0
            while came < 8 * MIB:
                came += again.read(FrameKind.MSG).length
            again.send(Frame(FrameKind.ACK, number=4, value=2**40))
            futures[3].result(LIMIT)


def test_repeatedly_superseded_client_gives_up(communicators: Communicators) -> None:
    """Two processes have the same session: a fork, or a virtual machine restored."""
    server, client = communicators.pair(**QUIET)
    peer, twin = only(client), greeting_of(client, epoch=1)
    for count in (1, 2):
        with Raw(server.netloc, twin) as link:
            assert link.read(FrameKind.FIN).number == Code.SUPERSEDED, "the client has come back"
            assert len(peer._superseded_at) == count
    with Raw(server.netloc, twin), pytest.raises(Closed, match="a newer link has taken the session over"):
        client.get(timeout=LIMIT)
    with pytest.raises(Closed):
        client.put("too late").result(LIMIT)
    assert client.close(LIMIT) == 1


def test_unconfirmed_link_is_probed_before_it_is_replaced(
    communicators: Communicators,
) -> None:
    server = communicators.server(**QUIET)
    greeting = stranger(epoch=7)
    with Raw(server.netloc, greeting) as silent:
        assert silent.read(FrameKind.INI).flags == 0
        with Raw(server.netloc, greeting) as other:
            assert "it is being asked" in other.ends()
        silent.read(FrameKind.PING)
        silent.send(Frame(FrameKind.PING, ANSWER))
        server.put("got").add_done_callback(lambda _: None)
        assert silent.read(FrameKind.MSG).number == 1
        with Raw(server.netloc, greeting) as late:
            assert "older than the session's last" in late.ends()
        silent.send(Frame(FrameKind.ACK, number=1, value=2**18))
    communicators.abort(server)  # else it would wait for a goodbye


def test_unconfirmed_session_begins_again_after_link_loss(communicators: Communicators, log: LogRecorder) -> None:
    server = communicators.server(**QUIET)
    greeting = stranger(epoch=7)
    with Raw(server.netloc, greeting) as first:
        assert Greeting.read(first.read(FrameKind.INI)).epoch == 8
    log.wait("lost (the peer hung up)")
    with Raw(server.netloc, greeting) as second:
        ini = second.read(FrameKind.INI)
        assert (ini.flags, Greeting.read(ini).epoch) == (0, 8)


def test_session_begins_on_next_link_if_first_was_lost(
    communicators: Communicators,
) -> None:
    server, greeting = communicators.server(**QUIET), stranger(epoch=7)
    endpoint = server._endpoint

    def expect() -> None:
        """Do what such a link leaves behind."""
        peer = endpoint._new_peer(greeting.token)
        peer.session.peer = greeting.id
        endpoint.peers[greeting.id] = peer

    endpoint.home.ask(expect)
    with Raw(server.netloc, greeting) as link:
        ini = link.read(FrameKind.INI)
        assert (ini.flags, Greeting.read(ini).epoch) == (0, 8)


# Servers that take turns at one address.


def test_client_restarted_elsewhere_begins_anew(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy], log: LogRecorder
) -> None:
    told: list[tuple[str, uuid.UUID]] = []
    events = EventOptions(ini=lambda id: told.append(("ini", id)), fin=lambda id: told.append(("fin", id)))
    first, second = communicators.server(events=events, **QUIET), communicators.server(**QUIET)
    proxy = proxies(first.netloc)
    client = communicators.client(proxy.netloc, **QUIET)
    introduce(first, client)
    proxy.upstream = second.netloc
    proxy.cut()
    log.wait(f"{client.id}: lost")
    log.wait("trying again")  # before, "hello" might leave on the link that is cut, and be lost with it
    due = first.put("waited for it", client.id)
    introduce(second, client)
    proxy.upstream = first.netloc
    proxy.cut()
    log.wait(": connected", count=3)  # before, it might be sent on the link that is cut
    client.put("back").result(LIMIT)
    assert first.get(timeout=0).data == "back"
    due.result(LIMIT)
    first.put("and on", client.id).result(LIMIT)
    assert [client.get(timeout=0) for _ in range(2)] == [(first.id, "waited for it"), (first.id, "and on")]
    assert told == [("ini", client.id), ("fin", client.id), ("ini", client.id)]
    assert log.having("goes on with epoch") == []


def test_client_restarted_elsewhere_abandons_live_link(communicators: Communicators) -> None:
    server = communicators.server(**QUIET)
    greeting = stranger(epoch=3)
    with Raw(server.netloc, greeting) as old:
        assert Greeting.read(old.read(FrameKind.INI)).epoch == 4
        old.send(Frame(FrameKind.PING))
        old.read(FrameKind.PING)
        with Raw(server.netloc, dataclasses.replace(greeting, epoch=6, resume=True)) as new:
            ini = new.read(FrameKind.INI)
            assert (ini.flags, Greeting.read(ini).epoch) == (0, 7)
            with pytest.raises(AssertionError, match="the link has ended"):
                old.read(FrameKind.INI)
            assert list(server.statistics()) == [greeting.id]


def test_close_does_not_wait_for_client_restarted_elsewhere(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy]
) -> None:
    server = communicators.server(linger=LIMIT, **QUIET)
    greeting = stranger()
    with Raw(server.netloc, greeting) as old:
        old.read(FrameKind.INI)
        due = server.put("never")
        old.read(FrameKind.MSG)
    server._endpoint.home.ask(server._endpoint.begin_to_close, None)
    with Raw(server.netloc, dataclasses.replace(greeting, epoch=2, resume=True)) as new:
        assert "the server is closing" in new.ends()
    with pytest.raises(Closed, match="it began anew"):
        due.result(LIMIT)
    communicators.release(server)
    assert server.close(LIMIT) == 1


# Another process with the id.


def owner_that_is_away(server: Communicator) -> tuple[Greeting, Peer]:
    """Let a client come and go, without a goodbye."""
    owner = stranger()
    with Raw(server.netloc, owner) as link:
        link.read(FrameKind.INI)
        link.send(Frame(FrameKind.PING))
        link.read(FrameKind.PING)
    peer = only(server)
    while peer.loop.ask(lambda: peer.link is not None):
        pass
    return owner, peer


def test_newcomer_lost_before_answer_takes_nothing_over(communicators: Communicators) -> None:
    server = communicators.server(**QUIET)
    owner, peer = owner_that_is_away(server)
    accept = peer.accept

    def accept_too_late(link: Any, greeting: Greeting, *, resumed: bool) -> None:
        peer.accept = accept  # type: ignore[method-assign]
        link.connection.detach()
        accept(link, greeting, resumed=resumed)

    peer.accept = accept_too_late  # type: ignore[method-assign]
    newcomer = dataclasses.replace(owner, token=b"another process!")
    with Raw(server.netloc, newcomer) as link, pytest.raises(ConnectionResetError):
        link.read(FrameKind.INI)
    assert peer.session.token == owner.token
    with Raw(server.netloc, newcomer) as link:
        assert link.read(FrameKind.INI, FrameKind.FIN).kind is FrameKind.INI
    assert peer.session.token == newcomer.token


def test_link_of_earlier_process_is_refused(communicators: Communicators) -> None:
    """Both were judged before either was answered, as may be where sessions are spread over threads."""
    server = communicators.server(**QUIET)
    owner, peer = owner_that_is_away(server)
    accept, resume = peer.accept, dataclasses.replace(owner, epoch=1, resume=True)
    newcomer = dataclasses.replace(owner, token=b"another process!")
    judged: list[tuple[Any, Greeting, bool]] = []

    def note(link: Any, greeting: Greeting, *, resumed: bool) -> None:
        judged.append((link, greeting, resumed))

    peer.accept = note  # type: ignore[method-assign]
    with Raw(server.netloc, newcomer) as new, Raw(server.netloc, resume) as old:
        while len(judged) < 2:
            pass
        assert {(greeting.token, resumed) for _, greeting, resumed in judged} == {
            (newcomer.token, False),
            (owner.token, True),
        }
        judged.sort(key=lambda call: call[2])
        for link, greeting, resumed in judged:
            peer.loop.ask(lambda link=link, greeting=greeting, resumed=resumed: accept(link, greeting, resumed=resumed))
        assert new.read(FrameKind.INI, FrameKind.FIN).kind is FrameKind.INI
        assert "another process has begun this session anew" in old.ends()
        assert peer.session.token == newcomer.token


# A fixed id.


@pytest.mark.slow
def test_restarted_board_replaces_silent_predecessor(
    communicators: Communicators, proxies: Callable[[NetworkLocation], Proxy], log: LogRecorder
) -> None:
    server = communicators.server(**QUIET)
    proxy = proxies(server.netloc)
    board = communicators.client(proxy.netloc, **QUIET)
    introduce(server, board)
    proxy.hold()  # its power fails: nothing says so
    begun = time.monotonic()
    again = communicators.client(server.netloc, id=board.id, retry_max=0.5, **QUIET)
    again.put("restarted").result(LIMIT)
    assert server.get(timeout=0) == (board.id, "restarted")
    assert 1.9 < time.monotonic() - begun < 20.0, "the heartbeats would take 180 s"
    assert "by its predecessor that is not known yet to be gone: it is being asked" in log.wait("the peer refuses")
    proxy.close()
    communicators.abort(board)


@pytest.mark.slow
def test_twin_with_same_id_does_not_end_owner(communicators: Communicators, log: LogRecorder) -> None:
    server, board = communicators.pair(**QUIET)
    link = only(server).link
    twin = communicators.client(server.netloc, id=board.id, retry_max=0.5, linger=0.0, **QUIET)
    twin.put("never")
    begun = time.monotonic()
    count = 0
    while time.monotonic() - begun < 3.0:
        count += 1
        log.wait(f"the id {board.id} is in use", count)
    assert only(server).link is link
    board.put("mine").result(LIMIT)
    assert server.get(timeout=0).data == "mine"
    assert twin.close(LIMIT) == 1
    communicators.release(twin)
