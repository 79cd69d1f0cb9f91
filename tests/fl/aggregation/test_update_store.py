"""Updates on disk: what goes in comes back block by block; neither memory nor the folder shows how many there are."""

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
def spool(tmp_path: Path) -> Iterator[Callable[[Any], UpdateStore]]:
    """Make spools, and give back their disk after the test."""
    made: list[UpdateStore] = []

    def make(like: Any) -> UpdateStore:
        made.append(UpdateStore(like, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.reset()


def whole(spool: UpdateStore, name: str) -> NDArray[Any]:
    """A tensor of all updates, put together again."""
    return np.concatenate([stack.matrix for stack in spool.blocks() if stack.name == name], axis=1)


def numbers(seed: int, size: int = 70_000) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(0, 2, size) * 3.5 + np.arange(size) % 50


# What comes back


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        *[(name, "f4") for name in ("float16", "float32", "bfloat16", "float8_e5m2")],
        *[(name, "f8") for name in ("float64", "bool", "int8", "int64", "uint8")],
        *[("complex64", "c8"), ("complex128", "c16")],
    ],
)
def test_what_was_added_comes_back_in_the_precision_that_is_computed_with(
    spool: Callable[[Any], UpdateStore], dtype: str, wide: str
) -> None:
    updates = [torch.from_numpy(numbers(seed)).to(getattr(torch, dtype)).reshape(700, 100) for seed in range(3)]
    kept = spool({"w": updates[0]})
    for each in updates:
        kept.add({"w": each})
    expected = torch.stack(updates).reshape(3, -1).to(torch.complex128 if wide[0] == "c" else torch.float64).numpy()
    found = whole(kept, "w")
    assert found.dtype == np.dtype(wide)
    assert np.array_equal(found, expected)
    assert len(kept) == 3


def test_layouts_do_not_matter(spool: Callable[[Any], UpdateStore]) -> None:
    values = numbers(0).astype("f4").reshape(700, 100)
    layouts: list[Any] = [
        values,
        np.asfortranarray(values),
        np.stack([values, values], axis=2)[:, :, 1],
        values[::-1].copy()[::-1],
        torch.from_numpy(values).t().contiguous().t(),
        torch.from_numpy(values).requires_grad_(),
    ]
    kept = spool({"w": values})
    for each in layouts:
        kept.add({"w": each})
    assert all(np.array_equal(row, values.ravel()) for row in whole(kept, "w"))


def test_tensors_without_dimensions_and_without_elements(spool: Callable[[Any], UpdateStore]) -> None:
    like: dict[str, Any] = {"nothing": np.zeros((0, 3), "f4"), "one": np.array(7.0), "n": np.array(3)}
    kept = spool(like)
    kept.add(like)
    kept.add({**like, "one": like["one"] + 1})  # arithmetic makes scalars of 0-d arrays
    found = {stack.name: stack for stack in kept.blocks()}
    assert found.keys() == {"one", "n"}
    assert found["one"].matrix.tolist() == [[7.0], [8.0]]
    assert (found["one"].size, found["one"].start, found["one"].stop) == (1, 0, 1)


def test_a_model_of_nothing_has_no_blocks(spool: Callable[[Any], UpdateStore]) -> None:
    kept = spool({})
    kept.add({})
    assert (len(kept), list(kept.blocks())) == (1, [])


def test_an_update_is_the_callers_again_and_a_block_the_receivers(spool: Callable[[Any], UpdateStore]) -> None:
    update: dict[str, Any] = {"w": np.ones(3), "t": torch.ones(3)}
    kept = spool(update)
    kept.add(update)
    update["w"][...] = update["t"][...] = 7
    for stack in kept.blocks():
        stack.matrix[...] = 9
    assert whole(kept, "w").tolist() == whole(kept, "t").tolist() == [[1, 1, 1]]


def test_some_updates_come_in_the_order_that_is_asked_for(spool: Callable[[Any], UpdateStore]) -> None:
    kept = spool({"w": np.zeros(2), "n": np.array(0)})
    for value in range(5):
        kept.add({"w": np.full(2, value, "f8"), "n": np.array(value)})
    assert [stack.matrix[:, 0].tolist() for stack in kept.blocks([3, 0])] == [[3, 0], [3, 0]]
    assert [stack.name for stack in kept.blocks([1], exact=False)] == ["w"]


@pytest.mark.parametrize("updates", [1, 3, 50, 600])
def test_blocks_are_bounded_and_cover_each_tensor_once(
    spool: Callable[[Any], UpdateStore], monkeypatch: pytest.MonkeyPatch, updates: int
) -> None:
    monkeypatch.setattr(fl.aggregation.update_store, "CELLS", 500)
    like = {"a": np.arange(1201, dtype="f4"), "b": np.arange(3.0), "c": np.arange(500)}
    kept = spool(like)
    for _ in range(updates):
        kept.add(like)
    reached = dict.fromkeys(like, 0)
    for name, size, start, stop, matrix in kept.blocks():
        assert matrix.size <= max(500, updates)  # one of each at least
        assert (start, size, matrix.shape) == (reached[name], like[name].size, (updates, stop - start))
        assert np.array_equal(matrix[-1], like[name][start:stop])
        reached[name] = stop
    assert reached == {name: array.size for name, array in like.items()}


def test_memory_is_that_of_some_blocks_however_many_updates_there_are(spool: Callable[[Any], UpdateStore]) -> None:
    update = {"w": np.ones((1000, 1000), "f4")}
    kept = spool(update)
    tracemalloc.start()
    try:
        for _ in range(20):
            kept.add(update)
        assert sum(stack.matrix.size for stack in kept.blocks()) == 20_000_000
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


# The disk


def unnamed(folder: Path) -> list[str]:
    """Our descriptors of files that are in the folder without a name."""
    links = {}
    for each in os.listdir(DESCRIPTORS):
        with suppress(FileNotFoundError):  # that of the listing itself
            links[each] = os.readlink(DESCRIPTORS / each)
    return [each for each, link in links.items() if link.startswith(str(folder)) and link.endswith("(deleted)")]


def test_the_folder_shows_nothing_and_one_descriptor_is_open_until_reset(
    spool: Callable[[Any], UpdateStore], tmp_path: Path
) -> None:
    update = {name: np.ones(10_000) for name in "abcde"}
    kept = spool(update)
    for _ in range(10):
        kept.add(update)
    assert list(tmp_path.iterdir()) == []  # so nothing can be left by kill -9
    (opened,) = [os.stat(DESCRIPTORS / each) for each in unnamed(tmp_path)]
    assert (opened.st_size, opened.st_nlink) == (10 * 5 * 80_000, 0)
    kept.reset()
    assert unnamed(tmp_path) == []
    assert len(kept) == 0
    kept.add(update)
    assert whole(kept, "e").shape == (1, 10_000)


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("fitting", [0, 2])
def test_a_full_disk_is_said_and_the_update_is_not_counted(
    spool: Callable[[Any], UpdateStore], tmp_path: Path, fitting: int
) -> None:
    kept = spool({"w": np.zeros(125_000)})
    with disk_of(fitting * 1_000_000 + 600_000):
        for value in range(fitting):
            kept.add({"w": np.full(125_000, value, "f8")})
        with pytest.raises(UpdateStoreError) as caught:
            kept.add({"w": np.full(125_000, 99.0)})
    assert caught.value.errno == errno.EFBIG
    assert isinstance(caught.value, (NetqError, OSError))
    for said in (f"folder {tmp_path}: ", "1000000 bytes", f"{fitting} others", f"of {fitting * 1_000_000} bytes"):
        assert said in str(caught.value)
    assert len(kept) == fitting
    assert [os.stat(DESCRIPTORS / each).st_size for each in unnamed(tmp_path)] == [fitting * 1_000_000]
    kept.add({"w": np.full(125_000, 3.0)})  # there is room again
    assert whole(kept, "w")[:, 0].tolist() == [*range(fitting), 3.0]


def test_a_file_that_has_lost_its_end_is_an_error(spool: Callable[[Any], UpdateStore], tmp_path: Path) -> None:
    kept = spool({"w": np.zeros(1000)})
    kept.add({"w": np.zeros(1000)})
    (descriptor,) = unnamed(tmp_path)
    os.truncate(DESCRIPTORS / descriptor, 7999)
    with pytest.raises(UpdateStoreError, match=r"folder .*: the file ends before byte 8000"):
        list(kept.blocks())


@pytest.mark.parametrize("folder", ["missing", "a file"])
def test_a_folder_in_which_no_file_can_be_made_is_refused_at_once(tmp_path: Path, folder: str) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(
        UpdateStoreError, match=rf"folder {tmp_path / folder}: no file can be made there .*; expected a fold"
    ):
        UpdateStore({"w": np.zeros(3)}, tmp_path / folder)


def test_without_a_folder_it_is_that_of_temporary_files() -> None:
    kept = UpdateStore({"w": np.zeros(3)})
    kept.add({"w": np.ones(3)})
    assert whole(kept, "w").tolist() == [[1, 1, 1]]
    kept.reset()


# What is refused


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
def test_what_does_not_fit_is_refused_and_changes_nothing(
    spool: Callable[[Any], UpdateStore], bad: Any, match: str
) -> None:
    good = {"a": np.ones(3), "z": np.ones(3)}
    kept = spool(good)
    kept.add(good)
    with pytest.raises(InvalidUpdate, match=match):
        kept.add(bad)
    assert len(kept) == 1
    assert whole(kept, "a").tolist() == whole(kept, "z").tolist() == [[1, 1, 1]]


def test_models_that_cannot_be_computed_with_are_refused() -> None:
    with pytest.raises(InvalidUpdate, match=r"'w': .* has no mean"):
        UpdateStore({"w": np.array([None])})
