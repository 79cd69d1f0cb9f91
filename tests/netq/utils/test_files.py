"""Files are regular ones, and a new file is written through no link."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from netq.utils.files import create, open_regular, read_regular, replacing


def test_a_regular_file_is_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"mine")
    (tmp_path / "link").symlink_to("a")
    assert read_regular(tmp_path / "a") == read_regular(tmp_path / "link") == b"mine"


@pytest.mark.parametrize("name", ["pipe", "folder", "socket", "/dev/zero"])
def test_anything_else_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match=r"a pipe or a device|Is a directory|No such device"):
            read_regular(path)


def test_no_link_is_followed_if_the_caller_says_so(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(OSError, match="a link, which is not followed here"):
        open_regular(tmp_path / "link", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("there", ["nothing", "file", "link", "pipe"])
def test_a_new_file_takes_the_place_of_what_is_there(tmp_path: Path, there: str) -> None:
    path, precious = tmp_path / "new", tmp_path / "precious"
    precious.write_bytes(b"mine")
    if there == "file":
        path.write_bytes(b"of a killed process")
        path.chmod(0o666)
    elif there == "link":
        path.symlink_to(precious)
    elif there == "pipe":
        os.mkfifo(path)
    before = os.umask(0o022)
    try:
        for mode, expected in ((0o600, 0o600), (0o666, 0o644)):
            with create(path, mode) as file:
                file.write(b"new")
            assert path.read_bytes() == b"new"
            assert path.lstat().st_mode & 0o777 == expected
    finally:
        os.umask(before)
    assert precious.read_bytes() == b"mine"


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path, before = tmp_path / "a", tmp_path / "before"
    for content in (b"1", b"2"):
        with replacing(path, 0o640, keep=before) as file:
            file.write(content)
            assert not path.exists() or path.read_bytes() == b"1"
    assert (path.read_bytes(), before.read_bytes()) == (b"2", b"1")
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [path, before]


@pytest.mark.parametrize("reached", [True, False])
def test_a_failed_replacement_leaves_the_file_and_no_other(tmp_path: Path, reached: bool) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1")
    (tmp_path / "folder").mkdir()
    target, content = (tmp_path / "folder", b"whole") if reached else (path, "no bytes")
    with pytest.raises((TypeError, IsADirectoryError)), replacing(target) as file:
        file.write(content)  # type: ignore[arg-type]
    assert path.read_bytes() == b"1"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "folder"]
