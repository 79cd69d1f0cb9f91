"""What a run of the tests needs as a whole, also if it is one of several processes (pytest-xdist).

`make test` loads it with -p, so that the first process has it too; otherwise conftest.py does. The figures of the fault
tests are printed here, as a table. And a test that is marked `alone`, because it measures time or fills the machine,
runs while no other test does, in whatever process:

    everybody:  turnstile ──► room ──► leave the turnstile ──► the test ──► leave the room

The room is shared by all but those who are alone; who waits for it to be empty keeps the turnstile, so that nobody gets
ahead of them. Both are locks of files: the system opens them if a process dies.
"""

from __future__ import annotations

import fcntl
import re
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

_FOLDER = pytest.StashKey[str]()
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TOLD = "netq_tests_folder"  # of the locks, in what a process is told by the first one


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # xdist's: the first process starts another
    config: pytest.Config = node.config
    if _FOLDER not in config.stash:
        folder = tempfile.TemporaryDirectory(prefix="netq-tests-")
        config.add_cleanup(folder.cleanup)
        config.stash[_FOLDER] = folder.name
    node.workerinput[_TOLD] = config.stash[_FOLDER]


def pytest_make_parametrize_id(val: object) -> str | None:
    """A random id in the name of a test would be another one in each process."""
    return "uuid" if isinstance(val, str) and _UUID.fullmatch(val) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # alone first: or each would wait for a long one of the other process's
        items.sort(key=lambda item: item.get_closest_marker("alone") is None)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of pytest-timeout: who waits has not begun
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    folder = getattr(item.config, "workerinput", {}).get(_TOLD)
    if folder is None:  # there is no other process
        return (yield)
    with _turn(Path(folder), alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def _turn(folder: Path, *, alone: bool) -> Iterator[None]:
    with ExitStack() as stay:
        with ExitStack() as passing:
            _lock(passing, folder / "turnstile", fcntl.LOCK_EX)
            _lock(stay, folder / "room", fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


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
    """Those that came with a report, if it is one; a test that failed as it ended has two."""
    for name, value in getattr(report, "user_properties", ()):
        if name == "figure":
            case, text = value
            yield case, text
