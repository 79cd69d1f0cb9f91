"""What may pass is waited for: how long, what is said of it, and what the supervisor hears."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.child import ChildFailed
from edge.patience import FileChanged, Patience, Watched
from edge.supervisor import Supervisor
from netq.errors import InvalidOption, InvalidSecurity, NotNow, SecurityError


class Told(Supervisor):
    """A supervisor that wants a sign of life every ten seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._clock = clock

    def alive(self) -> float:
        self.lines.append(f"alive at {self._clock():g}")
        return 10.0

    def ready(self) -> None:
        self.lines.append("ready")

    def status(self, text: str) -> None:
        self.lines.append(text)


class Board:
    """An agent with a clock of its own, and a step that fails with the errors that are left."""

    def __init__(self, *errors: Exception, path: Path | None = None) -> None:
        self.now = 0.0
        self.errors = list(errors)
        self.tries: list[float] = []
        self.supervisor = Told(lambda: self.now)
        self.watched = Watched(path)
        self.patience = Patience(self.supervisor, self.watched, lambda: self.now, self._sleep)

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def step(self) -> str:
        self.tries.append(self.now)
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    def run(self) -> str:
        done = self.patience.until(self.step)
        self.patience.passed()
        return done


EXPIRED = SecurityError("SecurityOptions.certificate: own.pem: has expired on 2026-01-01; make a new one")
SAID = "security.certificate: own.pem: has expired on 2026-01-01; make a new one"
FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize("error", [EXPIRED, NotNow("no file")], ids=["date", "file"])
def test_files_and_the_clock_are_looked_at_every_5_seconds(error: Exception) -> None:
    board = Board(*[error] * 6)
    assert board.run() == "done"
    assert board.tries == [0, 1, 3, 7, 12, 17, 22]


@pytest.mark.parametrize("error", [FULL, MemoryError(), RuntimeError("no thread"), ChildFailed("killed")], ids=repr)
def test_pauses_grow_up_to_a_minute(error: Exception) -> None:
    board = Board(*[error] * 9)
    board.run()
    assert board.tries == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]


@pytest.mark.parametrize("error", [InvalidOption("server.port"), InvalidSecurity("no key"), TypeError()], ids=repr)
def test_what_a_person_has_to_correct_is_raised(error: Exception) -> None:
    board = Board(error)
    with pytest.raises(type(error)):
        board.run()
    assert board.tries == [0]


def test_what_is_wrong_while_the_agent_waits_is_waited_for() -> None:
    """A file may be half written at this moment."""
    board = Board(EXPIRED, InvalidOption("server.port"), InvalidOption("server.port"))
    assert board.run() == "done"
    assert board.tries == [0, 1, 3, 7]
    board.now += 1000
    board.errors = [InvalidOption("server.port")]
    with pytest.raises(InvalidOption):
        board.run()


def test_file_that_changes_during_a_pause_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text("wrong")
    board = Board(*[FULL] * 9, path=path)

    def sleep(seconds: float) -> None:
        board.now += seconds
        if board.now > 60:
            path.write_text("right")

    board.patience = Patience(board.supervisor, board.watched, lambda: board.now, sleep)
    with pytest.raises(FileChanged):
        board.run()
    assert board.now == 61
    board.watched.seen()
    board.run()
    assert board.tries[-4:] == [61, 62, 64, 68], "pauses are short again"


def test_reason_is_said_once_then_seldom(caplog: pytest.LogCaptureFixture) -> None:
    board = Board(*[EXPIRED] * math.ceil(86400 / 5))
    said: list[float] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(board.now)  # type: ignore[method-assign]
    logging.getLogger("edge").addHandler(handler)
    with caplog.at_level(logging.INFO, "edge"):
        board.run()
    logging.getLogger("edge").removeHandler(handler)
    first, *others, last = caplog.messages
    assert first == (
        f"not taking part: {SAID}; the agent waits until this has passed, and tries again every 5 s or sooner"
    )
    assert set(others) == {first}
    assert last == f"going on after 86392 s; this has passed: {SAID}"
    distances = [later - earlier for earlier, later in itertools.pairwise(said[:-1])]
    assert distances[:7] == pytest.approx([60, 120, 240, 480, 960, 1920, 3600], abs=5)
    assert distances[7:] == pytest.approx([3600] * len(distances[7:]), abs=5)


def test_another_reason_is_said_at_once(caplog: pytest.LogCaptureFixture) -> None:
    Board(EXPIRED, EXPIRED, FULL, FULL).run()
    assert [line.partition(";")[0][:32] for line in caplog.messages] == [
        "not taking part: security.certif",
        "not taking part: [Errno 28] No s",
        "going on after 15 s",
    ]


def test_supervisor_hears_of_the_agent_during_a_pause() -> None:
    board = Board(*[FULL] * 5)
    board.run()
    waiting = f"waiting: {FULL}"
    pauses = ([0], [1], [3], [7, 12], [15, 20, 25, 30])
    lines = [line for pause in pauses for line in (waiting, *[f"alive at {at}" for at in pause])]
    assert board.supervisor.lines == ["ready", *lines]


def test_supervisor_hears_of_the_agent_while_it_pauses() -> None:
    board = Board()
    board.patience.pause(60.0)
    assert board.now == 60
    assert board.supervisor.lines == [f"alive at {at}" for at in range(0, 60, 5)]


def test_failures_of_a_step_that_goes_well_for_a_while_stay_rare(caplog: pytest.LogCaptureFixture) -> None:
    """A session that ends at once, again and again: neither a busy loop nor a line for each."""
    board = Board(*[FULL] * 8)

    def session() -> str:
        board.patience.passed()
        return board.step()

    board.patience.until(session)
    assert board.tries == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert len(caplog.messages) == 4
    board.now += 1000
    board.errors = [FULL]
    board.patience.until(session)
    assert board.tries[-2:] == [1183, 1184]
    assert len(caplog.messages) == 6
