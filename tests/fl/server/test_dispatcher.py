"""Tasks and their answers: what is returned to which caller, and when a task fails."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import netq
from fl.report import ClientFailure, FailureKind
from fl.server.dispatcher import TaskDispatcher
from netq.testing.proxy import Proxy
from tests.fl.federation import SHORT, SOON, A, B, at

LOCAL = netq.NetworkLocation("127.0.0.1", 0)


class Place:
    """A dispatcher whose tasks have texts as keys, and its peers. A peer's reply is a key and a content."""

    def __init__(self, stack: ExitStack, events: netq.EventOptions | None = None, grace: float = SOON) -> None:
        options = netq.CommunicatorOptions(netloc=LOCAL, events=events or netq.EventOptions())
        self.over: list[uuid.UUID] = []  # peers whose session has ended, in the order of messages
        self.dispatcher: TaskDispatcher[str] = TaskDispatcher(
            options, netq.Protocol.TCP, grace, self._receive, over=self.over.append
        )
        self._stack = stack
        self.unreadable = 0
        stack.callback(self.dispatcher.queue.close, 0)

    def _receive(self, peer: uuid.UUID, message: Any) -> bool:
        if not isinstance(message, tuple):
            self.unreadable += 1
            raise netq.Unreadable("no tuple")
        return self.dispatcher.answer(*message)

    def join(self, id: uuid.UUID, netloc: netq.NetworkLocation | None = None) -> netq.Communicator:
        queue = netq.new(purpose=netq.Purpose.CLIENT, options=at(netloc or self.dispatcher.queue.netloc, id))
        self._stack.callback(queue.close, 0)
        until = time.monotonic() + SOON
        while id not in self.dispatcher.queue.statistics():
            assert time.monotonic() < until
            self.dispatcher.sessions_changed.wait(SHORT)
        return queue

    def ask(self, *keys: str, peer: uuid.UUID = A, limit: float = SOON, keep_late: bool = False) -> None:
        for key in keys:
            self.dispatcher.ask([(f"task {key}", {peer: key})], limit, keep_late=keep_late)

    def take(self, *keys: str, within: float = SOON) -> tuple[str, Any] | None:
        return self.dispatcher.take(keys.__contains__, time.monotonic() + within)


@contextmanager
def dispatching(**settings: Any) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(stack, **settings)


def read(peer: netq.Communicator, count: int) -> None:
    """Read messages, for a close with unread bytes may reset the connection before the goodbye arrives."""
    for _ in range(count):
        peer.get(timeout=SOON)


def test_each_answer_is_taken_once() -> None:
    with dispatching() as place:
        peer = place.join(A)
        place.ask("a", "b")
        assert [peer.get(timeout=SOON).data for _ in range(2)] == ["task a", "task b"]
        peer.put(("b", 2))
        peer.put(("a", 1))
        assert place.take("a") == ("a", 1)
        assert place.take("a", "b") == ("b", 2)
        assert place.take("a", "b") is None
        assert not place.dispatcher.is_known("a")


def test_the_second_answer_to_a_task_is_ignored() -> None:
    with dispatching() as place:
        place.join(A)
        place.ask("a")
        assert [place.dispatcher.answer("a", number) for number in (1, 2)] == [True, False]
        assert place.take("a") == ("a", 1)


@pytest.mark.slow
def test_take_returns_at_its_time_limit() -> None:
    with dispatching() as place:
        place.join(A)
        place.ask("a")
        begin = time.monotonic()
        assert place.take("a", within=SHORT) is None
        assert SHORT <= time.monotonic() - begin < SOON
        assert place.dispatcher.is_open("a")


def test_take_without_an_open_task_does_not_wait() -> None:
    with dispatching() as place:
        place.join(A)
        place.ask("a")
        assert place.take("b") is None


def test_one_message_goes_to_many_peers() -> None:
    with dispatching() as place:
        peers = [place.join(id) for id in (A, B)]
        place.dispatcher.ask([("task", {A: "a", B: "b"})], SOON)
        for peer, key in zip(peers, "ab", strict=True):
            assert peer.get(timeout=SOON).data == "task"
            peer.put((key, key))
        assert {place.take("a", "b"), place.take("a", "b")} == {("a", "a"), ("b", "b")}


@pytest.mark.slow
def test_a_task_past_its_limit_is_late() -> None:
    with dispatching() as place:
        place.join(A)
        place.ask("a", limit=SHORT)
        late = ClientFailure(FailureKind.LATE, f"no answer within {SHORT:g} s (deadline)")
        assert place.take("a") == ("a", late)
        assert not place.dispatcher.is_open("a")
        assert not place.dispatcher.answer("a", 1)


@pytest.mark.slow
@pytest.mark.parametrize("keep_late", [True, False])
def test_a_peer_that_was_away_for_too_long_may_answer_late(*, keep_late: bool) -> None:
    with dispatching(grace=0.1) as place, Proxy(place.dispatcher.queue.netloc) as proxy:
        peer = place.join(A, proxy.netloc)
        place.ask("a", keep_late=keep_late)
        assert peer.get(timeout=SOON).data == "task a"
        proxy.refusing = True
        proxy.cut()
        found = place.take("a")
        assert found is not None
        assert found[1].why is (FailureKind.LATE if keep_late else FailureKind.LOST)
        assert "(grace 0.1 s)" in found[1].reason
        assert place.take("a", within=SHORT) is None, "it is said once"
        proxy.refusing = False
        peer.put(("a", 1)).result(SOON)
        assert place.take("a") == (("a", 1) if keep_late else None)


@pytest.mark.slow
def test_a_late_task_that_is_kept_may_be_answered() -> None:
    with dispatching() as place:
        place.join(A)
        place.ask("a", limit=SHORT, keep_late=True)
        found = place.take("a")
        assert found is not None
        assert found[1].why is FailureKind.LATE
        assert place.dispatcher.late() == {"a"}
        assert place.take("a", within=2 * SHORT) is None, "it is late once"
        assert place.dispatcher.answer("a", 1)
        assert place.take("a") == ("a", 1)
        assert place.dispatcher.late() == set()


@pytest.mark.slow
def test_an_answer_that_is_unread_at_the_limit_counts() -> None:
    with dispatching() as place:
        peer = place.join(A)
        place.ask("a", limit=SHORT)
        peer.put(("a", 1)).result(SOON)
        time.sleep(SHORT)
        assert place.take("a") == ("a", 1)


def test_a_peer_that_leaves_is_lost() -> None:
    with dispatching() as place:
        peer = place.join(A)
        place.ask("a", "b")
        read(peer, 2)
        peer.close(SOON)
        assert {place.take("a", "b"), place.take("a", "b")} == {
            (key, ClientFailure(FailureKind.LOST, "it has gone")) for key in "ab"
        }


def test_an_answer_counts_whose_peer_has_left() -> None:
    with dispatching() as place:
        peer = place.join(A)
        place.ask("a", "b")
        read(peer, 2)
        peer.put(("a", 1)).result(SOON)
        peer.close(SOON)
        assert place.take("a") == ("a", 1)
        assert place.take("b") == ("b", ClientFailure(FailureKind.LOST, "it has gone"))


def test_a_restarted_peer_loses_earlier_tasks_only() -> None:
    with dispatching() as place:
        place.join(A).close(SOON)
        again = place.join(A)
        place.ask("a")
        again.put(("a", 1))
        assert place.take("a") == ("a", 1)


@pytest.mark.parametrize("others", [{}, {B: "b"}], ids=["alone", "with another"])
def test_a_restarted_peer_gets_its_own_task_again(others: dict[uuid.UUID, str]) -> None:
    with dispatching() as place, ThreadPoolExecutor() as pool:
        peer = place.join(A)
        for id in others:
            place.join(id)
        parts = [(f"task {key}", {id: key}) for id, key in {A: "a", **others}.items()]
        place.dispatcher.ask(parts, SOON)
        read(peer, 1)
        peer.close(SOON)
        again = place.join(A)
        taken = pool.submit(place.take, "a")
        assert again.get(timeout=SOON).data == "task a"
        again.put(("a", 1))
        assert taken.result(SOON) == ("a", 1)


def test_a_peer_that_is_restarted_for_ever_is_lost() -> None:
    failure = ClientFailure(FailureKind.LOST, "it was started again, and knows nothing of the task")
    with dispatching() as place:
        peer = place.join(A)
        place.ask("a")
        for times in range(4):
            assert place.take("a", within=0) is None, f"restarted {times} times"
            read(peer, 1)
            peer.close(SOON)
            peer = place.join(A)
        assert place.take("a") == ("a", failure)


def test_a_restarted_peer_gets_the_last_task_again_only() -> None:
    with dispatching() as place, ThreadPoolExecutor() as pool:
        peer = place.join(A)
        place.ask("a", "b")
        read(peer, 2)
        peer.close(SOON)
        again = place.join(A)
        taken = pool.submit(place.take, "a")
        assert again.get(timeout=SOON).data == "task b"
        assert taken.result(SOON) == (
            "a",
            ClientFailure(FailureKind.LOST, "it was started again, and knows nothing of the task"),
        )
        assert place.dispatcher.is_open("b")


def test_a_task_that_is_too_large_fails() -> None:
    with dispatching() as place:
        narrow = netq.ConnectionOptions(message_size=100)
        with netq.new(options=at(place.dispatcher.queue.netloc, A, narrow)):
            until = time.monotonic() + SOON
            while A not in place.dispatcher.queue.statistics():
                assert time.monotonic() < until
            place.ask("a" * 1000)
            found = place.take("a" * 1000)
        assert found is not None
        assert found[1].why is FailureKind.FAILED
        assert re.fullmatch(
            r"the task has 10\d\d bytes, and it takes 100 at most: use a smaller model, or raise its "
            r"connection\.message_size or training\.memory",
            found[1].reason,
        )


def test_an_unreadable_message_fails_all_tasks_of_its_peer() -> None:
    with dispatching() as place:
        peer = place.join(A)
        place.join(B)
        place.ask("a", "b")
        place.ask("c", peer=B)
        peer.put("no tuple")
        failure = ClientFailure(FailureKind.UNREADABLE, "its message cannot be read: no tuple")
        assert {place.take("a", "b"), place.take("a", "b")} == {("a", failure), ("b", failure)}
        assert place.dispatcher.is_open("c")


def test_a_peer_whose_messages_cannot_be_read_is_cut_off() -> None:
    """Its other messages are not read, and it comes back after a pause."""
    with dispatching() as place:
        peer, other = place.join(A), place.join(B)
        place.ask("a", "b")
        for _ in range(200):
            peer.put("no tuple")
        assert place.take("a") is not None
        place.ask("c", peer=B)
        other.put(("c", 1))
        assert place.take("c") == ("c", 1)
        until = time.monotonic() + SOON
        while A in place.dispatcher.queue.statistics():
            assert time.monotonic() < until
            place.dispatcher.read()
        while A not in place.dispatcher.queue.statistics():
            assert time.monotonic() < until
            place.dispatcher.read()
        assert place.unreadable < 10


def test_a_peer_that_sends_what_nobody_wants_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    with dispatching() as place:
        peer = place.join(A)
        place.ask("a")
        for number in range(500):
            peer.put(("none", number))
        failure = place.take("a")
        assert failure is not None
        reason = "cut off for 1 s: it sends messages that were not asked for"
        assert (failure[1].why, str(failure[1])) == (FailureKind.UNREADABLE, reason)
        until = time.monotonic() + SOON
        while not place.over:
            assert time.monotonic() < until
            place.dispatcher.read()
        assert place.over == [A]
    assert [record.getMessage() for record in caplog.records if record.name == "netq.fl"] == [f"{A}: {reason}"]


def test_a_call_that_was_interrupted_holds_up_no_later_one() -> None:
    """Ctrl-C may come anywhere, also between two statements that belong together."""
    with dispatching() as place:
        peer = place.join(A)
        place.ask("a")
        place.dispatcher._reader = threading.get_ident()
        peer.put(("a", 1))
        assert place.take("a") == ("a", 1)


def test_an_answer_costs_nothing() -> None:
    with dispatching() as place:
        peer = place.join(A)
        for number in range(300):
            place.ask(str(number))
            peer.put((str(number), number))
            assert place.take(str(number)) == (str(number), number)


def test_forgotten_tasks_have_no_answer() -> None:
    with dispatching() as place:
        place.join(A)
        place.ask("a", "b", "c")
        place.dispatcher.answer("b", 1)
        place.dispatcher.forget(["a", "b"])
        assert place.take("a", "b") is None
        assert place.dispatcher.is_open("c")
        place.dispatcher.forget_all()
        assert not place.dispatcher.is_known("c")


def test_an_added_answer_replaces_none() -> None:
    with dispatching() as place:
        place.dispatcher.add_answer("a", 1)
        place.dispatcher.add_answer("a", 2)
        assert place.take("a") == ("a", 1)


def test_a_dropped_answer_is_not_taken() -> None:
    with dispatching() as place:
        place.dispatcher.add_answer("a", 1)
        assert place.dispatcher.drop_answer("a")
        assert not place.dispatcher.drop_answer("a")
        assert not place.dispatcher.is_known("a")


def test_the_end_raises_closed() -> None:
    with dispatching() as place, ThreadPoolExecutor() as pool:
        place.join(A)
        place.ask("a", "b")
        taking = [pool.submit(place.take, key) for key in "ab"]
        place.dispatcher.end()
        for each in taking:
            with pytest.raises(netq.Closed, match="this server is closed"):
                each.result(SOON)


def test_threads_get_the_answers_that_they_want() -> None:
    with dispatching() as place, ThreadPoolExecutor(8) as pool:
        peer = place.join(A)
        keys = [str(number) for number in range(40)]
        place.ask(*keys)
        taking = [pool.submit(place.take, key) for key in keys[:8]]
        for key in reversed(keys):
            peer.put((key, key))
        assert [each.result(SOON) for each in taking] == [(key, key) for key in keys[:8]]
        assert {place.take(*keys) for _ in keys[8:]} == {(key, key) for key in keys[8:]}


def test_user_events_are_called() -> None:
    seen: list[tuple[str, uuid.UUID]] = []

    def note(what: str) -> Callable[[uuid.UUID], None]:
        return lambda peer: seen.append((what, peer))

    with dispatching(events=netq.EventOptions(note("ini"), note("fin"))) as place:
        peer = place.join(A)
        place.ask("a")
        read(peer, 1)
        peer.close(SOON)
        place.take("a")
    assert seen == [("ini", A), ("fin", A)]


def test_answer_that_comes_while_its_task_is_being_sent_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with dispatching() as place:
        place.join(A)
        found: list[bool] = []
        reader = threading.Thread(target=lambda: found.append(place.dispatcher.is_open("task")))
        put = place.dispatcher.queue.put

        def put_and_answer(*arguments: Any) -> netq.Delivery:
            delivery = put(*arguments)
            reader.start()
            reader.join(0.05)  # the answer is here before `ask` goes on
            return delivery

        monkeypatch.setattr(place.dispatcher.queue, "put", put_and_answer)
        place.ask("task")
        reader.join(SOON)
    assert found == [True]
