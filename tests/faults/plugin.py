"""A pytest plugin for runs in one or several processes (pytest-xdist): a table of figures, and tests that run alone.

`make test` loads it with -p, so that the first process has it too; otherwise conftest.py does. It prints the figures of
the fault tests as a table. A test that is marked `alone`, because it measures time or uses all of the machine, runs
while no other test does, in any process. This is a readers-writer lock without starvation of the writer:

    every test:  lock `turnstile` ──► lock `room` ──► unlock `turnstile` ──► run ──► unlock `room`

The lock of `room` is shared, but exclusive for a test that runs alone. That test keeps `turnstile` while it waits for
`room`, so that no other test overtakes it. It keeps `room` for the next test of its process if that runs alone too:
else each would wait again for the tests of other processes, which stand still meanwhile. Both are file locks, which the
system releases when a process dies.
"""

from __future__ import annotations

import fcntl
import re
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

_FOLDER = pytest.StashKey[str]()
_STAY = pytest.StashKey[ExitStack | None]()  # of a process that keeps `room`
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WORKER_INPUT = "netq_tests_folder"  # key of the locks' folder in the input of a worker process


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # a hook of xdist: the first process starts another one
    config: pytest.Config = node.config
    if _FOLDER not in config.stash:
        folder = tempfile.TemporaryDirectory(prefix="netq-tests-")
        config.add_cleanup(folder.cleanup)
        config.stash[_FOLDER] = folder.name
    node.workerinput[_WORKER_INPUT] = config.stash[_FOLDER]


def pytest_make_parametrize_id(val: object) -> str | None:
    """Replace a random id in a test's name, which would differ between processes."""
    return "uuid" if isinstance(val, str) and _UUID.fullmatch(val) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # alone first: later, each would wait for a slow test
        items.sort(key=lambda item: not _alone(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of pytest-timeout: waiting does not count
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    folder = getattr(item.config, "workerinput", {}).get(_WORKER_INPUT)
    if folder is None:  # there is no other process
        return (yield)
    with item.config.stash.get(_STAY, None) or _admission(Path(folder), alone=_alone(item)) as stay:
        result = yield
        kept = _alone(item) and nextitem is not None and _alone(nextitem)
        item.config.stash[_STAY] = stay.pop_all() if kept else None
        return result


def _alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


def _admission(folder: Path, *, alone: bool) -> ExitStack:
    with ExitStack() as stay:
        with ExitStack() as passing:
            _lock(passing, folder / "turnstile", fcntl.LOCK_EX)
            _lock(stay, folder / "room", fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        return stay.pop_all()


def _lock(stack: ExitStack, path: Path, how: int) -> None:
    fcntl.flock(stack.enter_context(path.open("a")), how)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for group in terminalreporter.stats.values() for report in group]
    figures = {figure for report in reports for figure in _figures(report)}
    if figures:
        terminalreporter.section("faults: what was measured")
    for case, text in sorted(figures):
        terminalreporter.write_line(f"{case:28} {text}")


def _figures(report: object) -> Iterator[tuple[str, str]]:
    """Yield the figures of a report. A test that failed in its teardown has two reports."""
    for name, value in getattr(report, "user_properties", ()):
        if name == "figure":
            case, text = value
            yield case, text
