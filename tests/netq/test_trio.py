"""The trio front: what it promises beyond what the conformance suite asks for."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import math
import random
import signal
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

import netq
import netq.trio
from netq import (
    Closed,
    CommunicatorOptions,
    ConnectionOptions,
    EventOptions,
    InvalidOption,
    MessageTooLarge,
    NetworkLocation,
    Purpose,
    QueueFull,
    SerializationOptions,
    Unreadable,
)
from netq.testing.fixtures import LIMIT
from netq.testing.log import LogRecorder
from netq.trio import Communicator, Delivery

HERE = NetworkLocation("127.0.0.1", 0)
NARROW = ConnectionOptions(window=1)  # a message fits only alone: the second waits until the first is taken


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        with trio.fail_after(LIMIT):
            await main()

    trio.run(limited)


def new(purpose: Purpose, netloc: NetworkLocation = HERE, **options: Any) -> Communicator:
    return netq.trio.new(purpose=purpose, options=CommunicatorOptions(netloc=netloc, **options))


@asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[tuple[Communicator, Communicator]]:
    """A server and a client that know each other; the options are for both."""
    async with (
        new(Purpose.SERVER, **options) as server,
        new(Purpose.CLIENT, server.netloc, **options) as client,
    ):
        await introduce(server, client)
        yield server, client


async def introduce(server: Communicator, *clients: Communicator) -> None:
    for client in clients:
        delivery = client.put("hello")
        assert await server.get(client.id) == (client.id, "hello")
        await delivery


def arrive(*deliveries: Delivery) -> None:
    """Block trio until the peers hold the messages: what waits for them there is given them meanwhile."""
    for delivery in deliveries:
        delivery.delivery.result(LIMIT)


def hold(communicator: Communicator) -> threading.Event:
    """Have the communicator's own thread do nothing until the event is set."""
    held, release = threading.Event(), threading.Event()

    def block() -> None:
        held.set()
        release.wait(LIMIT)

    communicator._core._endpoint.home.call(block)
    assert held.wait(LIMIT)
    return release


async def get_into(communicator: Communicator, timeout: float | None, got: list[Any]) -> None:
    got.append((await communicator.get(timeout=timeout)).data)


async def take(communicator: Communicator, count: int, **options: Any) -> list[Any]:
    return [(await communicator.get(**options)).data for _ in range(count)]


def test_a_thousand_messages_each_way_come_once_and_in_order() -> None:
    async def answer(server: Communicator) -> None:
        async for peer, data in server:
            server.put(data, peer)

    async def main() -> None:
        async with pair() as (server, client), trio.open_nursery() as nursery:
            nursery.start_soon(answer, server)
            deliveries = [client.put(number) for number in range(1000)]
            assert await take(client, 1000) == list(range(1000))
            for delivery in deliveries:
                await delivery
            with pytest.raises(TimeoutError):
                await client.get(timeout=0)
            await client.close()
            await server.close()

    run(main)


def test_a_put_to_several_has_a_part_for_each_in_order() -> None:
    async def main() -> None:
        async with new(Purpose.SERVER) as server:
            none = server.put("no client is here")
            assert none.done()
            await none
            clients = [new(Purpose.CLIENT, server.netloc) for _ in range(3)]
            await introduce(server, *clients)
            ids = [client.id for client in reversed(clients)]
            all_three = server.put("to all", *ids)
            assert [part.peer for part in all_three.futures] == ids
            assert all_three.peer is None
            async with trio.open_nursery() as nursery:
                for waits in (all_three, all_three, *all_three.futures):  # two tasks may wait for one
                    nursery.start_soon(waits.wait)
            assert [part.done() for part in (all_three, *all_three.futures)] == [True] * 4
            one = server.put("one", ids[2])
            assert one.futures == (one,)
            assert one.peer == ids[2]
            await one
            assert [(await client.get()).data for client in clients] == ["to all"] * 3
            assert (await clients[0].get()).data == "one"
            for client in clients:
                await client.close()

    run(main)


def test_errors_are_those_of_the_synchronous_one() -> None:
    small = ConnectionOptions(message_size=1000, window=1, queue_size=1)

    async def main() -> None:
        with pytest.raises(InvalidOption, match="options: a dict"):
            netq.trio.new(options={})  # type: ignore[arg-type]
        async with pair(connection=small) as (server, client):
            absent = uuid.uuid4()
            with pytest.raises(Closed) as closed:
                await server.put("?", absent)
            assert closed.value.peer == absent
            with pytest.raises(MessageTooLarge):
                await client.put(bytes(2000))
            await client.put("held")
            waits, full = client.put("waits"), client.put("one more")
            with pytest.raises(trio.WouldBlock):
                waits.result()
            with pytest.raises(QueueFull):
                await full
            with pytest.raises(QueueFull):
                full.result()
            with pytest.raises(ValueError, match="lane 16"):
                client.put("x", lane=16)
            assert await take(server, 2) == ["held", "waits"]
            await waits
            waits.result()
            with pytest.raises(TimeoutError, match=r"no message within 0\.01 s"):
                await server.get(timeout=0.01)
            with pytest.raises(TypeError, match=r"get: the peer 0\.2 is a float; expected a uuid\.UUID"):
                await server.get(0.2)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="get: timeout=nan; expected seconds, or None"):
                await server.get(timeout=math.nan)
            with pytest.raises(TypeError, match="close: timeout='1'"):
                await server.close(timeout="1")  # type: ignore[arg-type]

    run(main)


def test_options_are_the_user_s() -> None:
    async def main() -> None:
        options = CommunicatorOptions(netloc=HERE, events=EventOptions(ini=print))
        async with netq.trio.new("tcp", "server", options) as server:
            assert server.options is options
            assert server.id == options.id
            assert server.netloc.port != 0

    run(main)


def test_every_call_that_is_awaited_is_a_checkpoint() -> None:
    async def main() -> None:
        async with pair() as (server, client):
            delivery = client.put("there")
            arrive(delivery)
            with assert_checkpoints():
                await delivery
            with assert_checkpoints():
                await server.get()
            with assert_checkpoints(), pytest.raises(TimeoutError):
                await server.get(timeout=0)
            with assert_checkpoints():
                await client.statistics()
            with assert_checkpoints():
                await client.close()
            with assert_checkpoints(), pytest.raises(Closed):
                await client.get()

    run(main)


# Cancelling a get.


@pytest.mark.parametrize("phase", ["not begun", "waiting", "given"])
def test_a_cancelled_get_loses_nothing(phase: str) -> None:
    async def main() -> None:
        async with pair() as (server, client):
            got: list[Any] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(get_into, server, None, got)
                if phase != "not begun":
                    await wait_all_tasks_blocked()
                if phase == "given":
                    arrive(client.put("first"))  # trio is blocked meanwhile, and has yet to wake the task
                nursery.cancel_scope.cancel()
            assert got == []
            arrive(client.put("second" if phase == "given" else "first"), client.put("third"))
            assert (await server.get(timeout=0)).data == "first"
            assert (await server.get()).data == ("second" if phase == "given" else "third")

    run(main)


@pytest.mark.parametrize("timeout", [None, 0.0])
def test_a_get_cancelled_at_any_checkpoint_loses_nothing(timeout: float | None) -> None:
    async def main() -> None:
        async with pair() as (server, client):
            got: list[Any] = []
            arrive(*[client.put(number) for number in range(30)])
            for turns in range(10):  # it needs up to four
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(get_into, server, timeout, got)
                    for _ in range(turns):
                        await trio.lowlevel.checkpoint()
                    nursery.cancel_scope.cancel()
            assert 0 < len(got) < 10
            got += await take(server, 30 - len(got), timeout=0)
            assert got == list(range(30))

    run(main)


def test_messages_of_cancelled_gets_stay_in_order() -> None:
    async def main() -> None:
        async with pair() as (server, client):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(server.get)
                await wait_all_tasks_blocked()
                arrive(*[client.put(number) for number in range(7)])
                nursery.cancel_scope.cancel()
            assert await take(server, 7, timeout=0) == list(range(7))

    run(main)


def test_the_other_consumer_sees_all_in_order_after_a_cancel() -> None:
    async def main() -> None:
        got: list[int] = []
        scope = trio.CancelScope()

        async def be_cancelled() -> None:
            with scope:
                await server.get()

        async def consume() -> None:
            got.extend(await take(server, 4))

        async with pair() as (server, client), trio.open_nursery() as nursery:
            nursery.start_soon(be_cancelled)
            await wait_all_tasks_blocked()
            nursery.start_soon(consume)
            await wait_all_tasks_blocked()
            arrive(*[client.put(number) for number in range(4)])
            scope.cancel()
        assert got == list(range(4))

    run(main)


async def one_get(server: Communicator, chance: random.Random) -> Any:
    """Get, and be cancelled or not at some moment or other."""
    moment = chance.uniform(0, 0.0005)
    match chance.randrange(4):
        case 0:
            with contextlib.suppress(TimeoutError):
                return (await server.get(timeout=moment)).data
        case 1:
            with trio.move_on_after(moment):
                return (await server.get()).data
        case 2:
            return (await server.get(timeout=LIMIT)).data
        case 3:
            got: list[Any] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(get_into, server, None, got)
                for _ in range(chance.randrange(5)):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            return got[0] if got else None
    return None


@pytest.mark.slow
def test_randomly_cancelled_gets_lose_nothing() -> None:
    chance = random.Random(20)

    async def feed(client: Communicator) -> None:
        for number in range(600):
            delivery = client.put(number)
            if chance.random() < 0.5:
                await delivery

    async def main() -> None:
        async with pair() as (server, client), trio.open_nursery() as nursery:
            nursery.start_soon(feed, client)
            got = [data for _ in range(600) if (data := await one_get(server, chance)) is not None]
            early = len(got)
            assert 60 < early < 540, f"{early} of 600 gets were not broken off: this tries too little"
            got += await take(server, 600 - early, timeout=LIMIT)
            assert got == list(range(600))
            with pytest.raises(TimeoutError):
                await server.get(timeout=0)

    run(main)


def test_a_cancelled_get_leaves_its_buffer_unchanged() -> None:
    async def main() -> None:
        into = np.zeros(10)

        async def get() -> None:
            assert np.shares_memory((await server.get(into=into)).data, into)

        async with pair() as (server, client):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(get)
                await wait_all_tasks_blocked()
                arrive(client.put(np.ones(10)))
                nursery.cancel_scope.cancel()
            assert not into.any()
            await get()
            assert into.all()

    run(main)


def test_ctrl_c_in_a_get_loses_no_message() -> None:
    got: list[Any] = []

    def load(stream: Any) -> Any:
        signal.raise_signal(signal.SIGINT)  # the message is taken, and not yet returned
        return SerializationOptions().load(stream)

    async def main() -> None:
        async with (
            new(Purpose.SERVER, serialization=SerializationOptions(load=load)) as server,
            new(Purpose.CLIENT, server.netloc) as client,
        ):
            client.put("message")
            got.append((await server.get()).data)
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        run(main)
    assert got == ["message"]


# Order and fairness.


def test_gets_of_different_peers_wait_side_by_side() -> None:
    async def main() -> None:
        got: list[Any] = []

        async def get(client: Communicator, first: trio.Event) -> None:
            got.append((await server.get(client.id)).data)
            first.set()

        async with new(Purpose.SERVER) as server, trio.open_nursery() as nursery:
            clients = [new(Purpose.CLIENT, server.netloc) for _ in range(2)]
            await introduce(server, *clients)
            events = [trio.Event(), trio.Event()]
            nursery.start_soon(get, clients[0], events[0])
            nursery.start_soon(get, clients[1], events[1])
            await clients[1].put("from the second")
            await events[1].wait()
            await clients[0].put("from the first")
            await events[0].wait()
            assert got == ["from the second", "from the first"]
            for client in clients:
                await client.close()

    run(main)


def test_a_flood_of_messages_leaves_other_tasks_their_turn() -> None:
    async def main() -> None:
        count = 0

        async def tick() -> None:
            nonlocal count
            while True:
                count += 1
                await trio.lowlevel.checkpoint()

        async with pair() as (server, client), trio.open_nursery() as nursery:
            arrive(*[client.put(number) for number in range(100)])
            nursery.start_soon(tick)
            await take(server, 100)
            nursery.cancel_scope.cancel()
        assert count >= 100

    run(main)


# Cancelling a put.


def test_a_put_that_is_cancelled_in_time_is_taken_back() -> None:
    async def main() -> None:
        async with pair(connection=NARROW) as (server, client):
            await client.put("held")
            by_itself, by_scope, by_time, stays = (client.put(number) for number in range(4))
            assert by_itself.cancel()
            with pytest.raises(CancelledError):
                await by_itself
            async with trio.open_nursery() as nursery:
                nursery.start_soon(by_scope.wait)
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            with trio.move_on_after(0.01) as scope:
                await by_time
            assert scope.cancelled_caught
            assert [one.cancelled() for one in (by_itself, by_scope, by_time, stays)] == [True, True, True, False]
            assert await take(server, 2) == ["held", 3]
            await stays
            assert not stays.cancel()

    run(main)


def test_a_late_cancel_of_put_ends_the_wait_but_not_the_delivery() -> None:
    async def main() -> None:
        async with pair() as (server, client):
            release = hold(server)  # the bytes leave the client, and no ACK comes
            delivery = client.put("left")
            for _ in range(2):
                client._core._endpoint.home.ask(lambda: None)
            with trio.move_on_after(0.01) as scope:
                await delivery
            assert scope.cancelled_caught
            assert (delivery.done(), delivery.cancelled()) == (False, False)
            release.set()
            await delivery
            assert (await server.get()).data == "left"

    run(main)


# Iterating.


def test_iteration_ends_after_the_last_message_of_a_closed_peer() -> None:
    async def main() -> None:
        async with pair() as (server, client), trio.open_nursery() as nursery:
            for number in range(100):
                server.put(number)
            nursery.start_soon(server.close)
            assert [message.data async for message in client] == list(range(100))
            assert [message async for message in client] == []
            await client.close()

    run(main)


def test_iterating_goes_on_after_a_message_that_cannot_be_loaded() -> None:
    def load(stream: Any) -> Any:
        data = SerializationOptions().load(stream)
        if data == "bad":
            raise LookupError("not today")
        return data

    async def main() -> None:
        async with pair(serialization=SerializationOptions(load=load)) as (server, client):
            for data in ("bad", "better"):
                await client.put(data)
            messages = aiter(server)
            with pytest.raises(Unreadable, match="not today") as raised:
                await anext(messages)
            assert raised.value.peer == client.id
            assert (await anext(messages)).data == "better"

    run(main)


# Closing.


def test_async_with_delivers_and_after_an_error_waits_for_linger() -> None:
    puts: list[Delivery] = []

    async def leave_by_an_error(netloc: NetworkLocation) -> None:
        async with new(Purpose.CLIENT, netloc, connection=ConnectionOptions(linger=0.05)) as client:
            puts.extend(client.put(number) for number in range(2))
            await puts[0]
            raise LookupError

    async def main() -> None:
        async with new(Purpose.SERVER, connection=NARROW) as server:
            async with new(Purpose.CLIENT, server.netloc) as client:
                delivery = client.put("inside")
            delivery.result()
            assert (await server.get()).data == "inside"
            with pytest.raises(LookupError):
                await leave_by_an_error(server.netloc)
            with pytest.raises(Closed):
                await puts[-1]

    run(main)


def test_close_returns_the_undelivered_count_after_its_timeout() -> None:
    async def main() -> None:
        async with pair(connection=NARROW) as (server, client):
            await client.put("held")
            waiting = [client.put(number) for number in range(3)]
            waiting.pop().cancel()
            assert await client.close(timeout=0.01) == 2
            for delivery in waiting:
                with pytest.raises(Closed) as closed:
                    await delivery
                assert closed.value.peer == server.id
            assert await client.close() == 2
            with pytest.raises(Closed):
                await client.put("too late")

    run(main)


@pytest.mark.parametrize("moment", ["before", "begun", "by a timeout", "in async with"])
def test_a_cancelled_close_ends_at_once_and_leaves_no_thread(moment: str) -> None:
    async def close(client: Communicator, scope: trio.CancelScope) -> None:
        with scope:
            if moment == "before":
                scope.cancel()
            if moment == "in async with":
                async with client:
                    scope.cancel()
            await client.close()
        assert scope.cancelled_caught

    async def main() -> None:
        async with new(Purpose.SERVER, connection=NARROW) as server:
            threads = set(threading.enumerate())
            client = new(Purpose.CLIENT, server.netloc, connection=NARROW)
            await introduce(server, client)
            await client.put("held")
            waits = client.put("waits")
            start = time.monotonic()
            async with trio.open_nursery() as nursery:
                scope = trio.move_on_after(0.05) if moment == "by a timeout" else trio.CancelScope()
                nursery.start_soon(close, client, scope)
                await wait_all_tasks_blocked()
                if moment == "begun":
                    scope.cancel()
            assert time.monotonic() - start < 5.0, "linger is ten seconds, and a peer that is there is waited for"
            assert set(threading.enumerate()) == threads
            with pytest.raises(Closed):
                waits.result()
            assert await client.close() == 1

    run(main)


def test_ctrl_c_as_a_close_begins_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def start_and_interrupt(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "netq-aside":
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        server = new(Purpose.SERVER)
        made.append(server)
        client = new(Purpose.CLIENT, server.netloc, connection=NARROW)
        made.append(client)
        await introduce(server, client)
        monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)
        await server.close()

    made: list[Communicator] = []
    with pytest.raises(KeyboardInterrupt):
        run(main)
    assert [thread for thread in threading.enumerate() if thread.name == "netq-aside"] == []
    assert [one._core.close(0) for one in reversed(made)] == [0, 0]


def test_waiting_for_the_loops_does_not_block_trio() -> None:
    ended: list[str] = []

    async def ask(client: Communicator, scope: trio.CancelScope) -> None:
        with scope:
            await client.statistics()
        assert scope.cancelled_caught
        ended.append("asking")

    async def main() -> None:
        async with pair() as (_, client), trio.open_nursery() as nursery:
            release = hold(client)
            scope = trio.CancelScope()
            nursery.start_soon(ask, client, scope)
            nursery.start_soon(client.close)
            await wait_all_tasks_blocked()
            scope.cancel()
            await wait_all_tasks_blocked()
            assert ended == [], "its thread is left behind"
            release.set()
        assert ended == ["asking"]

    run(main)


def test_statistics_are_those_of_the_peers() -> None:
    async def main() -> None:
        async with pair() as (server, client):
            figures = await server.statistics()
            assert set(figures) == {client.id}
            assert (figures[client.id].messages_in, figures[client.id].connected) == (1, True)

    run(main)


# Events, and whose thread it is.


@pytest.mark.parametrize("timeout", [None, 0.0])
def test_events_run_in_trio_before_later_messages(timeout: float | None) -> None:
    async def main() -> None:
        told: list[tuple[str, uuid.UUID, bool]] = []
        token = trio.lowlevel.current_trio_token()

        def tell(name: str, peer: uuid.UUID) -> None:
            told.append((name, peer, trio.lowlevel.current_trio_token() is token))
            if name == "ini":
                server.put("welcome", peer)

        events = EventOptions(ini=functools.partial(tell, "ini"), fin=functools.partial(tell, "fin"))
        async with new(Purpose.SERVER, events=events) as server:
            for number in range(20):
                async with new(Purpose.CLIENT, server.netloc) as client:
                    arrive(client.put(number))  # the event and the message are both there, and neither is seen
                    assert await server.get(timeout=timeout) == (client.id, number)
                    assert told[-1] == ("ini", client.id, True)
                    assert (await client.get()).data == "welcome"
                with pytest.raises(Closed):
                    await server.get(client.id)
                assert told[-1] == ("fin", client.id, True)
        assert len(told) == 40

    run(main)


def test_a_failing_event_is_logged_and_trio_goes_on(log: LogRecorder) -> None:
    def fail(peer: uuid.UUID) -> None:
        raise LookupError("a bug of the user's")

    async def main() -> None:
        async with (
            new(Purpose.SERVER, events=EventOptions(ini=fail)) as server,
            new(Purpose.CLIENT, server.netloc) as client,
        ):
            await introduce(server, client)

    run(main)
    assert len(log.having("an event function failed")) == 1


def test_another_trio_run_and_none_are_refused_by_name() -> None:
    async def use(communicator: Communicator, delivery: Delivery) -> None:
        with pytest.raises(RuntimeError, match=r"put\(\): .* belongs to the trio\.run that it was made in"):
            communicator.put("x")
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "get": communicator.get,
            "close": communicator.close,
            "statistics": communicator.statistics,
            "wait": delivery.wait,
        }
        for name, call in calls.items():
            with pytest.raises(RuntimeError, match=rf"{name}\(\): .* belongs to the trio\.run that it was made in"):
                await call()

    def elsewhere(communicator: Communicator, delivery: Delivery) -> None:
        with pytest.raises(RuntimeError, match=r"put\(\): .* here no trio\.run runs"):
            communicator.put("x")
        trio.run(use, communicator, delivery)

    async def main() -> None:
        async with new(Purpose.SERVER) as server:
            failed: list[BaseException] = []
            thread = threading.Thread(target=record, args=(failed, elsewhere, server, server.put("x")))
            thread.start()
            thread.join()
            assert failed == []

    async def in_asyncio() -> None:
        with pytest.raises(RuntimeError, match=r"new\(\): .* here no trio\.run runs"):
            netq.trio.new()

    run(main)
    asyncio.run(in_asyncio())


def record(failed: list[BaseException], function: Callable[..., object], *args: Any) -> None:
    try:
        function(*args)
    except BaseException as error:
        failed.append(error)


def test_the_end_of_trio_does_not_end_the_communicator(log: LogRecorder) -> None:
    made: list[Communicator] = []
    pending: list[Delivery] = []

    async def main() -> None:
        events = EventOptions(ini=print, fin=print)
        server = new(Purpose.SERVER, events=events)
        client = new(Purpose.CLIENT, server.netloc, connection=NARROW)
        made.extend([server, client])
        await introduce(server, client)
        await server.put("held")
        pending.append(server.put("pending"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.get)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        pending[0]._follow()  # as for a task that waits

    async def close() -> None:
        with pytest.raises(RuntimeError, match=r"belongs to the trio\.run"):
            made[0].put("x")
        assert [await one.close() for one in reversed(made)] == [0, 0]

    run(main)
    core, other = (one._core for one in made)
    assert [other.get(timeout=LIMIT).data for _ in range(2)] == ["held", "pending"]
    pending[0].delivery.result(LIMIT)
    other.put("to the deserted").result(LIMIT)
    assert core.get(timeout=LIMIT).data == "to the deserted"
    run(close)
    assert log.having("failed") == log.having("internal error") == []


def test_without_trio_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trio", None)
    monkeypatch.delitem(sys.modules, "netq.trio")
    monkeypatch.delattr("netq.trio")
    with pytest.raises(ImportError, match=r"netq\.trio needs trio: pip install trio"):
        importlib.import_module("netq.trio")
