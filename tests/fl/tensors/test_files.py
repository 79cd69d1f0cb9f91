"""Models in files: np.load or safetensors reads what was saved, and `check` refuses what cannot be saved."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fl.tensors import files
from fl.tensors.spec import DTYPES
from netq.errors import InvalidOption
from tests.fl.federation import zeros

SUFFIXES = (".npz", ".safetensors")
NAMES = ["w", "file", "allow_pickle", "self", "block.0/weight", "größe", "", "x" * 60_000]


def saved(path: Path, model: Any) -> dict[str, Any]:
    files.check(path, model, "save")
    files.save(path, model)
    with np.load(path) as found:
        return dict(found)


def reread(path: Path, model: Any) -> dict[str, torch.Tensor]:
    files.check(path, model, "save")
    files.save(path, model)
    return load_file(path)


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
    with pytest.raises(InvalidOption, match=r"^save: .*no name that \.npz can have; expected a printable") as caught:
        files.check(Path("m.npz"), {name: np.zeros(3)}, "save")
    assert len(str(caught.value)) < 400


def test_npz_refuses_bfloat16_and_names_safetensors() -> None:
    with pytest.raises(InvalidOption) as caught:
        files.check(Path("m.npz"), {"w": torch.zeros(3, dtype=torch.bfloat16)}, "save")
    expected = "expected a dtype that .npz has, as float32 is one; .safetensors has bfloat16"
    assert str(caught.value) == f"save: 'w' is bfloat16 of shape (3,); {expected}"


@pytest.mark.parametrize("name", ["model", "model.bin", "model.NPZ", "npz", ".npz"])
def test_another_suffix_is_refused(name: str) -> None:
    with pytest.raises(InvalidOption, match=r"expected a name that ends in \.npz or \.safetensors$"):
        files.check_name(Path(name), "save")


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    files.check_name(Path("m.npz"), "save")
    with pytest.raises(InvalidOption, match=r"needs safetensors: pip install 'netq-fl\[safetensors\]'$"):
        files.check_name(Path("m.safetensors"), "save")


@pytest.mark.parametrize("dtype", [*DTYPES])
def test_safetensors_keeps_each_dtype_but_complex128(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "model.safetensors"
    model = {"w": torch.arange(6).view(2, 3).to(getattr(torch, dtype)), "scalar": torch.ones(1)[0]}
    if dtype == "complex128":
        with pytest.raises(InvalidOption, match=r"'w' is complex128 of shape \(2, 3\); expected a dtype that"):
            reread(path, model)
        return
    found = reread(path, model)
    assert (found["w"].dtype, found["scalar"].shape) == (model["w"].dtype, ())
    assert torch.equal(found["w"].view(torch.uint8), model["w"].view(torch.uint8))


def test_safetensors_of_arrays_in_any_layout(tmp_path: Path) -> None:
    """safetensors.numpy writes the second and third with wrong values."""
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    layouts: tuple[Any, ...] = (
        whole,
        whole.T,
        whole[::2, ::3],
        np.float32(7),
        whole[:0],
        np.broadcast_to(np.float32(2), (2, 3)),
    )
    model = {str(number): array for number, array in enumerate(layouts)}
    found = reread(tmp_path / "model.safetensors", model)
    for name, array in model.items():
        np.testing.assert_array_equal(found[name].numpy(), array)
        assert found[name].shape == array.shape


def test_safetensors_of_tied_and_strided_parameters(tmp_path: Path) -> None:
    """safetensors.torch refuses shared memory and strides."""
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3).bfloat16())
    found = reread(tmp_path / "model.safetensors", {"wte": weight, "lm_head": weight, "turned": weight.T})
    assert torch.equal(found["wte"], weight)
    assert torch.equal(found["lm_head"], weight)
    assert torch.equal(found["turned"], weight.T)


@pytest.mark.parametrize("name", [1, None, "__metadata__", "\ud800"])
def test_safetensors_refuses_unusable_names(name: Any) -> None:
    with pytest.raises(InvalidOption, match=r"no name that \.safetensors can have; expected a text other than __meta"):
        files.check(Path("m.safetensors"), {name: np.zeros(3)}, "save")


def test_safetensors_takes_any_other_name(tmp_path: Path) -> None:
    names = ["", "w.npy", "a\nb", "größe", "x" * 70_000]
    found = reread(tmp_path / "model.safetensors", {name: np.zeros(3) for name in names})
    assert sorted(found) == sorted(names)


def test_safetensors_is_written_from_the_memory_of_the_model(tmp_path: Path) -> None:
    model = {"w": np.zeros(10**7, np.uint8)}
    tracemalloc.start()
    try:
        files.save(tmp_path / "model.safetensors", model)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_save_follows_a_link_and_replaces_atomically(tmp_path: Path, suffix: str) -> None:
    path, link = tmp_path / f"model{suffix}", tmp_path / f"latest{suffix}"
    link.symlink_to(path)
    files.save(path, zeros())
    before = path.read_bytes()
    broken: Any = {"w": np.ones(3), "v": "no array"}
    with pytest.raises(AttributeError):
        files.save(link, broken)
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == sorted([path, link])
    files.save(link, {"w": np.ones(4)})
    assert link.is_symlink()
    found = load_file(path) if suffix == ".safetensors" else np.load(path)
    assert found["w"].tolist() == [1.0] * 4


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_save_follows_no_link_of_the_temporary_file(tmp_path: Path, suffix: str) -> None:
    """Other users may write to the folder, as to /tmp."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / f"model{suffix}.new").symlink_to(precious)
    files.save(tmp_path / f"model{suffix}", zeros())
    assert precious.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"model{suffix}", "precious"]


def test_both_formats_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        files.save(tmp_path / f"model{suffix}", zeros())
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1
