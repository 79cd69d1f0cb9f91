"""The asyncio front, under asyncio and uvloop: what it promises beyond what the conformance suite asks for."""

from __future__ import annotations

import asyncio
import functools
import gc
import math
import os
import random
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, NoReturn, TypeVar

import pytest
import uvloop

import netq
import netq.aio
from netq import (
    AddressError,
    Closed,
    CommunicatorOptions,
    ConnectionOptions,
    EventOptions,
    InvalidOption,
    Message,
    MessageTooLarge,
    NetworkLocation,
    Purpose,
    QueueFull,
    SecurityOptions,
    Unreadable,
)
from netq.aio import Communicator, Delivery
from netq.security import certificates
from netq.testing.fixtures import LIMIT
from netq.testing.log import LogRecorder

pytestmark = pytest.mark.usefixtures("own_garbage")

HERE = NetworkLocation("127.0.0.1", 0)
RANDOM = 600  # gets that are broken off by chance, or not
NARROW = ConnectionOptions(window=1)  # a message fits only alone: the second waits until the first is taken
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]
Security = dict[Purpose, SecurityOptions]


@pytest.fixture(scope="module", autouse=True)
def libuv() -> None:
    """Let libuv open the pipe that it has once in a process, and never closes, before a test begins."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0))


@pytest.fixture(params=["tcp", "tls"])
def security(request: pytest.FixtureRequest, files: certificates.Files) -> Security:
    if request.param == "tcp":
        return {}
    return {
        Purpose.SERVER: SecurityOptions(files.key, files.certificate),
        Purpose.CLIENT: SecurityOptions(certificate=files.authority),
    }


@pytest.fixture
def complaints() -> list[dict[str, Any]]:
    """What the event loop's exception handler is told."""
    return []


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest, complaints: list[dict[str, Any]]) -> Iterator[Run[Any]]:
    """Runs a coroutine in an event loop, which has nothing to complain of."""
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        yield lambda main: runner.run(asyncio.wait_for(main, LIMIT))
        gc.collect()  # a future logs an error that was not retrieved when it is collected
        runner.run(asyncio.sleep(0))
    assert complaints == []


def new(
    purpose: Purpose, netloc: NetworkLocation = HERE, security: Security | None = None, **options: Any
) -> Communicator:
    secured = (security or {}).get(purpose)
    return netq.aio.new(purpose=purpose, options=CommunicatorOptions(netloc=netloc, security=secured, **options))


@asynccontextmanager
async def pair(security: Security | None = None, **options: Any) -> AsyncIterator[tuple[Communicator, Communicator]]:
    """A server and a client that know each other; the options are for both."""
    async with (
        new(Purpose.SERVER, security=security, **options) as server,
        new(Purpose.CLIENT, server.netloc, security, **options) as client,
    ):
        await introduce(server, client)
        yield server, client


async def introduce(server: Communicator, *clients: Communicator) -> None:
    for client in clients:
        future = client.put("hello")
        assert await server.get(client.id) == (client.id, "hello")
        await future


def arrive(*futures: Delivery) -> None:
    """Block the event loop until the peers hold the messages: what waits for them there is given them meanwhile."""
    for future in futures:
        future.delivery.result(LIMIT)


def hold(communicator: Communicator) -> threading.Event:
    """Have the communicator's own thread do nothing until the event is set."""
    held, release = threading.Event(), threading.Event()

    def block() -> None:
        held.set()
        release.wait(LIMIT)

    communicator._core._endpoint.home.call(block)
    assert held.wait(LIMIT)
    return release


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_many_messages_each_way_come_once_and_in_order(run: Run[None], security: Security) -> None:
    async def answer(server: Communicator) -> None:
        async for peer, data in server:
            server.put(data, peer)

    async def main() -> None:
        async with pair(security) as (server, client):
            answering = asyncio.create_task(answer(server))
            futures = [client.put(number) for number in range(300)]
            assert [(await client.get()).data for _ in range(300)] == list(range(300))
            await asyncio.gather(*futures)
            with pytest.raises(TimeoutError):
                await client.get(timeout=0)
            await client.close()
            await server.close()
            await answering

    run(main())


def test_a_put_to_several_has_a_future_for_each_in_order(run: Run[None]) -> None:
    async def main() -> None:
        async with new(Purpose.SERVER) as server:
            clients = [new(Purpose.CLIENT, server.netloc) for _ in range(3)]
            await introduce(server, *clients)
            ids = [client.id for client in reversed(clients)]
            called: list[object] = []
            future = server.put("to all", *ids)
            future.add_done_callback(called.append)
            assert [part.peer for part in future.futures] == ids
            assert future.peer is None
            await asyncio.wait_for(future, LIMIT)
            assert await asyncio.gather(*future.futures) == [None] * 3
            done, pending = await asyncio.wait([future, *future.futures], timeout=LIMIT)
            assert (len(done), len(pending), called) == (4, 0, [future])
            again = server.put("again", *ids)
            arrive(again)
            assert not again.cancel(), "taken back, although they hold it"
            assert not again.cancelled()
            assert all(part.done() for part in again.futures), "all is done before its parts"
            await again
            assert [[(await client.get()).data for _ in range(2)] for client in clients] == [["to all", "again"]] * 3
            await asyncio.gather(*(client.close() for client in clients))

    run(main())


def test_a_put_to_one_peer_is_its_future_and_to_none_is_done(run: Run[None]) -> None:
    async def main() -> None:
        async with new(Purpose.SERVER) as server:
            none = server.put("no client is here")
            assert none.done()
            await none
            async with new(Purpose.CLIENT, server.netloc) as client:
                await introduce(server, client)
                one = server.put("one", client.id)
                assert isinstance(one, asyncio.Future)
                assert one.futures == (one,)
                assert one.peer == client.id
                await one

    run(main())


def test_errors_are_those_of_the_synchronous_one(run: Run[None]) -> None:
    small = ConnectionOptions(message_size=1000, window=1, queue_size=1)

    async def main() -> None:
        async with pair(connection=small) as (server, client):
            absent = uuid.uuid4()
            with pytest.raises(Closed) as closed:
                await server.put("?", absent)
            assert closed.value.peer == absent
            server.put("? not awaited, not logged", absent, absent)
            with pytest.raises(MessageTooLarge):
                await client.put(bytes(2000))
            await client.put("held")
            waits, full = client.put("waits"), client.put("one more")
            with pytest.raises(QueueFull):
                await full
            both = server.put("both", absent, client.id)
            with pytest.raises(Closed, match=str(absent)):
                await both
            assert [isinstance(part.exception(), Closed) for part in both.futures] == [True, False]
            with pytest.raises(ValueError, match="lane 16"):
                client.put("x", lane=16)
            assert [(await server.get()).data for _ in range(2)] == ["held", "waits"]
            await waits
            with pytest.raises(TimeoutError, match=r"no message within 0\.01 s"):
                await server.get(timeout=0.01)
            with pytest.raises(TypeError, match=r"get: the peer 0\.2 is a float; expected a uuid\.UUID"):
                await server.get(0.2)  # type: ignore[arg-type]
            for wrong in (math.nan, "1"):
                with pytest.raises(TypeError, match=rf"get: timeout={wrong!r}; expected seconds, or None"):
                    await server.get(timeout=wrong)  # type: ignore[arg-type]

    run(main())


def test_new_raises_what_netq_new_raises(run: Run[None]) -> None:
    async def main() -> None:
        with pytest.raises(InvalidOption, match="options: a dict"):
            netq.aio.new(options={})  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="purpose"):
            netq.aio.new(purpose="serve")
        async with new(Purpose.SERVER) as server:
            with pytest.raises(AddressError):
                new(Purpose.SERVER, server.netloc)

    run(main())


def test_options_are_the_user_s(run: Run[None]) -> None:
    async def main() -> None:
        options = CommunicatorOptions(netloc=HERE, events=EventOptions(ini=print))
        async with netq.aio.new(purpose=Purpose.SERVER, options=options) as server:
            assert server.options is options
            assert server.id == options.id
            assert server.netloc.port != 0
        async with netq.aio.new() as client:
            assert client.options.netloc == client.netloc == NetworkLocation()

    run(main())


# Cancelling a get.


@pytest.mark.parametrize("phase", ["not begun", "waiting", "given", "timed out"])
def test_a_cancelled_get_loses_nothing_at_any_point(run: Run[None], phase: str) -> None:
    async def main() -> None:
        async with pair() as (server, client):
            getting = asyncio.create_task(server.get(timeout=0 if phase == "timed out" else None))
            await turns(0 if phase == "not begun" else 1)
            if phase in ("given", "timed out"):
                arrive(client.put("first"))
            assert not getting.done()
            getting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await getting
            arrive(client.put("first" if phase in ("not begun", "waiting") else "second"), client.put("third"))
            assert (await server.get(timeout=0)).data == "first"
            assert (await server.get()).data == ("third" if phase in ("not begun", "waiting") else "second")

    run(main())


def test_messages_of_cancelled_gets_stay_in_order(run: Run[None]) -> None:
    async def main() -> None:
        async with pair() as (server, client):
            getting = [asyncio.create_task(server.get()) for _ in range(5)]
            await turns(1)
            arrive(*[client.put(number) for number in range(7)])
            for task in getting:
                task.cancel()
            await asyncio.wait(getting)
            assert [(await server.get(timeout=0)).data for _ in range(7)] == list(range(7))

    run(main())


def test_the_next_get_gets_the_message_of_a_cancelled_one(run: Run[None]) -> None:
    async def main() -> None:
        async with pair() as (server, client):
            getting = asyncio.create_task(server.get())
            await turns(1)
            arrive(*[client.put(number) for number in range(4)])
            getting.cancel()
            assert [(await server.get()).data for _ in range(4)] == list(range(4))

    run(main())


def test_the_other_consumer_sees_all_in_order_after_a_cancel(run: Run[None]) -> None:
    async def main() -> None:
        async with pair() as (server, client):
            got: list[int] = []

            async def consume() -> None:
                while len(got) < 4:
                    got.append((await server.get()).data)

            one, other = (asyncio.create_task(consume()) for _ in range(2))
            await turns(1)
            arrive(*[client.put(number) for number in range(4)])
            one.cancel()
            await other
            assert got == list(range(4))

    run(main())


@pytest.mark.parametrize("named", [False, True])
def test_get_does_not_end_while_the_last_message_is_reserved(run: Run[None], named: bool) -> None:
    async def main() -> None:
        async with pair() as (server, client):
            peers = (client.id,) if named else ()
            one, other = (asyncio.create_task(server.get(*peers)) for _ in range(2))
            await turns(1)
            arrive(client.put("the last"))
            client._core.close() if named else server._core.close(0)
            one.cancel()
            assert (await other).data == "the last"
            with pytest.raises(Closed):
                await server.get(*peers)

    run(main())


class Alarm(Exception):
    """What a signal handler raises."""


@pytest.mark.parametrize("where", ["behind the poll", "before the task goes on"])
def test_a_get_that_is_served_goes_on_though_a_handler_raises(
    run: Run[None], where: str, monkeypatch: pytest.MonkeyPatch, complaints: list[dict[str, Any]]
) -> None:
    async def main() -> None:
        async with pair() as (server, client):
            getting = asyncio.create_task(server.get())
            await asyncio.sleep(0)
            poll_ready, set_result = server._baton.poll_ready, netq.aio._ImmediateFuture.set_result
            raised: list[str] = []

            def poll_and_raise(poller: Any) -> bool:
                goes_on = poll_ready(poller)
                if server._woken and not raised:
                    raised.append(where)
                    raise Alarm
                return goes_on

            def set_and_raise(turn: Any, result: None) -> None:
                set_result(turn, result)
                if not raised:
                    raised.append(where)
                    raise Alarm

            if where == "behind the poll":
                monkeypatch.setattr(server._baton, "poll_ready", poll_and_raise)
            else:
                monkeypatch.setattr(netq.aio._ImmediateFuture, "set_result", set_and_raise)
            client.put("message")
            assert (await getting).data == "message"
            if raised:  # else the loop's own thread has received it
                assert [type(each["exception"]) for each in complaints] == [Alarm]
                complaints.clear()

    run(main())


async def one_get(server: Communicator, chance: random.Random) -> Message | None:
    """Get, and be cancelled or not at some moment or other."""
    moment = chance.uniform(0, 0.0005)
    match chance.randrange(6):
        case 0:
            return await server.get(timeout=moment)
        case 1:
            return await asyncio.wait_for(server.get(), moment)
        case 2:
            async with asyncio.timeout(moment):
                return await server.get()
        case 3:
            return await server.get(timeout=LIMIT)
    getting = asyncio.create_task(server.get())
    await turns(chance.randrange(5))
    getting.cancel()
    return await getting


@pytest.mark.slow
def test_randomly_cancelled_gets_lose_nothing(run: Run[None]) -> None:
    chance = random.Random(20)

    async def feed(client: Communicator) -> None:
        for number in range(RANDOM):
            future = client.put(number)
            if chance.random() < 0.5:
                await future

    async def main() -> None:
        got: list[int] = []
        broken = 0
        async with pair() as (server, client):
            feeding = asyncio.create_task(feed(client))
            for _ in range(RANDOM):
                try:
                    message = await one_get(server, chance)
                except (TimeoutError, asyncio.CancelledError):
                    broken += 1
                else:
                    assert message is not None
                    got.append(message.data)
            early = len(got)
            got += [(await server.get(timeout=LIMIT)).data for _ in range(RANDOM - early)]
            await feeding
            assert got == list(range(RANDOM))
            assert broken + early == RANDOM
            assert min(broken, early) > RANDOM // 10, (
                f"{broken} gets were broken off, {early} were not: this tries too little"
            )
            with pytest.raises(TimeoutError):
                await server.get(timeout=0)

    run(main())


def test_gets_of_different_peers_wait_side_by_side(run: Run[None]) -> None:
    async def main() -> None:
        async with new(Purpose.SERVER) as server:
            clients = [new(Purpose.CLIENT, server.netloc) for _ in range(2)]
            await introduce(server, *clients)
            first, second = (asyncio.create_task(server.get(client.id)) for client in clients)
            await clients[1].put("from the second")
            assert await second == (clients[1].id, "from the second")
            assert not first.done()
            await clients[0].put("from the first")
            assert await first == (clients[0].id, "from the first")
            await asyncio.gather(*(client.close() for client in clients))

    run(main())


def test_gets_are_served_in_the_order_of_their_coming(run: Run[None]) -> None:
    async def main() -> None:
        async with pair() as (server, client):
            finished: list[tuple[int, int]] = []

            async def get(place: int) -> None:
                for _ in range(10):
                    message = await server.get()
                    finished.append((place, message.data))

            getting = [asyncio.create_task(get(place)) for place in range(20)]
            await turns(1)
            arrive(*[client.put(number) for number in range(200)])
            await asyncio.gather(*getting)
            assert finished == [(number % 20, number) for number in range(200)]

    run(main())


def test_a_flood_of_messages_leaves_other_tasks_their_turn(run: Run[None]) -> None:
    async def main() -> None:
        count = 0

        async def tick() -> None:
            nonlocal count
            while True:
                count += 1
                await asyncio.sleep(0)

        async with pair() as (server, client):
            arrive(*[client.put(number) for number in range(100)])
            ticking = asyncio.create_task(tick())
            for _ in range(100):
                await server.get()
            ticking.cancel()
        assert count >= 100

    run(main())


# Cancelling a put.


def test_a_put_that_is_cancelled_in_time_is_taken_back(run: Run[None]) -> None:
    async def await_it(future: Delivery) -> None:
        await future

    async def main() -> None:
        async with pair(connection=NARROW) as (server, client):
            await client.put("held")
            by_itself, by_task, by_time, by_wait_for, stays = (client.put(number) for number in range(5))
            assert by_itself.cancel()
            assert by_itself.cancelled()
            assert not by_itself.cancel(), "once more"
            task = asyncio.create_task(await_it(by_task))
            await turns(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await by_time
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(by_wait_for, 0.01)
            gone = (by_itself, by_task, by_time, by_wait_for)
            assert [future.delivery.cancelled() for future in gone] == [True] * 4
            assert [(await server.get()).data for _ in range(2)] == ["held", 4]
            await stays
            assert not stays.cancel()
            assert (await client.statistics())[server.id].messages_out == 3

    run(main())


def test_a_late_cancel_of_put_ends_it_but_not_its_delivery(run: Run[None]) -> None:
    async def main() -> None:
        async with pair() as (server, client):
            release = hold(server)  # the bytes leave the client, and no ACK comes
            future, other = client.put("left"), client.put("left too")
            for _ in range(2):
                client._core._endpoint.home.ask(lambda: None)
            assert future.delivery.running()
            assert not future.cancel(), "taken back, although it had left"
            assert future.cancelled()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await other
            assert not future.delivery.done()
            release.set()
            arrive(future, other)
            assert [(await server.get()).data for _ in range(2)] == ["left", "left too"]

    run(main())


def test_cancelling_a_put_to_several_takes_back_what_it_can(run: Run[None]) -> None:
    async def main() -> None:
        async with new(Purpose.SERVER) as server:
            narrow = new(Purpose.CLIENT, server.netloc, connection=NARROW)
            wide = new(Purpose.CLIENT, server.netloc)
            await introduce(server, narrow, wide)
            await server.put("held", narrow.id)
            both = server.put("both", narrow.id, wide.id)
            to_narrow, to_wide = both.futures
            await to_wide
            assert not both.cancel()
            assert to_narrow.cancelled()
            await both  # one of the two has got it
            neither = server.put("neither", narrow.id, narrow.id)
            assert neither.cancel()
            assert neither.cancelled()
            assert all(part.cancelled() for part in neither.futures)
            assert [(await narrow.get()).data, (await wide.get()).data] == ["held", "both"]
            parts = server.put("parts", narrow.id, wide.id).futures
            assert await asyncio.gather(*parts) == [None, None]
            await asyncio.gather(narrow.close(), wide.close())

    run(main())


def test_a_put_to_several_is_cancelled_when_all_parts_are(run: Run[None]) -> None:
    async def main() -> None:
        async with pair(connection=NARROW) as (server, client):
            await server.put("held")
            both = server.put("both", client.id, client.id)
            assert [part.cancel() for part in both.futures] == [True, True]
            with pytest.raises(asyncio.CancelledError):
                await both
            assert (await client.get()).data == "held"

    run(main())


# Iterating.


def test_iteration_ends_after_the_last_message_of_a_closed_peer(run: Run[None], security: Security) -> None:
    async def main() -> None:
        async with pair(security) as (server, client):
            for number in range(100):
                server.put(number)
            closing = asyncio.create_task(server.close())
            assert [message.data async for message in client] == list(range(100))
            assert [message async for message in client] == []
            assert not closing.done()
            await client.close()
            assert await closing == 0
            assert [message async for message in server] == []

    run(main())


def test_a_waiting_iteration_ends_when_the_communicator_closes(run: Run[None]) -> None:
    async def main() -> None:
        async with new(Purpose.SERVER) as server:

            async def collect() -> list[Message]:
                return [message async for message in server]

            collecting = asyncio.create_task(collect())
            await turns(1)
            assert await server.close() == 0
            assert await collecting == []

    run(main())


def test_iterating_goes_on_after_a_message_that_cannot_be_loaded(run: Run[None]) -> None:
    def load(stream: Any) -> Any:
        data = netq.SerializationOptions().load(stream)
        if data == "bad":
            raise LookupError("not today")
        return data

    async def main() -> None:
        async with pair(serialization=netq.SerializationOptions(load=load)) as (server, client):
            await asyncio.gather(*(client.put(data) for data in ("good", "bad", "better")))
            await client.close()
            messages = aiter(server)
            assert (await anext(messages)).data == "good"
            with pytest.raises(Unreadable, match="not today") as raised:
                await anext(messages)
            assert raised.value.peer == client.id
            assert (await anext(messages)).data == "better"

    run(main())


# Closing.


def test_async_with_delivers_and_after_an_error_waits_for_linger(run: Run[None]) -> None:
    async def main() -> None:
        async with new(Purpose.SERVER, connection=NARROW) as server:
            async with new(Purpose.CLIENT, server.netloc) as client:
                future = client.put("inside")
            assert future.done()
            await future
            assert (await server.get()).data == "inside"
            with pytest.raises(LookupError):
                await leave_by_an_error(server.netloc)
            with pytest.raises(Closed):
                await puts[-1]

    puts: list[Delivery] = []

    async def leave_by_an_error(netloc: NetworkLocation) -> None:
        narrow = ConnectionOptions(linger=0.05)
        async with new(Purpose.CLIENT, netloc, connection=narrow) as client:
            puts.extend(client.put(number) for number in range(2))
            await puts[0]
            raise LookupError

    run(main())


def test_close_returns_the_undelivered_count_after_its_timeout(run: Run[None], security: Security) -> None:
    async def main() -> None:
        async with pair(security, connection=NARROW) as (server, client):
            await client.put("held")
            waiting = [client.put(number) for number in range(3)]
            waiting.pop().cancel()
            assert await client.close(timeout=0.01) == 2
            for future in waiting:
                with pytest.raises(Closed) as closed:
                    await future
                assert closed.value.peer == server.id
            assert await client.close() == 2
            with pytest.raises(Closed):
                await client.put("too late")

    run(main())


@pytest.mark.parametrize("moment", ["at once", "begun", "by a timeout", "twice"])
def test_a_cancelled_close_ends_at_once_and_leaves_no_thread(run: Run[None], moment: str) -> None:
    async def cancel(closing: asyncio.Task[int]) -> None:
        await turns(1)
        closing.cancel()
        await turns(5 if moment == "twice" else 0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    async def main() -> None:
        before = set(threading.enumerate())
        async with new(Purpose.SERVER, connection=NARROW) as server:
            threads = set(threading.enumerate())
            async with new(Purpose.CLIENT, server.netloc, connection=NARROW) as client:
                await introduce(server, client)
                await client.put("held")
                waits = client.put("waits")
                start = time.monotonic()
                if moment == "by a timeout":
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await client.close()
                elif moment == "at once":
                    closing = asyncio.create_task(client.close())
                    closing.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await closing
                    assert await client.close(timeout=0) == 1, "it had not begun"
                else:
                    await cancel(asyncio.create_task(client.close()))
                assert time.monotonic() - start < 5.0, "linger is ten seconds, and a peer that is there is waited for"
                assert set(threading.enumerate()) == threads
                assert waits.done()
                assert isinstance(waits.exception(), Closed)
        assert set(threading.enumerate()) == before

    run(main())


def test_waiting_for_the_loops_does_not_block_the_event_loop(run: Run[None]) -> None:
    async def main() -> None:
        async with pair() as (_, client):
            release = hold(client)
            asking = asyncio.create_task(client.statistics())
            closing = asyncio.create_task(client.close())
            await turns(100)
            assert not asking.done()
            assert not closing.done()
            asking.cancel()
            await turns(100)
            assert not asking.done(), "its thread is left behind"
            release.set()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await closing == 0
            assert await client.statistics() == {}

    run(main())


def test_statistics_are_those_of_the_peers(run: Run[None]) -> None:
    async def main() -> None:
        async with pair() as (server, client):
            figures = await server.statistics()
            assert set(figures) == {client.id}
            assert (figures[client.id].messages_in, figures[client.id].connected) == (1, True)

    run(main())


# Events, and whose thread it is.


def test_events_run_in_the_event_loop_before_later_messages(run: Run[None]) -> None:
    async def main() -> None:
        told: list[tuple[str, uuid.UUID, bool]] = []
        loop = asyncio.get_running_loop()

        def tell(name: str, peer: uuid.UUID) -> None:
            told.append((name, peer, asyncio.get_running_loop() is loop))
            if name == "ini":
                server.put("welcome", peer)

        events = EventOptions(ini=functools.partial(tell, "ini"), fin=functools.partial(tell, "fin"))
        async with new(Purpose.SERVER, events=events) as server:
            for number in range(20):
                async with new(Purpose.CLIENT, server.netloc) as client:
                    arrive(client.put(number))  # the event and the message are both there, and neither is seen
                    assert await server.get() == (client.id, number)
                    assert told[-1] == ("ini", client.id, True)
                    assert (await client.get()).data == "welcome"
                with pytest.raises(Closed):
                    await server.get(client.id)
                assert told[-1] == ("fin", client.id, True)
        assert len(told) == 40

    run(main())


def test_an_event_runs_before_its_message_if_the_event_loop_polls_in_between(
    run: Run[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        told: list[uuid.UUID] = []
        async with new(Purpose.SERVER, events=EventOptions(ini=told.append)) as server:
            woken, wake = threading.Event(), server._wake

            def wake_and_tell(future: Any) -> None:
                wake(future)
                woken.set()

            monkeypatch.setattr(server, "_wake", wake_and_tell)

            async def get() -> list[uuid.UUID]:
                await server.get()
                return list(told)

            getting = asyncio.create_task(get())
            await asyncio.sleep(0)

            def poll(client: Communicator) -> None:
                """Poll when the communicator's own thread has received, and the event waits for the event loop."""
                client.put("first")
                assert woken.wait(LIMIT)
                server._ready()

            async with new(Purpose.CLIENT, server.netloc) as client:
                asyncio.get_running_loop().call_soon(poll, client)
                assert await getting == [client.id]

    run(main())


def test_an_event_whose_callback_was_lost_runs_before_the_next_message(run: Run[None]) -> None:
    """The exception of a signal handler may end a callback of the event loop before it begins."""

    async def main() -> None:
        async with pair() as (server, client):
            await introduce(server, client)
            told: list[str] = []
            server._events.append(functools.partial(told.append, "an event"))
            client.put("a message")
            assert (await server.get(), told) == ((client.id, "a message"), ["an event"])

    run(main())


def test_a_failing_event_reaches_the_loops_exception_handler(run: Run[None], complaints: list[dict[str, Any]]) -> None:
    def fail(peer: uuid.UUID) -> None:
        raise LookupError("a bug of the user's")

    async def main() -> None:
        async with (
            new(Purpose.SERVER, events=EventOptions(ini=fail)) as server,
            new(Purpose.CLIENT, server.netloc) as client,
        ):
            await introduce(server, client)
        assert isinstance(complaints.pop()["exception"], LookupError)

    run(main())


def test_a_fork_may_not_get(run: Run[Any]) -> None:
    async def make() -> Communicator:
        return new(Purpose.SERVER)

    async def close() -> None:
        await server.close()

    server = run(make())
    ours, childs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 on, for a process with threads
        pid = os.fork()
    if pid == 0:
        tell_refusal(run, server, childs)
    os.waitpid(pid, 0)
    os.close(childs)
    with open(ours) as words:
        assert words.read().startswith("RuntimeError get(): this process is a fork")
    run(close())


def tell_refusal(run: Run[Any], server: Communicator, file: int) -> NoReturn:
    """In the child: say what comes of a get, and end."""
    try:
        run(server.get())
    except BaseException as error:
        os.write(file, f"{type(error).__name__} {error}".encode())
    os._exit(0)


def test_another_event_loop_may_close_after_the_first_is_closed() -> None:
    async def make() -> Communicator:
        return new(Purpose.SERVER)

    async def close(server: Communicator) -> int:
        with pytest.raises(RuntimeError, match="belongs to the event loop"):
            server.put("x")
        return await server.close()

    server = asyncio.run(make())
    assert asyncio.run(close(server)) == 0


def test_an_interrupted_close_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    join = threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name != "netq-aside":
            return join(thread, timeout)
        monkeypatch.setattr(threading.Thread, "join", join)
        join(thread, LIMIT)
        raise ZeroDivisionError  # as KeyboardInterrupt would, which ends pytest

    async def main(complaints: list[object]) -> int:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context["exception"]))
        server = new(Purpose.SERVER)
        monkeypatch.setattr(threading.Thread, "join", interrupted)
        return await asyncio.wait_for(server.close(), LIMIT)

    complaints: list[object] = []
    assert asyncio.run(main(complaints)) == 0
    assert [type(error) for error in complaints] == [ZeroDivisionError]


def test_another_event_loop_is_refused_by_name(run: Run[Any]) -> None:
    async def use(communicator: Communicator) -> None:
        with pytest.raises(RuntimeError, match=r"put\(\): .* belongs to the event loop that it was made in"):
            communicator.put("x")
        for name, call in (
            ("get", lambda: communicator.get(timeout=0)),
            ("get", lambda: anext(communicator)),
            ("close", communicator.close),
            ("statistics", communicator.statistics),
        ):
            with pytest.raises(RuntimeError, match=rf"{name}\(\): .* belongs to the event loop that it was made in"):
                await call()

    async def main() -> None:
        async with new(Purpose.SERVER) as server:
            thread = asyncio.to_thread(asyncio.run, use(server))
            await thread
            with pytest.raises(RuntimeError, match=r"put\(\): .* here no event loop runs"):
                await asyncio.to_thread(server.put, "x")

    run(main())
    with pytest.raises(RuntimeError, match=r"new\(\): .* here no event loop runs"):
        netq.aio.new()


@pytest.mark.parametrize("kind", LOOPS)
def test_a_closed_event_loop_does_not_end_the_communicator(kind: str, log: LogRecorder) -> None:
    async def main() -> tuple[Communicator, Communicator, asyncio.Task[Message], Delivery]:
        events = EventOptions(ini=print, fin=print)
        server, client = new(Purpose.SERVER, events=events), None
        client = new(Purpose.CLIENT, server.netloc, connection=NARROW)
        await introduce(server, client)
        await server.put("held")
        return server, client, asyncio.create_task(server.get()), server.put("pending")

    with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
        server, client, getting, pending = runner.run(main())
        runner.get_loop().run_until_complete(asyncio.sleep(0))
    assert getting.cancelled()
    core, other = server._core, client._core
    assert [other.get(timeout=LIMIT).data for _ in range(2)] == ["held", "pending"]
    pending.delivery.result(LIMIT)
    other.put("to the deserted").result(LIMIT)
    assert core.get(timeout=LIMIT).data == "to the deserted"
    assert other.close(LIMIT) == core.close(LIMIT) == 0
    assert log.having("internal error") == []
    assert not pending.done(), "no task is left to tell"


DESERTED = """
import asyncio, sys
import netq, netq.aio, uvloop
options = netq.CommunicatorOptions(
    netloc=("127.0.0.1", int(sys.argv[2])), connection=netq.ConnectionOptions(linger=0.5)
)
async def main():
    communicator = netq.aio.new(options=options)
    asyncio.create_task(communicator.get())
    await asyncio.sleep(0)
    communicator.put("no listener")
{"asyncio": asyncio.run, "uvloop": uvloop.run}[sys.argv[1]](main())
print("the event loop is closed", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOOPS)
def test_a_process_that_forgot_to_close_ends_within_linger(kind: str) -> None:
    with netq.new(purpose=Purpose.SERVER, options=CommunicatorOptions(netloc=HERE)) as server:
        vacant = server.netloc
    with ExitStack() as stack:
        command = [sys.executable, "-W", "error", "-c", DESERTED, kind, str(vacant.port)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        stack.enter_context(process)
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "the event loop is closed\n"
        start = time.monotonic()
        _, errors = process.communicate(timeout=LIMIT)
        seconds = time.monotonic() - start
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert 0.4 < seconds < 3.0, f"{seconds:.2f} s, and linger is 0.5 s"
