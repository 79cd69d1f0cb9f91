"""Every transport does what the contract says: each check of the public suite with each of them.

A layer below or above one of them, TLS or seals, runs the checks of what passes from one layer to the other: it sees
bytes, and no calls. Two layers that others here run, and what differs in one place only (`DERIVED`), run fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from netq import CommunicatorOptions, Protocol, Purpose, SecurityOptions
from netq.core import Communicator
from netq.options import PostQuantum
from netq.testing import loopback
from netq.testing.conformance import CHECKS, check_communicator
from netq.testing.fixtures import Make
from tests.netq.authority import Authority
from tests.netq.makers import at_broker, at_path, in_process, plain, sealed, under_tls

Request: TypeAlias = pytest.FixtureRequest
New: TypeAlias = Callable[[Path], Make]  # given an empty folder


def of_mqtt(request: Request) -> New:
    netloc = request.getfixturevalue("broker").netloc
    return lambda folder: at_broker(netloc)


def of_mqtt_under_tls(request: Request) -> New:
    netloc, files = request.getfixturevalue("tls_broker").netloc, request.getfixturevalue("files")
    return lambda folder: at_broker(netloc, SecurityOptions(certificate=files.authority))


def of(protocol: Protocol) -> Callable[[Request], New]:
    return lambda request: lambda folder: plain(protocol)


def of_tls(protocol: Protocol, post_quantum: PostQuantum = "prefer") -> Callable[[Request], New]:
    return lambda request: lambda folder: under_tls(protocol, request.getfixturevalue("files"), post_quantum)


def of_seals(under: Callable[[Request], New]) -> Callable[[Request], New]:
    def begin(request: Request) -> New:
        new, authority = under(request), Authority(request.getfixturevalue("tmp_path_factory").mktemp("seals"))
        return lambda folder: sealed(new(folder), authority)

    return begin


MAKERS: dict[str, Callable[[Request], New]] = {  # how each begins a session of tests, and then a test
    "loopback": lambda request: lambda folder: in_process,
    "tcp": of(Protocol.TCP),
    "tcp+tls": of_tls(Protocol.TCP),
    "tcp+tls of Python": of_tls(Protocol.TCP, "off"),
    "mqtt": of_mqtt,
    "mqtt+tls": of_mqtt_under_tls,
    "grpc": of(Protocol.GRPC),
    "grpc+tls": of_tls(Protocol.GRPC),
    "loopback+seal": of_seals(lambda request: lambda folder: in_process),
    "tcp+seal": of_seals(of(Protocol.TCP)),
    "mqtt+seal": of_seals(of_mqtt),
    "grpc+seal": of_seals(of(Protocol.GRPC)),
    "shm": of(Protocol.SHM),
    "shm+path": lambda request: at_path,
}


QUICK = ("loopback", "tcp", "shm")
LAYERS = ("tcp+tls", "tcp+seal")
DERIVED = ("tcp+tls of Python", "mqtt+tls", "grpc+tls", "loopback+seal", "mqtt+seal", "grpc+seal", "shm+path")
OF_DERIVED = {  # how links begin and end, sizes of messages, full memory, and what is taken back when it has begun
    *("client_first", "come_back", "death_of_a_client", "death_of_a_server", "close_flushes", "close_of_both"),
    *("order", "empty_message", "large_message", "message_larger_than_window", "get_into"),
    *("broadcast", "slow_reader_alone", "cancel_begun", "half_arrived_messages_of_many_end"),
}
OF_LAYERS = OF_DERIVED | {
    *("id_in_use", "workers", "round_trip", "close_waits_for_clients", "close_of_a_server_gives_up", "close_in_loop"),
    *("message_too_large", "lanes", "full_lane", "message_of_one_peer_passes_full_memory"),
}
NAMES = {check.__name__.removeprefix("check_"): check for check in CHECKS}
CHOSEN = dict.fromkeys(LAYERS, OF_LAYERS) | dict.fromkeys(DERIVED, OF_DERIVED)
TABLE = [(kind, name) for kind in MAKERS for name in NAMES if name in CHOSEN.get(kind, NAMES)]


@pytest.fixture(scope="session")
def new(request: Request) -> New:
    return MAKERS[request.param](request)


@pytest.mark.parametrize(
    ("new", "name"),
    [pytest.param(*row, marks=[pytest.mark.slow] * (row[0] not in QUICK)) for row in TABLE],
    indirect=["new"],
    scope="session",
)
def test_conformance(name: str, new: New, tmp_path: Path, request: Request) -> None:
    if request.node.callspec.params["new"] != "tcp":
        request.getfixturevalue("fewer")
    NAMES[name](new(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_each_check_of_layers_is_a_check() -> None:
    assert set(NAMES) >= OF_LAYERS


def test_every_protocol_is_held_to_the_suite() -> None:
    assert {protocol.value for protocol in Protocol} == {name.partition("+")[0] for name in MAKERS} - {"loopback"}


def test_the_suite_runs_every_check_and_names_the_one_that_fails() -> None:
    opened: list[Purpose] = []

    def broken(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
        opened.append(purpose)
        if len(opened) > 2:
            raise OSError("no more")
        return in_process(purpose, options)

    with pytest.raises(OSError, match="no more") as raised:
        check_communicator(broken)
    assert opened == [Purpose.SERVER, Purpose.CLIENT, Purpose.SERVER]
    assert "check_client_first" in raised.value.__notes__[0]


def test_every_check_has_a_docstring_and_is_listed_once() -> None:
    assert len(set(CHECKS)) == len(CHECKS)
    assert all(check.__doc__ for check in CHECKS)
    assert {check.__name__ for check in CHECKS} == {
        line.split("(")[0].removeprefix("def ")
        for file in Path(loopback.__file__).parent.glob("checks/*.py")
        for line in file.read_text().splitlines()
        if line.startswith("def check_")
    }
