"""The audit log of a device: each line has the hash of the one before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge.audit import Audit, verify
from netq.errors import InvalidOption, NotNow
from tests.edge.test_config import run_edge


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of five lines."""
    log = Audit(tmp_path / "audit.jsonl")
    for number in range(5):
        log.add({"task": f"round {number}", "why": 'with a "before": "' + "0" * 64})
    return tmp_path / "audit.jsonl"


def faults(path: Path) -> list[str]:
    is_whole, lines = verify(path)
    assert is_whole == (not any(line.startswith("line ") for line in lines))
    return lines


def change(path: Path, *order: int) -> None:
    """Keep these lines, in this order."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[number - 1] for number in order))


def test_whole_log_is_verified_and_names_its_last_hash(path: Path) -> None:
    (line,) = faults(path)
    last = path.read_text().splitlines()[-1][-66:-2]
    assert line == f"all 5 lines are whole; the last hash is {last}"


def test_each_changed_byte_is_found(path: Path) -> None:
    whole = path.read_bytes()
    begin = 0
    for number, line in enumerate(whole.splitlines(keepends=True), 1):
        for place in range(begin, begin + len(line)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            found = faults(path)
            assert found[0].startswith(f"line {number}: "), (place, found)
        begin += len(line)


@pytest.mark.parametrize(
    ("order", "line", "where"),
    [
        ((1, 2, 4, 5), 3, "lines before it are missing"),
        ((1, 3, 2, 4, 5), 2, "it follows line 3"),
        ((1, 2, 3, 2, 4, 5), 4, "it follows line 1"),
    ],
)
def test_removed_moved_and_inserted_lines_are_found(path: Path, order: tuple[int, ...], line: int, where: str) -> None:
    change(path, *order)
    found = faults(path)
    assert found[0].startswith(f"line {line}: does not follow line {line - 1}: ")
    assert found[0].endswith(where)


def test_cut_in_a_line_is_found_and_one_after_a_line_is_not(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)
    assert faults(path) == ["line 5: has no end: it is being written, the power was lost meanwhile, or it was cut off"]
    change(path, 1, 2)
    assert faults(path)[0].startswith("all 2 lines are whole")


def test_log_goes_on_after_a_restart_and_after_half_a_line(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"at": "2026')
    Audit(path).add({"task": "round 5"})
    assert faults(path)[0].startswith("all 6 lines are whole")


def test_line_that_the_disk_does_not_take_leaves_no_half_of_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, write = Audit(path), os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, line: write(fd, line[:20]))
        with pytest.raises(OSError, match="the disk may be full"):
            log.add({"task": "round 5"})
    log.add({"task": "round 6"})
    assert faults(path)[0].startswith("all 6 lines are whole")


def test_next_file_begins_with_the_last_hash(tmp_path: Path) -> None:
    log = Audit(tmp_path / "audit.jsonl")
    log.add({})
    last = faults((tmp_path / "audit.jsonl").rename(tmp_path / "old"))[0][-64:]
    log.add({})
    assert f"; the file before ends with {last}; " in faults(tmp_path / "audit.jsonl")[0]


def test_file_of_something_else_is_not_gone_on_with(tmp_path: Path) -> None:
    for text in ("hello\n", "hello", '{"x'):
        (tmp_path / "x").write_text(text)
        with pytest.raises(NotNow, match="its last line is none of an audit log; move the file away"):
            Audit(tmp_path / "x")
        assert (tmp_path / "x").read_text() == text
    with pytest.raises(InvalidOption, match="no: cannot be read"):
        verify(tmp_path / "no")


def test_command_says_what_is_wrong(path: Path) -> None:
    status, out, _ = run_edge("verify", str(path), command="audit")
    assert (status, out.startswith(f"{path}: all 5 lines are whole")) == (0, True)
    change(path, 1, 3)
    status, out, _ = run_edge("verify", str(path), command="audit")
    assert (status, out.startswith(f"{path}: line 2: does not follow line 1")) == (1, True)
