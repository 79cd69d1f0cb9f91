"""Small disks for tests, which are full or read-only: file systems in memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a file system, and remove it. `options`: of tmpfs, as in "size=16k". Skips the test without root."""
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]).returncode:
        pytest.skip("cannot mount a file system here: run as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
