"""The documented contract between two processes, on each transport: closing, returning ids, custom serialisers."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

import netq
from netq import CommunicatorOptions, ConnectionOptions, MqttOptions, NetworkLocation, SerializationOptions
from netq.core import Communicator
from netq.mqtt.topic import new_id
from netq.testing.fixtures import LIMIT

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

BEGINNING = """
import json, os, sys, uuid
import netq as nq
told = json.loads(sys.argv[1])
protocol, id = told["protocol"], uuid.UUID(told["id"])
options = nq.CommunicatorOptions(
    id, nq.NetworkLocation(*told["netloc"]), mqtt=nq.MqttOptions(prefix=told["prefix"]),
    connection=nq.ConnectionOptions(retry_min=0.01, retry_max=0.1),
)

def say(word):
    print(word, flush=True)

def wait():
    sys.stdin.readline()
"""
PUTS_WHILE_THE_SERVER_CLOSES = """
with nq.new(protocol, "client", options) as queue:
    queue.put("hello").result(30)
    try:
        queue.get()
    except ConnectionError as error:
        say(error.args[0])
    for number in range(3):
        wait()
        queue.put(number).result(30)
        say("held")
    wait()
    queue.put("the last")
"""
DIES = """
queue = nq.new(protocol, "client", options)
queue.put("hello").result(30)
wait()
os._exit(1)
"""
COMES_BACK = """
with nq.new(protocol, "client", options) as queue:
    say([queue.get().data for _ in range(3)])
    queue.put("thanks")
"""
NEVER_LEAVES = """
queue = nq.new(protocol, "client", options)
queue.put("hello").result(30)
wait()
try:
    queue.put("too late").result(30)
except ConnectionError as error:
    say(type(error).__name__)
queue.close()
"""
SPEAKS_JSON = """
from dataclasses import replace
own = nq.SerializationOptions(load=json.load, dump=lambda data: json.dumps(data).encode())
with nq.new(protocol, "client", replace(options, serialization=own)) as queue:
    queue.put({"text": "from the client"}).result(30)
    say(queue.get().data["text"])
"""


class Child:
    """A client in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def hear(self) -> str:
        """Return the next line that it says."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip()

    def go_on(self) -> None:
        """Let it return from `wait`."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self, status: int = 0) -> None:
        """Wait for its end."""
        out, errors = self._process.communicate(timeout=LIMIT)
        assert (self._process.returncode, out, errors) == (status, "", "")


class Place:
    """A transport: its server in this process, and clients in others."""

    def __init__(self, protocol: str, netloc: NetworkLocation) -> None:
        self._protocol = protocol
        self._netloc = netloc
        self._prefix = f"test/{new_id()}"

    @contextmanager
    def server(self, **options: Any) -> Iterator[Communicator]:
        """Open a server."""
        mqtt = MqttOptions(prefix=self._prefix)
        with netq.new(
            self._protocol, "server", CommunicatorOptions(netloc=self._netloc, mqtt=mqtt, **options)
        ) as server:
            self._netloc = server.netloc
            yield server

    @contextmanager
    def client(self, code: str, id: uuid.UUID | None = None) -> Iterator[Child]:
        """Run a client."""
        told = {
            "protocol": self._protocol,
            "netloc": self._netloc,
            "prefix": self._prefix,
            "id": str(id or uuid.uuid4()),
        }
        command = [sys.executable, "-c", BEGINNING + code, json.dumps(told)]
        with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, cwd=ROOT) as process:
            try:
                yield Child(process)
            finally:
                process.kill()


def wait_until_away(server: Communicator, peer: uuid.UUID) -> None:
    while server.statistics()[peer].connected:
        continue


@pytest.fixture(scope="session", params=["tcp", "mqtt", "grpc", "shm"])
def location(request: pytest.FixtureRequest) -> tuple[str, NetworkLocation]:
    here = NetworkLocation("127.0.0.1", 0)
    return request.param, request.getfixturevalue("broker").netloc if request.param == "mqtt" else here


@pytest.fixture
def place(location: tuple[str, NetworkLocation]) -> Place:
    return Place(*location)


@pytest.fixture
def in_background() -> Iterator[Callable[..., Any]]:
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def test_closing_server_waits_for_client_and_receives(place: Place, in_background: Callable[..., Any]) -> None:
    with place.server() as server, place.client(PUTS_WHILE_THE_SERVER_CLOSES) as client:
        assert server.get(timeout=LIMIT).data == "hello"
        closing = in_background(server.close)
        assert client.hear() == str(server.id)
        for number in range(3):
            client.go_on()
            assert client.hear() == "held"
            assert server.get(timeout=LIMIT).data == number
        assert not closing.done()
        client.go_on()
        client.end()
        assert closing.result(LIMIT) == 0
        assert server.get(timeout=0).data == "the last"
        with pytest.raises(ConnectionError):
            server.get()


def test_closing_server_that_gives_up_ends_session(place: Place) -> None:
    with place.server() as server, place.client(NEVER_LEAVES) as client:
        assert server.get(timeout=LIMIT).data == "hello"
        assert server.close(timeout=0.1) == 0
        client.go_on()
        assert client.hear() == "Closed"
        client.end()


def test_process_with_same_id_gets_waiting_messages(place: Place) -> None:
    id = uuid.uuid4()
    with place.server(connection=ConnectionOptions(takeover_grace=0.0)) as server:
        with place.client(DIES, id) as client:
            assert server.get(timeout=LIMIT) == (id, "hello")
            client.go_on()
            client.end(status=1)
        wait_until_away(server, id)
        futures = [server.put(number, id) for number in range(3)]
        with place.client(COMES_BACK, id) as client:
            assert client.hear() == "[0, 1, 2]"
            for future in futures:
                future.result(LIMIT)
            assert server.get(timeout=LIMIT) == (id, "thanks")
            client.end()


@pytest.mark.parametrize("location", ["tcp"], indirect=True)  # no transport looks into a message
def test_custom_serialisers(place: Place) -> None:
    own = SerializationOptions(load=json.load, dump=lambda data: json.dumps(data).encode())
    with place.server(serialization=own) as server, place.client(SPEAKS_JSON) as client:
        peer, data = server.get(timeout=LIMIT)
        assert data == {"text": "from the client"}
        server.put({"text": "from the server"}, peer).result(LIMIT)
        assert client.hear() == "from the server"
        client.end()
