"""Filters, handlers and record factories of the user: they may raise, block and put, and netq goes on."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import netq
import netq.exchange
from netq import Closed, CommunicatorOptions, ConnectionOptions, NetworkLocation
from netq.log import Log, LogThread, _Line, thread
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.netq import handlers
from tests.netq.makers import plain

HERE = NetworkLocation("127.0.0.1", 0)
Install = Callable[[Callable[[logging.LogRecord], object]], None]
module_log = Log("netq.test")
FAST = ConnectionOptions(retry_min=0.01, retry_max=0.02)


class Calling(logging.Handler):
    """A handler that does what a user's may do."""

    def __init__(self, function: Callable[[logging.LogRecord], object]) -> None:
        super().__init__()
        self._function = function

    def handle(self, record: logging.LogRecord) -> bool:  # a filter's place: nothing of logging guards it
        self._function(record)
        return True


@pytest.fixture
def install() -> Iterator[Install]:
    """Install a handler by its function; all are removed at the end."""
    logger, handlers = logging.getLogger("netq"), list[logging.Handler]()
    level = logger.level
    logger.setLevel(logging.INFO)

    def install(function: Callable[[logging.LogRecord], object]) -> None:
        handlers.append(Calling(function))
        logger.addHandler(handlers[-1])

    yield install
    logger.setLevel(level)
    for handler in handlers:
        logger.removeHandler(handler)


def block(install: Install) -> tuple[threading.Event, threading.Event]:
    """Install a handler that blocks. Return an event that it sets then, and one for which it waits."""
    blocks, free = threading.Event(), threading.Event()

    def handle(record: logging.LogRecord) -> None:
        blocks.set()
        free.wait()

    install(handle)
    return blocks, free


def raise_lookup(record: logging.LogRecord) -> None:
    raise LookupError(f"a handler's defect, at {record.lineno}")


def leave(record: logging.LogRecord) -> None:
    sys.exit("a handler may do even this")


def options(netloc: NetworkLocation = HERE) -> CommunicatorOptions:
    return CommunicatorOptions(netloc=netloc, connection=FAST)


@pytest.mark.parametrize("does", [raise_lookup, leave])
def test_a_handler_that_raises_loses_its_record_only(
    install: Install, log: LogRecorder, capsys: pytest.CaptureFixture[str], does: Callable[[object], None]
) -> None:
    install(does)
    with netq.new("tcp", "server", options()) as server:
        netloc = server.netloc
    with netq.new("tcp", "client", options(netloc)) as client:
        log.wait("trying again until it answers")
        with netq.new("tcp", "server", options(netloc)) as server:
            client.put("arrives").result(LIMIT)
            assert server.get(timeout=LIMIT).data == "arrives"
            client.close(LIMIT)
    assert ("LookupError" if does is raise_lookup else "SystemExit") in capsys.readouterr().err


def test_a_handler_that_exits_loses_its_record_only_where_no_loop_runs(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(leave)
    module_log.warning("emitted in this thread")
    assert "SystemExit" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_handler_interrupts_the_thread_that_logs(install: Install, number: signal.Signals) -> None:
    def end(number: int, frame: object) -> None:
        sys.exit("terminated")

    def interrupt(record: logging.LogRecord) -> None:
        if record.msg == text:  # another record may come when the handler of the signal is gone
            signal.raise_signal(number)

    text = "emitted in this thread"
    before = signal.signal(signal.SIGTERM, end)
    install(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
            module_log.warning(text)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_record_factory_that_raises_stops_nothing(log: LogRecorder, capsys: pytest.CaptureFixture[str]) -> None:
    factory = logging.getLogRecordFactory()

    def no_record(*args: Any, **more: Any) -> logging.LogRecord:
        raise LookupError("a factory's defect")

    try:
        logging.setLogRecordFactory(no_record)
        with (
            netq.new("tcp", "server", options()) as server,
            netq.new("tcp", "client", options(server.netloc)) as client,
        ):
            client.put("arrives").result(LIMIT)
            client.close(LIMIT)
    finally:
        logging.setLogRecordFactory(factory)
    assert "LookupError" in capsys.readouterr().err


def test_a_handler_that_blocks_stops_neither_bytes_nor_close(install: Install) -> None:
    blocks, free = block(install)
    try:
        server = netq.new("tcp", "server", options())
        client = netq.new("tcp", "client", options(server.netloc))
        with Proxy(server.netloc) as proxy, netq.new("tcp", "client", options(proxy.netloc)) as cut:
            introduce(server, client, cut)
            proxy.cut()
            assert blocks.wait(LIMIT)
            for number in range(100):
                client.put(number).result(LIMIT)
                assert server.get(client.id, timeout=LIMIT).data == number
                server.put(number, cut.id).result(LIMIT)
                assert cut.get(timeout=LIMIT).data == number
            assert client.close(0) == cut.close(0) == server.close(0) == 0
    finally:
        free.set()
    thread.flush(LIMIT)


def test_a_thread_that_closes_runs_no_handler_of_earlier_lines(install: Install) -> None:
    names: list[str] = []
    install(lambda record: names.append(threading.current_thread().name))
    log_thread = LogThread()
    log_thread.attach()
    place = __file__, 1, ""
    line = _Line(logging.getLogger("netq.test"), logging.WARNING, place, "not seen by its thread yet", (), None)
    log_thread._lines.append(line)
    log_thread.flush(0.1)
    assert not names, "a handler that blocks would have blocked this thread, for longer than it may wait"
    log_thread.detach()
    log_thread.flush(LIMIT)
    assert names == ["netq-log"]


@pytest.fixture
def communicators() -> Iterator[Communicators]:
    with Communicators(plain(netq.Protocol.TCP)) as communicators:
        yield communicators


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_handler_may_put_its_records_on_the_queue(communicators: Communicators, install: Install, size: int) -> None:
    """While another thread, which logs too, holds the handler's lock and waits for the baton."""
    server = communicators.server(retry_min=0.01)
    with Proxy(server.netloc) as proxy:
        client = communicators.client(proxy.netloc, retry_min=0.01, retry_max=0.02)
        introduce(server, client)
        lock, padding, sent = threading.RLock(), bytes(size), 0

        def put(record: logging.LogRecord) -> None:
            nonlocal sent
            with lock:
                sent += 1
                client.put((record.getMessage(), padding))

        install(put)
        mine = logging.getLogger("netq.mine")
        for number in range(100):
            mine.warning("%d", number)
            if number % 5 == 0:
                proxy.cut()
        client.put("last").result(LIMIT)
        got = [data for _, data in iter(lambda: server.get(timeout=LIMIT), (client.id, "last"))]
        communicators.abort(client)
    assert [text for text, _ in got if text.isdecimal()] == [str(number) for number in range(100)]
    with lock:
        assert len(got) <= sent


def test_a_crash_ends_all_before_a_handler_runs(communicators: Communicators, install: Install) -> None:
    install(raise_lookup)
    server = communicators.server()
    client = communicators.client(server.netloc)
    introduce(server, client)
    server._home.call(raise_lookup, logging.makeLogRecord({}))
    with pytest.raises(Closed, match="internal error: LookupError"):
        server.get(timeout=LIMIT)
    communicators.abort(server)
    communicators.abort(client)


def test_lines_keep_their_order_and_place(log: LogRecorder, install: Install) -> None:
    seen: list[logging.LogRecord] = []
    install(seen.append)
    with netq.new("tcp", "server", options()):
        for number in range(500):
            module_log.info("%d", number)
        log.wait("499")
    mine = [record for record in seen if record.getMessage().isdecimal()]
    assert [record.getMessage() for record in mine] == [str(number) for number in range(500)]
    assert {(record.filename, record.funcName) for record in mine} == {
        ("test_log.py", "test_lines_keep_their_order_and_place")
    }


def test_recorder_has_each_line_that_was_logged_before(log: LogRecorder) -> None:
    with netq.new("tcp", "server", options()):
        for number in range(200):
            module_log.info("line %d.", number)
            assert log.having(f"line {number}.")


def test_lines_beyond_a_thousand_are_dropped_and_counted(log: LogRecorder, install: Install) -> None:
    blocks, free = block(install)
    with netq.new("tcp", "server", options()):
        module_log.info("the first")
        assert blocks.wait(LIMIT)
        for number in range(1200):
            module_log.info("%d", number)
        free.set()
        assert log.wait("of this log were dropped").startswith("200 lines")
    assert log.having("999")
    assert not log.having("1000")


def test_a_fork_does_not_repeat_lines_of_its_parent(tmp_path: Any, install: Install) -> None:
    blocks, free = block(install)

    def child() -> None:
        logging.getLogger("netq").handlers[:] = [logging.FileHandler(tmp_path / "log")]
        module_log.info("of the child")

    with netq.new("tcp", "server", options()):
        module_log.info("blocks")
        assert blocks.wait(LIMIT)
        module_log.info("of the parent")
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(LIMIT)
        free.set()
    assert (tmp_path / "log").read_text() == "of the child\n"


def test_an_exchange_survives_a_handler_that_raises(install: Install, log: LogRecorder) -> None:
    install(raise_lookup)
    with netq.new("tcp", "server", options()) as free:
        netloc = free.netloc
    with netq.exchange.Client(options(netloc)) as client:
        log.wait("trying again until it answers")
        with netq.exchange.Exchange(options(netloc)):
            client.publish("topic", 1).result(LIMIT)


def test_handlers_that_raise_block_and_put_lose_and_stop_nothing() -> None:
    outcome = handlers.run(seconds=1.0, seed=1)
    assert (outcome.hangs, outcome.lost, outcome.twice_or_disordered) == (0, 0, 0)
    assert min(outcome.by_handler, outcome.raised, outcome.cuts) > 0
