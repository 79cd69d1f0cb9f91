"""The last update: it survives a restart if it is whole, and stays in memory if the disk fails."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.record import Record, write
from edge.spool import Spool
from netq.errors import NotNow
from netq.utils.stream import Stream
from tests.edge.disks import mounted


def keep(spool: Spool, key: str, reply: bytes = b"reply", state: bytes = b"") -> None:
    """Keep a record as the agent does, which the child writes to memory if the disk is full."""
    with spool.fresh() as fd, open(os.memfd_create("as the child does"), "rb") as memory:
        try:
            write(fd, key, Stream([reply]), len(reply), Stream([state] if state else []))
        except OSError:
            fd = memory.fileno()
            write(fd, key, Stream([reply]), len(reply), Stream([state] if state else []))
        spool.keep(fd, Record.read(fd, check=False))


def last(folder: Path) -> tuple[str, bytes, bytes] | None:
    with Spool(folder) as spool:
        return None if spool.last is None else (spool.last.key, bytes(spool.last.reply), bytes(spool.last.state))


def test_last_record_survives_a_restart(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        assert spool.last is None
        keep(spool, "1")
        keep(spool, "2", b"other", b"state")
    assert last(tmp_path) == ("2", b"other", b"state")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "record"]


def test_record_that_was_not_kept_is_not_there(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        keep(spool, "1")
        with spool.fresh() as fd:
            write(fd, "2", Stream([b"half"]), 4, Stream())
    assert last(tmp_path) == ("1", b"reply", b"")


def test_views_outlive_the_spool(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        keep(spool, "1", b"x" * 10_000)
        assert spool.last is not None
        view = spool.last.reply
        keep(spool, "2")
    assert bytes(view) == b"x" * 10_000


@pytest.mark.parametrize("size", [0, 1, 35, 36, 64, 100, 136, 137])
def test_torn_record_is_dropped_with_one_line(tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture) -> None:
    with Spool(tmp_path) as spool:
        keep(spool, "1", b"r" * 10, b"s" * 10)
    path = tmp_path / "record"
    assert path.stat().st_size == 138
    os.truncate(path, size)
    with caplog.at_level(logging.WARNING, "edge"):
        assert last(tmp_path) is None
    (line,) = caplog.messages
    assert line.startswith(f"{path}: is no whole update, and is dropped: ")
    assert not path.exists()


def test_without_a_folder_records_stay_in_memory() -> None:
    with Spool(None) as spool:
        assert spool.state is None
        keep(spool, "1", state=b"state")
        assert spool.last is not None
        assert bytes(spool.last.state) == b"state"
        assert spool.state is not None
        keep(spool, "2")
        assert spool.state is None


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "size=16k") as folder:
        yield folder


def test_full_disk_is_one_warning(full_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    (full_disk / "state").mkdir()
    with Spool(full_disk / "state") as spool:
        keep(spool, "1")
        filler = full_disk / "filler"
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(bytes(16 * 1024))
        for key in ("2", "3"):
            memory = os.memfd_create("as the child does")
            with pytest.raises(OSError, match="No space"), spool.fresh() as fd:
                write(fd, key, Stream([bytes(10_000)]), 1, Stream())
            write(memory, key, Stream([bytes(10_000)]), 1, Stream())
            spool.keep(memory, Record.read(memory, check=False))
            os.close(memory)
            assert spool.last is not None
            assert spool.last.key == key
        (warning,) = caplog.messages
        assert warning.startswith(f"{full_disk}/state: cannot be written (")
        filler.unlink()
        keep(spool, "4")
    assert caplog.messages[1:] == [f"{full_disk}/state: can be written again: the last update is stored"]
    assert last(full_disk / "state") == ("4", b"reply", b"")


def test_record_that_the_child_could_not_write_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Spool(tmp_path) as spool:
        for key in ("1", "2"):
            memory = os.memfd_create("as the child does")
            write(memory, key, Stream([b"reply"]), 5, Stream())
            spool.keep(memory, Record.read(memory, check=False))
            os.close(memory)
    assert caplog.messages == [
        f"{tmp_path}: cannot be written (the disk may be full): updates stay in memory; a restart goes on "
        "from the last stored one"
    ]


def test_folder_is_made_for_its_user_only(tmp_path: Path) -> None:
    with Spool(tmp_path / "state"):
        assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_folder_in_use_is_not_for_now(tmp_path: Path) -> None:
    with Spool(tmp_path), pytest.raises(NotNow, match=r"client\.state: .* is in use by another agent"):
        Spool(tmp_path)
    with Spool(tmp_path):
        pass


def test_folder_on_a_disk_that_is_not_there_is_not_for_now(tmp_path: Path) -> None:
    with pytest.raises(NotNow, match=r"client\.state: .*; there is no folder .*/disk': make it"):
        Spool(tmp_path / "disk" / "state")


def test_half_a_record_is_removed_at_the_start(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        keep(spool, "1")
    (tmp_path / "record.new").write_bytes(b"half")
    assert last(tmp_path) == ("1", b"reply", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "record"]


@pytest.mark.parametrize("disk", ["size=16k", "nr_inodes=6"])
def test_disk_that_is_full_at_the_start_is_used_later(
    tmp_path: Path, disk: str, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted(tmp_path / "disk", disk) as folder:
        with contextlib.suppress(OSError):
            for number in range(8):
                (folder / f"filler{number}").write_bytes(bytes(4096))
        state = folder / "state"
        with Spool(state) as spool:
            keep(spool, "1")
            assert spool.last is not None
            assert spool.last.key == "1"
            for filler in folder.glob("filler*"):
                filler.unlink()
            keep(spool, "2")
        assert last(state) == ("2", b"reply", b"")
    warning, again = caplog.messages
    assert warning.startswith(f"{state}: cannot be written (")
    assert again == f"{state}: can be written again: the last update is stored"


def test_read_only_disk_gives_the_last_record_and_is_used_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted(tmp_path / "disk", "size=1m") as folder:
        with Spool(folder) as spool:
            keep(spool, "1", state=b"state")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        with Spool(folder) as spool:
            assert spool.last is not None
            assert spool.last.key == "1"
            with pytest.raises(NotNow, match="is in use by another agent"):
                Spool(folder)
            keep(spool, "2")
            subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
            keep(spool, "3")
        assert last(folder) == ("3", b"reply", b"")
    assert [line.partition(": ")[2][:24] for line in caplog.messages] == [
        "cannot be written (Read-",
        "can be written again: th",
    ]


def test_damaged_record_on_a_read_only_disk_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mounted(tmp_path / "disk", "size=1m") as folder:
        with Spool(folder):
            (folder / "record").write_bytes(b"half")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        assert last(folder) is None
    assert "is no whole update, and is dropped: " in caplog.text


def test_folder_that_was_not_there_does_not_replace_a_newer_record(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=1m") as folder:
        with Spool(folder / "state") as spool:
            keep(spool, "1")
        (folder / "state").rename(folder / "away")
        (folder / "state").touch()
        with Spool(folder / "state") as spool:
            keep(spool, "2")
            (folder / "state").unlink()
            (folder / "away").rename(folder / "state")
            with spool.fresh():
                assert spool.last is not None
                assert spool.last.key == "2"
            keep(spool, "3")
        assert last(folder / "state") == ("3", b"reply", b"")


def test_folder_that_comes_before_the_first_task_gives_its_record(tmp_path: Path) -> None:
    with Spool(tmp_path / "away") as spool:
        keep(spool, "1", state=b"state")
    (tmp_path / "state").touch()
    with Spool(tmp_path / "state") as spool:
        (tmp_path / "state").unlink()
        (tmp_path / "away").rename(tmp_path / "state")
        with spool.fresh():
            assert spool.last is not None
            assert bytes(spool.last.state) == b"state"


def test_folder_of_another_agent_is_left_alone_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "state").touch()
    with Spool(tmp_path / "state") as late:
        (tmp_path / "state").unlink()
        with Spool(tmp_path / "state") as early, early.fresh() as fd:
            keep(late, "2")
            write(fd, "1", Stream([b"reply"]), 5, Stream())
            early.keep(fd, Record.read(fd, check=False))
    assert last(tmp_path / "state") == ("1", b"reply", b"")


def test_link_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Spool(tmp_path / "a") as spool:
        keep(spool, "1")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "record").symlink_to(tmp_path / "a" / "record")
    assert last(tmp_path / "b") is None
    assert "cannot be read" in caplog.text
