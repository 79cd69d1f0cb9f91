"""`fl relay`, as a process: killed in the middle of a round, stopped, with certificates, with mistakes."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import fl
import fl.membership
import netq
from netq.security import certificates
from netq.testing.fixtures import LIMIT
from tests.fl.federation import QUICK, adds, at, zeros
from tests.fl.relay.tree import HERE
from tests.programs.reading import Reading

pytest.importorskip("typer")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


class Relaying(Reading):
    """`fl relay`, as a process."""

    def netloc(self) -> netq.NetworkLocation:
        """Wait until it listens. Return where."""
        return netq.NetworkLocation("127.0.0.1", int(self.wait("listening at 127.0.0.1:")))


def settle(run: Future[Any], function: Callable[[], Any]) -> None:
    try:
        run.set_result(function())
    except BaseException as error:
        run.set_exception(error)


def write(folder: Path, parent: netq.NetworkLocation, name: str = "relay", more: str = "") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(f"""
        [parent]
        host = "{parent.host}"
        port = {parent.port}
        {"[parent.security]" + more if more else ""}
        [relay]
        name = "{name}"
        [server]
        host = "127.0.0.1"
        port = 0
        min_clients = 2
        {"[security]" + more.replace("relay", "server") if more else ""}
    """)
    return path


@contextmanager
def relaying(path: Path) -> Iterator[Relaying]:
    command = [sys.executable, "-m", "fl", "relay", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Relaying(process)
        finally:
            process.kill()


@contextmanager
def federation(**settings: Any) -> Iterator[tuple[fl.Server, Callable[..., Any], Callable[[], None]]]:
    """A server, what starts a client or the rounds in a thread, and what ends all of them."""
    with ExitStack() as stack:
        server = stack.enter_context(fl.Server(zeros(), at(HERE), relays=True, **settings))
        runs: list[Future[Any]] = []

        def start(function: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
            run: Future[Any] = Future()
            runs.append(run)
            thread = threading.Thread(target=lambda: settle(run, functools.partial(function, *arguments, **options)))
            thread.daemon = True  # a test that fails ends no federation, and does not wait for its clients
            thread.start()
            return run

        def end() -> None:
            """End the federation, while its relays are there to tell their clients."""
            server.__exit__(None)
            for run in runs:
                run.result(LIMIT)

        yield server, start, end


def test_a_relay_that_is_killed_in_a_round_costs_its_clients_that_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fl.membership, "_MOVE", 1.5)
    patience = fl.Patience(grace=0.5, deadline=LIMIT)
    with ExitStack() as stack:
        server, start, end = stack.enter_context(federation(min_clients=1, wait=2, patience=patience))
        first, second = (stack.enter_context(relaying(write(tmp_path, server.netloc, name))) for name in "ab")
        reports = start(lambda: read_until(server, lambda report: len(report.clients) == 4 and report.number > 2))
        places = [first.netloc(), second.netloc()]

        def kills(model: Any, config: Any) -> Any:
            if config["round"] == 2:
                first.process.kill()
                first.process.wait()
            return adds(1)(model, config)

        for number in range(4):
            here, other = places if number < 2 else reversed(places)
            client = fl.Client(kills if number == 0 else adds(1))
            start(client.run, at(here, uuid.UUID(int=number)), fallback=[other])
        found = reports.result(LIMIT)
        end()
    counted = [{id.int for id in report.clients} for report in found]
    assert counted[:2] == [{0, 1, 2, 3}, {2, 3}]
    assert set(map(frozenset, counted[2:-1])) <= {frozenset({2, 3}), frozenset({1, 2, 3}), frozenset({0, 2, 3})}
    assert counted[-1] == {0, 1, 2, 3}
    assert [each.why for each in found[1].failures.values()] == [fl.FailureKind.LOST]
    assert server.model["w"].tolist() == [len(found)] * 3


def read_until(server: fl.Server, is_last: Callable[[fl.RoundReport], bool]) -> list[fl.RoundReport]:
    found = []
    for report in server.rounds(10_000):
        if report.clients:
            found.append(report)
        if is_last(report):
            break
    return found


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_relay_that_is_stopped_leaves_its_clients_to_the_next_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signum: int, status: int
) -> None:
    monkeypatch.setattr(fl.membership, "_MOVE", 1.5)
    with ExitStack() as stack:
        server, start, end = stack.enter_context(federation(min_clients=1, patience=fl.Patience(grace=0.2)))
        relay = stack.enter_context(relaying(write(tmp_path, server.netloc)))
        reports = start(lambda: read_until(server, lambda report: len(report.clients) == 2))
        here = relay.netloc()

        is_first = iter([True])

        def stops(model: Any, config: Any) -> Any:
            if next(is_first, False):  # a second signal may come when Python has given up its handlers
                os.kill(relay.process.pid, signum)
            relay.process.wait(LIMIT)
            return adds(1)(model, config)

        for number in range(2):
            start(fl.Client(stops).run, at(here, uuid.UUID(int=number)), fallback=[server.netloc])
        reports.result(LIMIT)
        assert relay.end() == status
        assert "Traceback" not in relay.said
        end()


def test_names_of_certificates_pass_a_relay(tmp_path: Path) -> None:
    certificates.init(tmp_path, ["127.0.0.1"])
    certificates.issue(tmp_path, "relay")
    for name in ("board-1", "board-2"):
        certificates.issue(tmp_path, name)
    of = {
        name: netq.SecurityOptions(tmp_path / f"{name}-key.pem", tmp_path / f"{name}.pem", tmp_path / "authority.pem")
        for name in ("server", "relay", "board-1", "board-2")
    }
    options = netq.CommunicatorOptions(netloc=HERE, connection=QUICK, security=of["server"])
    more = "".join(
        f'\n{key} = "{name}"'
        for key, name in (("key", "relay-key.pem"), ("certificate", "relay.pem"), ("authority", "authority.pem"))
    )
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(4))
        server = stack.enter_context(fl.Server(zeros(), options, min_clients=1, relays=["relay"]))
        rounds = pool.submit(lambda: [report for report in server.rounds(1) if report.clients])
        relay = stack.enter_context(relaying(write(tmp_path, server.netloc, "other", more + "\n")))
        here = relay.netloc()
        for name in ("board-1", "board-2"):
            board = netq.CommunicatorOptions(netloc=here, connection=QUICK, security=of[name])
            pool.submit(fl.Client(adds(1)).run, board)
        [report] = rounds.result(LIMIT)
        server.__exit__(None)
        assert relay.end() == 0
    ids = {entry.id for entry in certificates.show(tmp_path) if entry.name.startswith("board")}
    assert set(report.clients) == ids
    assert set(report.names.values()) == {"board-1", "board-2", "relay"}


@pytest.mark.parametrize(
    ("of_server", "text", "status", "said"),
    [
        ({}, 'min_clients = 2\n[strategy]\nname = "FedNova"', 1, "this relay folds by FedNova(max_examples=None"),
        ({"relays": False}, "min_clients = 2", 1, "the server calls this relay 'relay', and has it not among"),
        ({}, "min_clients = 0", 2, "server.min_clients: 0; expected 1 or more"),
        ({}, "min_clients = 2\n[security]", 2, "relay.toml: security.key: None; a server needs its private key"),
        (
            {},
            'min_clients = 2\n[parent.security]\nauthority = "relay.toml"',
            *(2, "relay.toml: parent.security.authority: "),
        ),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, of_server: Any, text: str, status: int, said: str) -> None:
    with fl.Server(zeros(), at(HERE), min_clients=9, **{"relays": True, **of_server}) as server:
        path = write(tmp_path, server.netloc)
        path.write_text(path.read_text().replace("min_clients = 2", text))
        with relaying(path) as relay, ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: server.wait(9, LIMIT))
            assert relay.end() == status
            server.close()
        last = relay.said.splitlines()[-1]
        assert said in last, relay.said
        assert "Traceback" not in relay.said
