"""What is shown of a round: five lines for however many clients, and one line where nobody watches."""

from __future__ import annotations

import errno
import io
import sys
import uuid

import pytest

import fl
from fl.callbacks.progress import Progress
from tests.fl.federation import SOON, A, B, Federation, gives, zeros

rich = pytest.importorskip("rich.console")

IDS = [uuid.uuid5(uuid.NAMESPACE_OID, str(number)) for number in range(400)]
REPORT = fl.RoundReport(1, (A,), {}, {"loss": 0.5}, {}, 1.0, 10**6, 2 * 10**6)


def drawn(progress: Progress, width: int = 100) -> list[str]:
    """The lines that are on the screen."""
    console = rich.Console(file=io.StringIO(), width=width)
    console.print(progress._draw())
    text: str = console.file.getvalue()
    return [line.rstrip() for line in text.splitlines()]


def row(lines: list[str], state: fl.ClientState) -> str:
    return next(line for line in lines if line.startswith(state.value))


def test_each_state_has_a_line() -> None:
    progress = Progress()
    progress.round_begins(7, IDS[:4])
    progress.client_is(IDS[0], fl.ClientState.TRAINING, 0)
    progress.client_is(IDS[1], fl.ClientState.WAITING, 2_000_000)
    progress.client_is(IDS[2], fl.ClientState.DONE, 1_500_000)
    progress.client_is(IDS[3], fl.ClientState.DONE, 1_500_000)
    lines = drawn(progress)
    assert lines[0].startswith("round 7, 4 clients connected, 0 s")
    assert row(lines, fl.ClientState.TRAINING).split() == ["training", "1", "█" * 5, str(IDS[0])[:8]]
    assert row(lines, fl.ClientState.WAITING).split() == ["waiting", "1", "█" * 5, "2.00", "MB", str(IDS[1])[:8]]
    assert row(lines, fl.ClientState.SENDING).split() == ["sending", "0"]
    assert row(lines, fl.ClientState.DONE).split()[:5] == ["done", "2", "█" * 10, "3.00", "MB"]


def test_a_round_is_not_searched_for_each_client() -> None:
    class Unsearched(tuple[uuid.UUID, ...]):
        def __contains__(self, client: object) -> bool:
            raise AssertionError("a search for each client is quadratic")

    progress = Progress()
    for each in IDS:
        progress.client_is(each, fl.ClientState.TRAINING, 0)
    progress.round_begins(2, Unsearched(IDS[:300]))
    assert row(drawn(progress), fl.ClientState.TRAINING).split()[:2] == ["training", "300"]


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("clients", [0, 4, 400])
def test_number_of_lines_is_fixed(clients: int, width: int) -> None:
    progress = Progress()
    progress.round_begins(1, IDS[:clients])
    for number, peer in enumerate(IDS[:clients]):
        progress.client_is(peer, list(fl.ClientState)[number % len(fl.ClientState)], 10**6)
    lines = drawn(progress, width)
    assert len(lines) == 1 + len(fl.ClientState)
    assert max(map(len, lines)) <= width


def test_line_names_some_clients_and_shows_one_of_400() -> None:
    progress = Progress()
    progress.round_begins(1, IDS)
    for peer in IDS[1:]:
        progress.client_is(peer, fl.ClientState.DONE, 0)
    progress.client_is(IDS[0], fl.ClientState.FAILED, 0)
    lines = drawn(progress)
    assert row(lines, fl.ClientState.DONE).split()[1] == "399"
    assert row(lines, fl.ClientState.DONE).endswith("…")
    assert str(IDS[1])[:8] in row(lines, fl.ClientState.DONE)
    assert "█" in row(lines, fl.ClientState.FAILED)


def test_next_round_keeps_clients_still_at_work() -> None:
    progress = Progress()
    progress.round_begins(1, IDS[:3])
    for peer, state in zip(IDS, [fl.ClientState.DONE, fl.ClientState.TRAINING, fl.ClientState.SENDING], strict=False):
        progress.client_is(peer, state, 0)
    progress.round_begins(2, IDS[:2])  # the third has gone
    lines = drawn(progress)
    assert [row(lines, state).split()[1] for state in fl.ClientState] == ["1", "0", "0", "0", "0", "0"]


def test_without_a_terminal_there_is_one_line_a_round(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        progress.round_begins(1, [A])
        progress.client_is(A, fl.ClientState.TRAINING, 0)
        progress.round_ends(REPORT, zeros())
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"{REPORT}\n")


def test_names_are_no_markup_of_the_terminal() -> None:
    file = io.StringIO()
    names = [":pile_of_poo:", "[red]x[/]", "[/nope]"]
    report = fl.RoundReport(1, (A,), {}, dict.fromkeys(names, 0.5), {}, 1.0, 10, 20)
    Progress(rich.Console(file=file, width=100)).round_ends(report, zeros())
    assert file.getvalue() == f"{report}\n"
    assert ", :pile_of_poo: 0.5, [red]x[/] 0.5, [/nope] 0.5, " in str(report)


def test_report_line_stays_on_the_terminal() -> None:
    file = io.StringIO()
    with Progress(rich.Console(file=file, force_terminal=True, width=100)) as progress:
        progress.round_begins(1, [A])
        progress.client_is(A, fl.ClientState.SENDING, 1000)
        progress.round_ends(REPORT, zeros())
    shown = file.getvalue()
    assert str(REPORT) in shown
    assert "sending" in shown
    assert shown.endswith("\x1b[1A\x1b[2K")  # the last line of the drawing, erased


class Gone(io.StringIO):
    """A stream that fails with `error`, once it has one."""

    error: OSError | None = None

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("terminal", ["", "1"])
def test_closed_reader_does_not_end_the_rounds(monkeypatch: pytest.MonkeyPatch, terminal: str) -> None:
    monkeypatch.setenv("FORCE_COLOR", terminal)
    monkeypatch.setattr(sys, "stderr", stderr := Gone())
    with Progress() as progress, Federation(callbacks=[progress], min_clients=1) as federation:
        assert progress._console.is_terminal is bool(terminal)
        federation.join(A, gives(1))
        assert federation.round(1).clients == (A,)
        stderr.error = BrokenPipeError()
        assert federation.round(1).clients == (A,)
        progress._live.refresh()  # as the drawing thread does
        assert federation.round(1).clients == (A,)
    assert "round 1: 1 clients" in stderr.getvalue()
    assert "round 2" not in stderr.getvalue()


def test_closed_terminal_does_not_end_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl.callbacks.progress._REFRESH_RATE", 1e-6)  # it is not drawn meanwhile
    before, terminal = sys.stderr, Gone()
    with Progress(rich.Console(file=terminal, force_terminal=True)):
        terminal.error = OSError(errno.EIO, "Input/output error")
    assert sys.stderr is before


def test_federation_is_shown() -> None:
    file = io.StringIO()
    with (
        Progress(rich.Console(file=file, force_terminal=True, width=100)) as progress,
        Federation(callbacks=[progress], evaluate=True) as federation,
    ):
        for id in (A, B):
            federation.join(id, gives(1), lambda model, config: fl.Report(1, {"accuracy": 1.0}))
        report = federation.round(2)
        assert row(drawn(progress), fl.ClientState.DONE).split()[:2] == ["done", "2"]
        assert row(drawn(progress), fl.ClientState.TRAINING).split() == ["training", "0"]
        assert report.seconds < SOON
    assert str(report) in file.getvalue()


def test_missing_rich_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ImportError, match=r"fl\.Progress needs rich .*: pip install rich"):
        Progress()
