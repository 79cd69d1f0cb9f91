"""The last update: it survives a restart if it is whole, and stays in memory if the disk fails."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.record import Record, write
from edge.spool import Spool
from netq.errors import InvalidOption
from netq.utils.stream import Stream


def keep(spool: Spool, key: str, reply: bytes = b"reply", state: bytes = b"") -> None:
    with spool.fresh() as fd:
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
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder]).returncode:
        pytest.skip("cannot mount a file system here: run as root")
    yield folder
    subprocess.run(["umount", folder], check=True)


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


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    with Spool(tmp_path), pytest.raises(InvalidOption, match=r"client\.state: .* is in use by another agent"):
        Spool(tmp_path)
    with Spool(tmp_path):
        pass


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidOption, match=r"client\.state: .* cannot be written to"):
        Spool(tmp_path / "file")


def test_link_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Spool(tmp_path / "a") as spool:
        keep(spool, "1")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "record").symlink_to(tmp_path / "a" / "record")
    assert last(tmp_path / "b") is None
    assert "cannot be read" in caplog.text
