"""The update store: updates come back block by block, memory does not grow, and the folder stays empty."""

from __future__ import annotations

import errno
import os
import resource
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fl.aggregation.update_store
from fl.aggregation.update_store import UpdateStore
from fl.errors import InvalidUpdate, UpdateStoreError
from netq.errors import NetqError

DESCRIPTORS = Path("/proc/self/fd")


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[Callable[[Any], UpdateStore]]:
    """Make stores, and free their disk space after the test."""
    made: list[UpdateStore] = []

    def make(like: Any) -> UpdateStore:
        made.append(UpdateStore(like, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.reset()


def whole(store: UpdateStore, name: str) -> NDArray[Any]:
    """Return one tensor of all updates, joined from its blocks."""
    return np.concatenate([stack.matrix for stack in store.blocks() if stack.name == name], axis=1)


def numbers(seed: int, size: int = 70_000) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(0, 2, size) * 3.5 + np.arange(size) % 50


# Contents


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        *[(name, "f4") for name in ("float16", "float32", "bfloat16", "float8_e5m2")],
        *[(name, "f8") for name in ("float64", "bool", "int8", "int32", "uint8")],
        ("int64", "i8"),
        *[("complex64", "c8"), ("complex128", "c16")],
    ],
)
def test_updates_come_back_in_the_precision_of_the_computation(
    make_store: Callable[[Any], UpdateStore], dtype: str, wide: str
) -> None:
    updates = [torch.from_numpy(numbers(seed)).to(getattr(torch, dtype)).reshape(700, 100) for seed in range(3)]
    store = make_store({"w": updates[0]})
    for each in updates:
        store.add({"w": each})
    expected = torch.stack(updates).reshape(3, -1).to(torch.complex128 if wide[0] == "c" else torch.float64).numpy()
    found = whole(store, "w")
    assert found.dtype == np.dtype(wide)
    assert np.array_equal(found, expected)
    assert len(store) == 3


def test_memory_layout_does_not_matter(make_store: Callable[[Any], UpdateStore]) -> None:
    values = numbers(0).astype("f4").reshape(700, 100)
    layouts: list[Any] = [
        values,
        np.asfortranarray(values),
        np.stack([values, values], axis=2)[:, :, 1],
        values[::-1].copy()[::-1],
        torch.from_numpy(values).t().contiguous().t(),
        torch.from_numpy(values).requires_grad_(),
    ]
    store = make_store({"w": values})
    for each in layouts:
        store.add({"w": each})
    assert all(np.array_equal(row, values.ravel()) for row in whole(store, "w"))


def test_scalars_and_empty_tensors_come_back(make_store: Callable[[Any], UpdateStore]) -> None:
    like: dict[str, Any] = {"nothing": np.zeros((0, 3), "f4"), "one": np.array(7.0), "n": np.array(3)}
    store = make_store(like)
    store.add(like)
    store.add({**like, "one": like["one"] + 1})  # numpy arithmetic turns 0-d arrays into scalars
    found = {stack.name: stack for stack in store.blocks()}
    assert found.keys() == {"one", "n"}
    assert found["one"].matrix.tolist() == [[7.0], [8.0]]
    assert (found["one"].size, found["one"].start, found["one"].stop) == (1, 0, 1)


def test_empty_model_has_no_blocks(make_store: Callable[[Any], UpdateStore]) -> None:
    store = make_store({})
    store.add({})
    assert (len(store), list(store.blocks())) == (1, [])


def test_store_keeps_no_reference_to_updates_or_blocks(make_store: Callable[[Any], UpdateStore]) -> None:
    update: dict[str, Any] = {"w": np.ones(3), "t": torch.ones(3)}
    store = make_store(update)
    store.add(update)
    update["w"][...] = update["t"][...] = 7
    for stack in store.blocks():
        stack.matrix[...] = 9
    assert whole(store, "w").tolist() == whole(store, "t").tolist() == [[1, 1, 1]]


def test_rows_have_the_requested_order(make_store: Callable[[Any], UpdateStore]) -> None:
    store = make_store({"w": np.zeros(2), "n": np.array(0)})
    for value in range(5):
        store.add({"w": np.full(2, value, "f8"), "n": np.array(value)})
    assert [stack.matrix[:, 0].tolist() for stack in store.blocks([3, 0])] == [[3, 0], [3, 0]]
    assert [stack.name for stack in store.blocks([1], exact=False)] == ["w"]


@pytest.mark.slow
@pytest.mark.parametrize("updates", [1, 3, 50, 60])
def test_blocks_are_bounded_and_cover_each_tensor_once(
    make_store: Callable[[Any], UpdateStore], monkeypatch: pytest.MonkeyPatch, updates: int
) -> None:
    monkeypatch.setattr(fl.aggregation.update_store, "CELLS", 50)
    like = {"a": np.arange(1201, dtype="f4"), "b": np.arange(3.0), "c": np.arange(500)}
    store = make_store(like)
    for _ in range(updates):
        store.add(like)
    reached = dict.fromkeys(like, 0)
    for name, size, start, stop, matrix in store.blocks():
        assert matrix.size <= max(50, updates)  # one element of each update at least
        assert (start, size, matrix.shape) == (reached[name], like[name].size, (updates, stop - start))
        assert np.array_equal(matrix[-1], like[name][start:stop])
        reached[name] = stop
    assert reached == {name: array.size for name, array in like.items()}


def test_memory_does_not_grow_with_updates(make_store: Callable[[Any], UpdateStore]) -> None:
    update = {"w": np.ones((1000, 1000), "f4")}
    store = make_store(update)
    tracemalloc.start()
    try:
        for _ in range(20):
            store.add(update)
        assert sum(stack.matrix.size for stack in store.blocks()) == 20_000_000
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


# Disk


def unnamed(folder: Path) -> list[str]:
    """Return this process's descriptors of files without a name in the folder."""
    links = {}
    for each in os.listdir(DESCRIPTORS):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            links[each] = os.readlink(DESCRIPTORS / each)
    return [each for each, link in links.items() if link.startswith(str(folder)) and link.endswith("(deleted)")]


def test_file_has_no_name_and_one_descriptor_until_reset(
    make_store: Callable[[Any], UpdateStore], tmp_path: Path
) -> None:
    update = {name: np.ones(10_000) for name in "abcde"}
    store = make_store(update)
    for _ in range(10):
        store.add(update)
    assert list(tmp_path.iterdir()) == []  # so kill -9 leaves nothing
    (opened,) = [os.stat(DESCRIPTORS / each) for each in unnamed(tmp_path)]
    assert (opened.st_size, opened.st_nlink) == (10 * 5 * 80_000, 0)
    store.reset()
    assert unnamed(tmp_path) == []
    assert len(store) == 0
    store.add(update)
    assert whole(store, "e").shape == (1, 10_000)


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Limit the size of files to `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("fitting", [0, 2])
def test_update_on_a_full_disk_raises_and_does_not_count(
    make_store: Callable[[Any], UpdateStore], tmp_path: Path, fitting: int
) -> None:
    store = make_store({"w": np.zeros(125_000)})
    with disk_of(fitting * 1_000_000 + 600_000):
        for value in range(fitting):
            store.add({"w": np.full(125_000, value, "f8")})
        with pytest.raises(UpdateStoreError) as caught:
            store.add({"w": np.full(125_000, 99.0)})
    assert caught.value.errno == errno.EFBIG
    assert isinstance(caught.value, (NetqError, OSError))
    for said in (f"folder {tmp_path}: ", "1000000 bytes", f"{fitting} others", f"of {fitting * 1_000_000} bytes"):
        assert said in str(caught.value)
    assert len(store) == fitting
    assert [os.stat(DESCRIPTORS / each).st_size for each in unnamed(tmp_path)] == [fitting * 1_000_000]
    store.add({"w": np.full(125_000, 3.0)})  # there is room again
    assert whole(store, "w")[:, 0].tolist() == [*range(fitting), 3.0]


def test_truncated_file_raises(make_store: Callable[[Any], UpdateStore], tmp_path: Path) -> None:
    store = make_store({"w": np.zeros(1000)})
    store.add({"w": np.zeros(1000)})
    (descriptor,) = unnamed(tmp_path)
    os.truncate(DESCRIPTORS / descriptor, 7999)
    with pytest.raises(UpdateStoreError, match=r"folder .*: the file ends before byte 8000"):
        list(store.blocks())


@pytest.mark.parametrize("folder", ["missing", "a file"])
def test_unusable_folder_is_refused_at_construction(tmp_path: Path, folder: str) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(
        UpdateStoreError, match=rf"folder {tmp_path / folder}: no file can be made there .*; expected a fold"
    ):
        UpdateStore({"w": np.zeros(3)}, tmp_path / folder)


def test_default_folder_is_that_of_temporary_files() -> None:
    store = UpdateStore({"w": np.zeros(3)})
    store.add({"w": np.ones(3)})
    assert whole(store, "w").tolist() == [[1, 1, 1]]
    store.reset()


# Refusals


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ([1, 2], "an update is a list"),
        ({"a": np.zeros(3)}, "'z' is missing"),
        ({"a": np.zeros(3), "z": np.zeros(3), "y": np.zeros(3)}, "'y' is unexpected"),
        ({"a": np.zeros(3), "z": np.zeros(4)}, "'z' is float64 of shape"),
        ({"a": np.zeros(3, "f4"), "z": np.zeros(3)}, "'a' is float32"),
        ({"a": np.zeros(3), "z": np.array([0, 0, np.nan])}, "'z' holds NaN or infinity"),
    ],
)
def test_unfitting_model_is_refused_and_changes_nothing(
    make_store: Callable[[Any], UpdateStore], bad: Any, match: str
) -> None:
    good = {"a": np.ones(3), "z": np.ones(3)}
    store = make_store(good)
    store.add(good)
    with pytest.raises(InvalidUpdate, match=match):
        store.add(bad)
    assert len(store) == 1
    assert whole(store, "a").tolist() == whole(store, "z").tolist() == [[1, 1, 1]]


def test_models_of_unusable_dtypes_are_refused() -> None:
    with pytest.raises(InvalidUpdate, match=r"'w': .* has no mean"):
        UpdateStore({"w": np.array([None])})
