"""Models in .npz files: np.load reads what was saved, and `check` refuses what cannot be saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fl.tensors import npz
from tests.fl.federation import zeros

NAMES = ["w", "file", "allow_pickle", "self", "block.0/weight", "größe", "", "x" * 60_000]


def saved(path: Path, model: Any) -> dict[str, Any]:
    npz.check(model)
    npz.save(path, model)
    with np.load(path) as found:
        return dict(found)


def test_names_of_savez_parameters_are_accepted(tmp_path: Path) -> None:
    model = {name: np.full(3, number, np.float32) for number, name in enumerate(NAMES)}
    found = saved(tmp_path / "model.npz", model)
    assert list(found) == NAMES
    for name, array in model.items():
        np.testing.assert_array_equal(found[name], array)
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"])
def test_arrays_keep_shape_and_dtype(tmp_path: Path, dtype: str) -> None:
    for array in (np.arange(6).reshape(2, 3).astype(dtype), np.ones((4, 3, 2), dtype).T, np.zeros((0, 2), dtype)):
        found = saved(tmp_path / "model.npz", {"w": array, "scalar": array.dtype.type(1)})
        assert (found["w"].dtype, found["scalar"].shape) == (array.dtype, ())
        np.testing.assert_array_equal(found["w"], array)


def test_parameters_that_require_grad_are_saved(tmp_path: Path) -> None:
    model = dict(torch.nn.Linear(2, 3).named_parameters())
    found = saved(tmp_path / "model.npz", model)
    assert {name: array.shape for name, array in found.items()} == {"weight": (3, 2), "bias": (3,)}
    np.testing.assert_array_equal(found["weight"], model["weight"].detach().numpy())


@pytest.mark.parametrize("name", [1, b"w", None, "w.npy", "a\0b", "a\nb", "\ud800", "x" * 60_001])
def test_unusable_names_are_refused(name: Any) -> None:
    with pytest.raises(ValueError, match=r"no name that \.npz can have; expected a printable text") as caught:
        npz.check({name: np.zeros(3)})
    assert len(str(caught.value)) < 400


def test_torch_only_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'w' is bfloat16 of shape \(3,\); expected a dtype that \.npz has"):
        npz.check({"w": torch.zeros(3, dtype=torch.bfloat16)})


def test_save_follows_a_link_and_replaces_atomically(tmp_path: Path) -> None:
    path, link = tmp_path / "model.npz", tmp_path / "latest.npz"
    link.symlink_to(path)
    npz.save(path, zeros())
    before = path.read_bytes()
    broken: Any = {"w": np.ones(3), "v": "no array"}
    with pytest.raises(AttributeError):
        npz.save(link, broken)
    assert path.read_bytes() == before
    npz.save(link, {"w": np.ones(3)})
    assert link.is_symlink()
    assert np.load(path)["w"].tolist() == [1.0] * 3


def test_save_follows_no_link_of_the_temporary_file(tmp_path: Path) -> None:
    """Other users may write to the folder, as to /tmp."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "model.npz.new").symlink_to(precious)
    npz.save(tmp_path / "model.npz", zeros())
    assert precious.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.npz", "precious"]
