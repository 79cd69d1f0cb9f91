"""On a full disk the files of fl stay as they were, and nothing that is half written is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fl
from fl.server.checkpoint import Checkpoint
from fl.tensors import files
from tests.fl.aggregation.test_update_store import disk_of
from tests.fl.federation import A

ROOM = 1000  # bytes of a file: less than any of these has
MODEL = {"w": np.zeros(1000)}


def checkpoint(path: Path) -> None:
    it = Checkpoint(path)
    try:
        it.save({"number": 1, "model": MODEL})
    finally:
        it.close()


def last(path: Path) -> None:
    files.save(path.with_name("last.npz"), MODEL)


def last_safetensors(path: Path) -> None:
    files.save(path.with_name("last.safetensors"), MODEL)


def best(path: Path) -> None:
    fl.SaveBest(path.with_name("best.npz"), "loss", source="training").round_ends(
        fl.RoundReport(1, (A,), {}, {"loss": 1.0}, {}, 1.0, 10, 20), MODEL
    )


@pytest.mark.parametrize("write", [checkpoint, last, last_safetensors, best])
def test_full_disk_leaves_the_files_as_they_were(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "file")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with disk_of(ROOM), pytest.raises(OSError, match="too large"):
        write(tmp_path / "file")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    write(tmp_path / "file")
    assert set(before) <= {path.name for path in tmp_path.iterdir()}
