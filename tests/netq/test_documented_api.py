"""The API of the published package that netq re-does, as its page on PyPI documents it: with only the import changed.

docs/how-to/net-queue.md says where netq departs on purpose; `test_documented_contract.py` has what takes two processes.
"""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

import netq as nq
from netq.testing.fixtures import LIMIT
from tests.pages import PROLOGUE, Page

ROOT = Path(__file__).parents[2]
SIGNATURES: dict[str, dict[str, Any]] = {  # parameters in the documented order, with their defaults; ... is a new one
    "CommunicatorOptions": {
        "id": ...,
        "netloc": ("127.0.0.1", 51966),
        "connection": nq.ConnectionOptions(),
        "serialization": ...,
        "security": None,
        "workers": 1,
    },
    "ConnectionOptions": {
        "get_merge": True,
        "put_merge": True,
        "transport_size": 16 * 1024**2,
        "queue_size": 1024**3,
        "message_size": 1024**4,
    },
    "SerializationOptions": {"load": ..., "dump": ...},
    "SecurityOptions": {"key": None, "certificate": None},
    "NetworkLocation": {"host": "127.0.0.1", "port": 51966},
}
FUNCTIONS: list[tuple[Callable[..., Any], list[str]]] = [
    (nq.new, ["protocol", "purpose", "options"]),
    (nq.core.Communicator.put, ["self", "data", "*peers"]),
    (nq.core.Communicator.get, ["self", "*peers"]),
    (nq.utils.stream.PickleSerializer, ["allow", "dump", "load"]),
    (nq.utils.stream.PickleSerializer.allow_by_name, ["*names"]),
]
SERVER = """
import netq as nq
with nq.new(purpose=nq.Purpose.SERVER) as queue:
    print(queue.get().data)
    queue.put("to the client")
"""
CLIENT = """
import netq as nq
with nq.new(purpose=nq.Purpose.CLIENT) as queue:
    queue.put("to the server")
    print(queue.get().data)
"""


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@pytest.mark.parametrize(("name", "documented"), SIGNATURES.items())
def test_options_take_documented_arguments_in_order(name: str, documented: dict[str, Any]) -> None:
    kind = getattr(nq, name)
    made = kind()
    for parameter, default in documented.items():
        assert default is ... or getattr(made, parameter) == default
    values = [getattr(made, parameter) for parameter in documented]
    assert kind(*values) == kind(**dict(zip(documented, values, strict=True)))


@pytest.mark.parametrize(("function", "documented"), FUNCTIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_functions_take_documented_arguments(function: Callable[..., Any], documented: list[str]) -> None:
    shown = [
        f"*{name}" if parameter.kind is parameter.VAR_POSITIONAL else name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    assert shown == documented


def test_constants_are_strings() -> None:
    assert issubclass(nq.Protocol, StrEnum)
    assert issubclass(nq.Purpose, StrEnum)
    assert {"TCP", "MQTT", "GRPC"} <= set(nq.Protocol.__members__)
    assert {"SERVER", "CLIENT"} == set(nq.Purpose.__members__)
    assert (nq.Protocol.TCP, nq.Purpose.SERVER) == ("tcp", "server")
    assert f"{nq.Protocol.GRPC}-{nq.Purpose.CLIENT}" == "grpc-client"


def test_new_takes_strings_of_a_command_line() -> None:
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation("127.0.0.1", 0))
    with nq.new("tcp", "server", options) as server:
        assert isinstance(server, nq.tcp.server.Communicator)


def test_transports_are_attributes_of_netq() -> None:
    code = "import netq as nq; print([nq.tcp.server.Communicator.__mro__[1] is nq.core.Communicator, nq.shm.client])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=LIMIT)
    assert out.stdout.startswith("[True, <module 'netq.shm.client'"), out.stderr
    with pytest.raises(AttributeError, match="module 'netq' has no attribute 'pigeon'"):
        _ = nq.pigeon


@pytest.mark.parametrize("protocol", ["tcp", "grpc", "shm"])
def test_communicator_class_of_transport_and_purpose(protocol: str) -> None:
    transport = getattr(nq, protocol)
    options = nq.CommunicatorOptions(uuid.uuid4(), nq.NetworkLocation("127.0.0.1", 0))
    with transport.server.Communicator(options) as server:
        assert isinstance(server, nq.core.Communicator)
        assert server.id == server.options.id == options.id
        with transport.client.Communicator(nq.CommunicatorOptions(netloc=server.netloc)) as client:
            future = client.put("data")
            assert isinstance(future, Future)
            message = server.get()
            assert (message.peer, message.data) == (client.id, "data")
            assert future.result(LIMIT) is None
            assert isinstance(future, nq.Delivery)
            assert list(future.futures) == [future]
            with pytest.raises(nq.InvalidOption, match="options: a dict; expected CommunicatorOptions"):
                transport.client.Communicator({})


def test_closed_communicator_raises_connection_error_with_id() -> None:
    client = nq.new()
    client.close()
    with pytest.raises(ConnectionError) as raised:
        client.put("too late").result(LIMIT)
    (peer,) = raised.value.args
    assert peer == client.id
    with pytest.raises(ConnectionError):
        client.get()
    assert pickle.loads(pickle.dumps(raised.value)).args == (peer,)


def test_serialisers_are_pairs_of_dump_and_load() -> None:
    stream = nq.utils.stream
    only_uuid = stream.PickleSerializer(allow=stream.PickleSerializer.allow_by_name("uuid.UUID"))
    for serializer in (stream.PickleSerializer(), only_uuid):
        assert serializer.load(serializer.dump(uuid.UUID(int=7))) == uuid.UUID(int=7)
    with pytest.raises(pickle.UnpicklingError):
        only_uuid.load(stream.PickleSerializer().dump(Path("x")))
    by_name = stream.PickleSerializer(
        dump=lambda data: "the path" if data == Path("x") else None, load=lambda name: {"the path": Path("x")}[name]
    )
    assert by_name.load(by_name.dump([Path("x"), 1])) == [Path("x"), 1]
    assert stream.BytesSerializer().load(stream.BytesSerializer().dump(b"bytes")) == b"bytes"


def test_missing_file_raises_when_communicator_is_made(tmp_path: Path) -> None:
    there = nq.NetworkLocation("127.0.0.1", 0)
    missing = nq.SecurityOptions(tmp_path / "key.pem", tmp_path / "chain.pem")
    with pytest.raises(
        nq.SecurityError, match=r"SecurityOptions\.certificate: .*chain\.pem: not readable: No such file"
    ):
        nq.new("tcp", "server", nq.CommunicatorOptions(netloc=there, security=missing))
    with pytest.raises(nq.SecurityError, match=r"a client with a key of its own needs `authority`"):
        nq.new("tcp", "client", nq.CommunicatorOptions(security=missing))
    with pytest.raises(nq.SecurityError, match=r"with MQTT, TLS is the broker's, and so is the key: leave out `key`"):
        nq.new("mqtt", "server", nq.CommunicatorOptions(security=missing))


def test_put_merge_false_is_refused_where_unsupported(files: Any) -> None:
    apart = nq.ConnectionOptions(put_merge=False)
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation("127.0.0.1", 1), connection=apart)
    secure = nq.SecurityOptions(files.key, files.certificate), nq.SecurityOptions(certificate=files.authority)
    cases = [("mqtt", None, "MQTT"), ("grpc", None, "gRPC"), ("shm", None, "shared memory"), ("tcp", secure, "TLS")]
    for protocol, security, name in cases:
        for purpose, which in zip(("server", "client"), security or (None, None), strict=True):
            port = 0 if purpose == "server" and protocol != "mqtt" else 1
            told = dataclasses.replace(options, security=which, netloc=nq.NetworkLocation("127.0.0.1", port))
            with pytest.raises(nq.InvalidOption, match=f"put_merge: False; {name} joins small buffers in any case"):
                nq.new(protocol, purpose, told)


@pytest.mark.slow
def test_documented_example_runs(tmp_path: Path, free_port: int) -> None:
    processes = []
    for code in (CLIENT, SERVER):
        command = [sys.executable, "-c", PROLOGUE.format(port=free_port) + code]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT))
    try:
        assert [process.communicate(timeout=LIMIT)[0] for process in processes] == [
            "to the client\n",
            "to the server\n",
        ]
        assert [process.returncode for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()


def test_page_names_all_differences() -> None:
    page = Page("docs/how-to/net-queue.md").text
    for name in (
        "transport_size",
        "queue_size",
        "drop_oldest",
        "events",
        "SecurityOptions",
        "message_size",
        "put_merge",
        "get_merge",
        "workers",
        "close",
        "get",
    ):
        assert re.search(rf"^\| .*\b{name}\b", page, re.MULTILINE), f"{name} has no row"
