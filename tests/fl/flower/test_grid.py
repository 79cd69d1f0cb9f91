"""A grid and its nodes over real sockets: messages, replies and lost nodes."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.server.client_manager import SimpleClientManager
from flwr.server.compat.app_utils import start_update_client_manager_thread
from flwr.serverapp.strategy import FedAvg

import fl.flower
import netq
from fl.envelope import Leave
from fl.flower.envelope import VERSION, Fetch, OtherApp
from fl.flower.masked import Secured
from fl.flower.messages import MESSAGES, Reply, message_id
from fl.messages import Answered
from netq.security import certificates
from netq.testing.log import LogRecorder
from netq.utils.stream import PickleSerializer
from tests.fl.flower.apps import app, server
from tests.fl.flower.federation import QUICK, SHORT, SOON, Federation, at, error_of

NODE_UNAVAILABLE, MESSAGE_UNAVAILABLE, REPLY_UNAVAILABLE, RAISED = 5, 3, 4, 2  # Flower's numbers


def echo(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)


class Gate:
    """A client that replies when the test opens the gate."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, message: Message, context: Context) -> Message:
        self.begun.release()
        assert self.open.wait(SOON)
        return echo(message, context)


def content(number: int = 1) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord({"a": Array(np.full(3, number))}), "config": ConfigRecord({"n": number})})


def test_a_reply_names_its_node_and_message() -> None:
    with Federation() as federation:
        one, two = (federation.join(echo) for _ in range(2))
        nodes = {fl.flower.node_id(one), fl.flower.node_id(two)}
        assert set(federation.grid.get_node_ids()) == {info.node_id for info in federation.grid.get_nodes()} == nodes
        messages = [Message(content(), node, "query.mine", group_id="7", ttl=60) for node in nodes]
        replies = list(federation.grid.send_and_receive(messages))
    asked = {message.metadata.message_id: message.metadata for message in messages}
    assert len(asked) == 2
    for reply in replies:
        theirs, ours = reply.metadata, asked.pop(reply.metadata.reply_to_message_id)
        assert reply.content == content()
        assert (theirs.src_node_id, theirs.dst_node_id) == (ours.dst_node_id, 1)
        assert (theirs.message_type, theirs.group_id, theirs.run_id) == ("query.mine", "7", ours.run_id)
        assert 0 < theirs.ttl <= 60
        assert theirs.delivered_at == ""


def test_a_message_names_its_sender() -> None:
    seen: list[Any] = []

    def client(message: Message, context: Context) -> Message:
        seen.append((message.metadata, context.run_id, context.node_id))
        return echo(message, context)

    with Federation() as federation:
        id = federation.join(client)
        federation.query(id, group_id="3", ttl=9)
        (metadata, run, node) = seen[0]
        assert run == metadata.run_id == federation.grid.run.run_id
        assert node == metadata.dst_node_id == fl.flower.node_id(id)
        assert (metadata.src_node_id, metadata.group_id, metadata.ttl, metadata.reply_to_message_id) == (1, "3", 9, "")


def test_a_record_for_many_nodes_is_put_once() -> None:
    with Federation() as federation:
        nodes = [fl.flower.node_id(federation.join(echo)) for _ in range(3)]
        shared, own = content(1), content(2)
        messages = [Message(shared, node, "query") for node in nodes] + [Message(own, nodes[0], "query")]
        messages += [Message(shared, nodes[0], "query"), Message(shared, nodes[1], "query.other")]
        replies = list(federation.grid.send_and_receive(messages))
        batches = [message.metadata.message_id[:16] for message in messages]
    assert batches[0] == batches[1] == batches[2]
    assert len(set(batches)) == 4
    contents: list[Any] = [reply.content for reply in replies]
    assert sorted(content["config"]["n"] for content in contents) == [1, 1, 1, 1, 1, 2]


def test_replies_come_as_a_list_or_one_by_one() -> None:
    gate = Gate()
    with Federation() as federation:
        ids = [federation.join(echo), federation.join(gate)]
        messages = [Message(RecordDict(), fl.flower.node_id(id), "query") for id in ids]
        replies = federation.ask(*messages)
        assert next(replies).metadata.src_node_id == fl.flower.node_id(ids[0])  # without waiting for the other
        gate.open.set()
        assert next(replies).metadata.src_node_id == fl.flower.node_id(ids[1])
        assert next(replies, None) is None
        found = federation.grid.send_and_receive(messages)
        assert isinstance(found, list)
        assert len(found) == 2


def test_an_abandoned_iterator_forgets_its_messages() -> None:
    gate = Gate()
    with LogRecorder() as log, Federation() as federation:
        ids = [federation.join(echo), federation.join(gate)]
        replies = federation.ask(*(Message(RecordDict(), fl.flower.node_id(id), "query") for id in ids))
        next(replies)
        del replies
        gate.open.set()
        assert set(federation.query(ids[1])) == {ids[1]}
        assert len(log.having("its answer is not waited for (any more)")) == 1


def test_no_messages_give_no_replies() -> None:
    with Federation() as federation:
        assert federation.grid.send_and_receive([]) == []
        assert list(federation.ask()) == []
        assert federation.grid.pull_messages([]) == []


def test_the_timeout_returns_the_replies_so_far() -> None:
    gate = Gate()
    with Federation() as federation:
        fast, slow = federation.join(echo), federation.join(gate)
        replies = federation.query(fast, slow, timeout=SHORT)
        assert list(replies) == [fast]
        gate.open.set()
        assert set(federation.query(slow, fast)) == {slow, fast}  # the late reply is ignored


def test_messages_are_pushed_and_pulled() -> None:
    gate = Gate()
    with Federation() as federation:
        fast, slow = (fl.flower.node_id(federation.join(client)) for client in (echo, gate))
        ids = federation.grid.push_messages([Message(content(), node, "query") for node in (slow, fast)])
        assert gate.begun.acquire(timeout=SOON)
        found: list[Message] = []
        while not found:
            found = federation.grid.pull_messages(ids)
        assert [reply.metadata.reply_to_message_id for reply in found] == [ids[1]]
        assert federation.grid.pull_messages(ids[:1]) == []
        gate.open.set()
        while not (found := federation.grid.pull_messages(ids[:1])):
            pass
        assert found[0].metadata.src_node_id == slow


def test_a_reply_is_pulled_once() -> None:
    with Federation() as federation:
        node = fl.flower.node_id(federation.join(echo))
        ids = federation.grid.push_messages([Message(content(), node, "query")])
        while not federation.grid.pull_messages(ids):
            pass
        for id in (ids[0], "a message of nobody"):
            (reply,) = federation.grid.pull_messages([id])
            assert reply.metadata.reply_to_message_id == id
            assert error_of(reply).code == MESSAGE_UNAVAILABLE
            assert "was not sent by this grid, or its reply was taken or dropped" in str(error_of(reply).reason)


def test_replies_that_are_never_pulled_are_bounded(log: LogRecorder) -> None:
    memory = 1_000_000
    options = at(("127.0.0.1", 0), connection=replace(QUICK, memory=memory))
    large = RecordDict({"arrays": ArrayRecord({"a": Array(np.zeros(25_000))})})
    with Federation(options) as federation:
        peer = federation.join(echo)
        node = fl.flower.node_id(peer)
        ids = [federation.grid.push_messages([Message(large, node, "query")])[0] for _ in range(20)]
        assert set(federation.query(peer)) == {peer}  # reads the replies before it, too
        held = [id for id in ids if federation.grid._dispatcher.is_known(id)]
        assert held == ids[-len(held) :], "the oldest are dropped"
        assert 200_000 * len(held) < memory
        assert len(log.having("its reply is dropped")) == len(ids) - len(held)
        assert set(federation.grid._sent) == set(held)
        replies = {each.metadata.reply_to_message_id: each for each in federation.grid.pull_messages(ids)}
        assert [id for id in ids if not replies[id].has_error()] == held
        assert "was taken or dropped" in str(error_of(replies[ids[0]]).reason)
        assert federation.grid._unpulled._total == 0


def test_many_threads_ask_at_once() -> None:
    with Federation() as federation:
        ids = [federation.join(echo) for _ in range(4)]

        def ask(number: int) -> None:
            id = ids[number % 4]
            reply = federation.query(id, content=content(number))[id]
            assert reply.content == content(number)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(200)))


def test_an_exception_in_a_client_has_flowers_form() -> None:
    def client(message: Message, context: Context) -> Message:
        raise ZeroDivisionError("division by zero")

    with Federation() as federation:
        id = federation.join(client)
        error = error_of(federation.query(id)[id])
    assert (error.code, error.reason) == (RAISED, "<class 'ZeroDivisionError'>:<'division by zero'>")


def test_a_round_goes_on_without_a_failing_client() -> None:
    def client(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train":
            raise OSError("the sensor does not answer")
        return app(message, context)

    server_app, results = server(FedAvg(min_train_nodes=3, min_available_nodes=3), rounds=2)
    with Federation() as federation:
        federation.join_all(app, 2)
        federation.join(client, {"partition-id": 2})
        federation.run(server_app)
    assert list(results[0].train_metrics_clientapp) == [1, 2]


def silent(message: Message, context: Context) -> Any:
    """Returns no message."""


def test_a_client_that_returns_no_message_is_an_error() -> None:
    with Federation() as federation:
        id = federation.join(silent)
        assert "returned a NoneType; expected a flwr.app.Message" in str(error_of(federation.query(id)[id]).reason)


def test_an_unknown_node_is_an_error_at_once() -> None:
    with Federation() as federation:
        (reply,) = federation.grid.send_and_receive([Message(RecordDict(), 12345, "query")])
        assert error_of(reply).code == NODE_UNAVAILABLE
        assert error_of(reply).reason == "node 12345: it is not connected"
        assert reply.metadata.src_node_id == 12345


class ControlledNode:
    """A node whose communicator the test controls."""

    def __init__(self, federation: Federation) -> None:
        self.options = replace(federation.options(uuid.uuid4()), serialization=MESSAGES)
        self.queue = netq.new(options=self.options)
        federation.wait_for(self.options.id)


def lost(federation: Federation, controlled: ControlledNode, leave: Callable[[], object]) -> str:
    """Return the reason of the error for a node that leaves when it has a message."""
    node = fl.flower.node_id(controlled.options.id)
    replies = federation.ask(Message(RecordDict(), node, "query"))
    controlled.queue.get(timeout=SOON)
    leave()
    started = time.monotonic()
    error = error_of(next(replies))
    assert time.monotonic() - started < SOON
    assert error.code == NODE_UNAVAILABLE
    assert str(error.reason).startswith(f"node {node} (")
    return str(error.reason)


def test_a_node_that_leaves_is_an_error_at_once() -> None:
    with Federation() as federation:
        controlled = ControlledNode(federation)
        assert lost(federation, controlled, lambda: controlled.queue.close(SOON)).endswith("): it has gone")


def test_errors_and_log_have_the_name_of_a_certificate(tmp_path: Path) -> None:
    own, files = certificates.init(tmp_path), certificates.issue(tmp_path, "board-7")
    (id,) = [entry.id for entry in certificates.show(tmp_path) if entry.name == "board-7" and entry.id is not None]
    options = at(("127.0.0.1", 0), security=netq.SecurityOptions(own.key, own.certificate, own.authority))
    security = netq.SecurityOptions(files.key, files.certificate, files.authority)
    with Federation(options, security=security) as federation, LogRecorder() as log:
        node = fl.flower.node_id(id)
        with netq.new(options=replace(federation.options(id), serialization=MESSAGES)) as queue:
            federation.wait_for(id)
            with ThreadPoolExecutor() as pool:
                reply = pool.submit(next, federation.ask(Message(RecordDict(), node, "query")))
                queue.get(timeout=SOON)
                queue.put(Leave("it is warm"))
                log.wait(f"node {node} (board-7 ({id})): leaves: it is warm")
                queue.close(SOON)
                assert str(error_of(reply.result(SOON)).reason) == f"node {node} (board-7 ({id})): it has gone"


def test_a_restarted_node_gets_its_message_again() -> None:
    with Federation() as federation:
        controlled = ControlledNode(federation)
        replies = federation.ask(Message(RecordDict(), fl.flower.node_id(controlled.options.id), "query"))
        first = controlled.queue.get(timeout=SOON).data
        controlled.queue.close(SOON)
        with netq.new(options=controlled.options) as again, ThreadPoolExecutor() as pool:
            federation.wait_for(controlled.options.id)
            reply = pool.submit(next, replies)
            assert again.get(timeout=SOON).data == first
            again.put(Reply(first["batch"], RecordDict()))
            assert reply.result(SOON).has_content()


def test_a_reply_counts_after_its_node_has_left() -> None:
    with Federation() as federation:
        controlled = ControlledNode(federation)
        node = fl.flower.node_id(controlled.options.id)
        replies = federation.ask(Message(RecordDict(), node, "query"))
        batch = controlled.queue.get(timeout=SOON).data["batch"]
        controlled.queue.put(Reply(batch, RecordDict())).result(SOON)
        controlled.queue.close(SOON)
        assert next(replies).content == RecordDict()


def test_a_message_fails_after_its_ttl() -> None:
    with Federation() as federation:
        controlled = ControlledNode(federation)
        node = fl.flower.node_id(controlled.options.id)
        (reply,) = federation.grid.send_and_receive([Message(RecordDict(), node, "query", ttl=SHORT)])
        assert error_of(reply).code == MESSAGE_UNAVAILABLE
        assert str(error_of(reply).reason).endswith("no answer within 0.4 s (ttl)")
        controlled.queue.close(SOON)


def test_a_message_too_large_for_a_node_is_an_error_at_once() -> None:
    with Federation() as federation:
        options = federation.options(uuid.uuid4())
        small = netq.CommunicatorOptions(options.id, options.netloc, netq.ConnectionOptions(message_size=10_000))
        with netq.new(options=small):
            federation.wait_for(options.id)
            record = RecordDict({"a": ArrayRecord({"a": Array(np.zeros(100_000))})})
            error = error_of(federation.query(options.id, content=record)[options.id])
            assert error.code == NODE_UNAVAILABLE
            assert "the message has 800320 bytes, and it takes 10000 at most" in str(error.reason)
            federation.start(federation.grid.close)


def test_a_reply_too_large_for_the_grid_is_an_error() -> None:
    def client(message: Message, context: Context) -> Message:
        record = ArrayRecord({"a": Array(np.zeros(100_000))})
        return Message(RecordDict({"a": record}), reply_to=message)

    options = netq.CommunicatorOptions(connection=netq.ConnectionOptions(message_size=10_000))
    with Federation(replace(options, netloc=netq.NetworkLocation("127.0.0.1", 0))) as federation:
        id = federation.join(client)
        error = error_of(federation.query(id)[id])
    assert error.code == RAISED
    assert "its answer cannot be sent" in str(error.reason)


def reply_to(ask: Any, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "Reply", "batch": ask.get("batch", 0), "content": content, "protocol": VERSION, **fields}


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__("os")._exit, (66,)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda ask: [b"garbage"], "a message of 7 bytes cannot be loaded"),
        (lambda ask: [bytes(PickleSerializer().dump(Evil()))], "a message of 52 bytes cannot be loaded"),
        (
            lambda ask: [reply_to(ask, [("a", "metrics", [("x", "y")])])],
            "the record 'a', 'x': expected one of int, fl",
        ),
        (
            lambda ask: [reply_to(ask, [("a", "arrays", [("x", b"1234")])])],
            "the record 'a', 'x': expected an array",
        ),
        (lambda ask: [reply_to(ask, [], protocol="netq-flower/9")], f"the version of a message: expected {VERSION}"),
        (lambda ask: [reply_to(ask, [], more=1)], "a message is not valid: "),
        (lambda ask: [reply_to(ask, [], batch=None)], "the batch of a reply: expected a whole number"),
        (lambda ask: [["list"]], "a message: expected an object with a type"),
        (lambda ask: [Secured(ask["batch"], Answered({}))], "a Secured; expected a Reply"),
    ],
)
def test_a_hostile_reply_fails_its_node_only(answer: Any, reason: str) -> None:
    with Federation() as federation:
        good, bad = federation.join(echo), federation.join_raw(answer)
        replies = federation.query(good, bad)
        assert replies[good].content == RecordDict()
        error = error_of(replies[bad])
    assert error.code == REPLY_UNAVAILABLE
    assert f"node {fl.flower.node_id(bad)} ({bad}): its message cannot be read: {reason}" in str(error.reason)


def test_a_peer_cannot_reply_for_another() -> None:
    gate = Gate()

    def answer(ask: Any) -> list[Any]:
        forged = [("m", "metrics", [("forged", 1)])]
        return [reply_to(ask, forged, batch=ask["batch"] ^ 1), reply_to(ask, []), reply_to(ask, forged)]

    with LogRecorder() as log, Federation() as federation:
        good, bad = federation.join(gate), federation.join_raw(answer)
        replies = federation.ask(*(Message(RecordDict(), fl.flower.node_id(id), "query") for id in (bad, good)))
        first = next(replies)
        assert first.metadata.src_node_id == fl.flower.node_id(bad)
        gate.open.set()
        assert [reply.content for reply in (first, *replies)] == [RecordDict()] * 2
        federation.query(bad)  # its answer comes behind all of before
        assert len(log.having("its answer is not waited for (any more)")) >= 3


def test_a_node_that_repeats_itself_is_one_line_of_each_kind() -> None:
    count = 8  # of each kind: a node that sends more is cut off
    flood: list[Any] = [each for n in range(count) for each in (Leave(f"reason {n}"), OtherApp(f"v{n}"))]
    flood += [Fetch("v"), Reply(1, RecordDict())] * count
    kinds = ("leaves: ", "its app has version ", "asks in vain for the app's files", "its answer is not waited for")
    with LogRecorder() as log, Federation() as federation:
        ids = [federation.join_raw(lambda ask: [*flood, reply_to(ask, [])]) for _ in range(2)]
        assert set(federation.query(*ids)) == set(ids)
        for kind in kinds:
            assert len(log.having(kind, logging.INFO)) == len(ids)
        assert len(log.having("leaves: ")) >= count * len(ids)  # a node begins again when it gets the files


def test_a_flood_of_messages_does_not_delay_the_timeout() -> None:
    end = threading.Event()
    with Federation() as federation:
        options = replace(federation.options(uuid.uuid4()), serialization=MESSAGES)

        def flood() -> None:
            with netq.new(options=options) as queue:
                while not end.is_set():
                    with suppress(TimeoutError):  # it is cut off
                        queue.put(Reply(1, RecordDict())).exception(SHORT)
                queue.close(0)

        federation.start(flood)
        federation.wait_for(options.id)
        gate = Gate()
        slow = federation.join(gate)
        assert federation.query(slow, timeout=SHORT) == {}
        gate.open.set()
        assert federation.query(slow)[slow].content == RecordDict()
        end.set()


def test_a_node_reports_an_unreadable_message() -> None:
    with Federation() as federation:
        id = federation.join(echo)
        dispatcher, key = federation.grid._dispatcher, message_id(5, fl.flower.node_id(id))
        dispatcher.ask([({"type": "Ask", "protocol": "netq-flower/9"}, {id: key})], 60)
        error = dispatcher.take(lambda wanted: wanted == key, time.monotonic() + SOON)
    assert f"cannot read what it was sent: the version of a message: expected {VERSION}" in str(error)


@pytest.mark.slow
def test_close_ends_flowers_threads() -> None:
    with Federation() as federation:
        id = federation.join(echo)
        message = Message(RecordDict(), fl.flower.node_id(id), "query")
        assert len(list(federation.ask(message))) == 1
        thread, _, done = start_update_client_manager_thread(federation.grid, SimpleClientManager())
        assert done.wait(SOON)
        federation.grid.close(SOON)
        federation.grid.close()
        thread.join(SOON)  # it looks every five seconds
        assert not thread.is_alive()
        with pytest.raises(netq.Closed, match="this grid is closed"):
            federation.grid.wait(1)
        with pytest.raises(netq.Closed, match="this grid is closed"):
            federation.grid.push_messages([message])


def test_close_answers_waiting_calls_with_errors() -> None:
    with Federation() as federation:
        controlled = ControlledNode(federation)
        node = fl.flower.node_id(controlled.options.id)
        replies = federation.ask(Message(RecordDict(), node, "query"))
        federation.start(federation.grid.close, 0.0)
        assert error_of(next(replies)).code == NODE_UNAVAILABLE
        controlled.queue.close(0)


def test_one_grid_at_a_time() -> None:
    with Federation(), pytest.raises(RuntimeError, match="another Grid is open in this process"):
        fl.flower.Grid()
    with Federation():
        pass
    with pytest.raises(netq.InvalidOption, match=r"Grid\.grace: -1; expected seconds"):
        fl.flower.Grid(grace=-1)
    with pytest.raises(netq.Unreadable, match="the config's 'a'"):
        fl.flower.Grid(run_config={"a": None})  # type: ignore[dict-item]
    with Federation() as federation, pytest.raises(netq.AddressError):
        netq.new(purpose=netq.Purpose.SERVER, options=federation.options(uuid.uuid4()))


def test_waiting_for_nodes_times_out() -> None:
    with Federation() as federation, pytest.raises(TimeoutError, match=r"0 of 1 nodes are connected after 0\.01 s"):
        federation.grid.wait(1, 0.01)


def test_state_lasts_from_message_to_message() -> None:
    def client(message: Message, context: Context) -> Message:
        context.state["seen"] = MetricRecord({"count": 1 + len(context.state)})
        return Message(context.state, reply_to=message)

    with Federation() as federation:
        id = federation.join(client)
        assert [federation.query(id)[id].content["seen"]["count"] for _ in range(3)] == [1, 2, 2]


@pytest.mark.parametrize(("server_has", "node_has"), [("a1", "b2"), ("a1", "a1"), ("", "b2"), ("a1", "")])
def test_another_version_of_the_app_is_logged_on_both_sides_once(server_has: str, node_has: str) -> None:
    with Federation(app_version=server_has) as federation, LogRecorder() as log:
        id = federation.join(echo, app_version=node_has)
        node = fl.flower.node_id(id)
        for number in (1, 2):
            (reply,) = federation.grid.send_and_receive([Message(content(number), node, "query.mine", ttl=60)])
            assert not reply.has_error()
        on_the_server = f"node {node} ({id}): its app has version b2, the server's a1; update one of them"
        on_the_node = "the server's app has version a1, this node's b2; update one of them"
        expected = 1 if (server_has, node_has) == ("a1", "b2") else 0
        assert [len(log.having(line)) for line in (on_the_server, on_the_node)] == [expected] * 2
