"""Fixtures for all tests: a check that a test leaves nothing behind, certificates, proxies, brokers and processes."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import hypothesis
import pytest

from netq import NetworkLocation
from netq.mqtt.topic import new_id
from netq.security import certificates
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.programs.child import Children
from tests.servers.mosquitto import Mosquitto
from tests.wires import BROKERED, NewWire, Wire

_DESCRIPTORS = Path("/proc/self/fd")
_THREADS = Path("/proc/self/task")
_GRACE = 2.0  # seconds for threads that are ending

hypothesis.settings.register_profile("untimed", deadline=None)  # other processes work at the same time
hypothesis.settings.load_profile("untimed")


def pytest_configure() -> None:
    """Have programs end at SIGINT, as many tests expect: what a shell runs in the background ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep the modules and the collected tests out of garbage collections: the tests make many, of what is theirs."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def own_garbage() -> None:
    """Keep what other modules have made out of the collections of one that collects again and again: 0.4 s each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Compare threads, descriptors and child processes before the test with those after it.

    And take away what hypothesis has called by each collection, to count its time: in CPython 3.11 a collection that
    runs Python code mixes up the syntax trees of two threads, as of two arrays that are loaded from .npy (gh-106905).
    """
    gc.callbacks.clear()
    threads, descriptors, children = set(threading.enumerate()), _descriptors(), _children()
    yield
    left = _settled(lambda: _new_threads(threads))
    left += _settled(lambda: _new_descriptors(descriptors))
    left += _settled(lambda: sorted(_children() - children))
    assert not left, f"the test left behind: {', '.join(left)}"


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Files:
    """Certificates of a server on this machine."""
    return certificates.init(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory, files: certificates.Files) -> Iterator[dict[str, Mosquitto]]:
    """A broker and one under TLS, by kind of wire, for all tests; empty if mosquitto is not installed."""
    pems = {"mqtt": (None, None), "mqtt+tls": (files.certificate, files.key)}
    with ExitStack() as stack:
        found: dict[str, Mosquitto] = {}
        with suppress(pytest.skip.Exception):  # the other wires need no broker
            for kind, (certificate, key) in pems.items():
                broker = Mosquitto(tmp_path_factory.mktemp("broker"), certificate=certificate, key=key)
                found[kind] = stack.enter_context(broker)
        yield found


@pytest.fixture(scope="session")
def broker(brokers: dict[str, Mosquitto]) -> Mosquitto:
    """The broker; skips the test if mosquitto is not installed."""
    return _of_kind(brokers, "mqtt")


@pytest.fixture(scope="session")
def tls_broker(brokers: dict[str, Mosquitto]) -> Mosquitto:
    """The broker under TLS; skips the test if mosquitto is not installed."""
    return _of_kind(brokers, "mqtt+tls")


@pytest.fixture
def new_wire(files: certificates.Files, brokers: dict[str, Mosquitto]) -> NewWire:
    """Make wires by kind."""

    def new_wire(kind: str) -> Wire:
        if kind not in BROKERED:
            return Wire(kind, files)
        return Wire(kind, files, _of_kind(brokers, kind.removesuffix("+seal")).netloc, f"test/{new_id()}")

    return new_wire


@pytest.fixture
def children() -> Iterator[Children]:
    """Start programs as processes, and end them with the test."""
    with Children() as children:
        yield children


@pytest.fixture
def proxies() -> Iterator[Callable[[NetworkLocation], Proxy]]:
    """Make proxies that fail on demand, each before an address."""
    with ExitStack() as stack:
        yield lambda upstream: stack.enter_context(Proxy(upstream))


@pytest.fixture
def log() -> Iterator[LogRecorder]:
    """Listen to netq's logger."""
    with LogRecorder() as log:
        yield log


def _of_kind(brokers: dict[str, Mosquitto], kind: str) -> Mosquitto:
    if kind not in brokers:
        pytest.skip("no mosquitto here; `apt install mosquitto` brings it")
    return brokers[kind]


def _settled(left: Callable[[], list[str]]) -> list[str]:
    """What is left, after a while for what is about to go."""
    if not left():
        return []
    gc.collect()
    deadline = time.monotonic() + _GRACE
    while (found := left()) and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    return found


def _new_threads(before: set[threading.Thread]) -> list[str]:
    return [f"thread {thread.name}" for thread in threading.enumerate() if thread not in before]


def _new_descriptors(before: dict[str, str]) -> list[str]:
    return [f"descriptor {fd}: {target}" for fd, target in _descriptors().items() if before.get(fd) != target]


def _descriptors() -> dict[str, str]:
    found: dict[str, str] = {}
    for link in _DESCRIPTORS.iterdir() if _DESCRIPTORS.exists() else ():
        try:
            found[link.name] = os.readlink(link)
        except OSError:  # that of iterdir itself
            continue
    return found


def _children() -> set[str]:
    """The processes that this one has started and that are there, as zombies too."""
    return {f"process {pid}" for thread in _THREADS.glob("*") for pid in _started(thread)}


def _started(thread: Path) -> list[str]:
    try:
        return (thread / "children").read_text().split()
    except OSError:  # it has ended: another thread has its children
        return []
