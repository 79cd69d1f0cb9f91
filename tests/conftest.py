"""A test that leaves something running or open fails; and what netq logs can be waited for."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from netq import NetworkLocation
from netq.security import certificates
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy

_DESCRIPTORS = Path("/proc/self/fd")
_GRACE = 2.0  # seconds for threads that are ending


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Compare threads, descriptors and child processes before the test with those after it."""
    threads, descriptors, children = set(threading.enumerate()), _descriptors(), _children()
    yield
    left = _settled(lambda: _new_threads(threads))
    left += _settled(lambda: _new_descriptors(descriptors))
    left += _settled(lambda: sorted(_children() - children))
    assert not left, f"the test left behind: {', '.join(left)}"


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Files:
    """Certificates of a server on this machine."""
    return certificates.make(tmp_path_factory.mktemp("certificates"))


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
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # quick, and so it is nearly always
    except ChildProcessError:
        return set()
    return {f"process {stat.parent.name}" for stat in Path("/proc").glob("[0-9]*/stat") if _parent(stat) == os.getpid()}


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0
