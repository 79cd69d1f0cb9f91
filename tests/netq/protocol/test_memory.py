"""The memory of incoming messages: alignment, reuse of large blocks, and when blocks are freed."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import subprocess
import sys
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netq.buffers import ALIGNMENT, LARGE, aligned
from netq.protocol.memory import KEEP, RECYCLED, Memory, _size_class

MIB = 1024**2
SIZES = (0, 1, 63, 64, 65, 4096, RECYCLED - 1, RECYCLED, LARGE - 1, LARGE, LARGE + 1, 2 * MIB, 10 * MIB + 7)


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@pytest.mark.parametrize("size", SIZES)
def test_memory_is_writable_and_aligned(size: int) -> None:
    view = Memory().take(size)
    assert (view.nbytes, view.ndim, view.format, view.readonly) == (size, 1, "B", False)
    if size:
        assert address(view) % ALIGNMENT == 0
        view[0] = view[-1] = 1


@pytest.mark.parametrize("size", [100, LARGE - 1, LARGE + 100, 9 * MIB + 63])
def test_memory_of_any_size_is_aligned(size: int) -> None:
    view = aligned(size)
    assert (view.nbytes, address(view) % ALIGNMENT) == (size, 0)
    view[-1] = 1


def test_blocks_in_use_do_not_overlap() -> None:
    memory = Memory()
    views = [memory.take(size) for size in (100, LARGE, 100, RECYCLED, LARGE, LARGE + 5, RECYCLED)]
    for number, view in enumerate(views):
        view[:] = bytes([number]) * view.nbytes
    for number, view in enumerate(views):
        assert view == bytes([number]) * view.nbytes


@pytest.mark.parametrize("keep", [KEEP, LARGE], ids=["kept", "larger than the bound"])
def test_fresh_memory_is_no_idle_block(keep: int) -> None:
    memory, size = Memory(keep), _size_class(2 * LARGE)
    memory.take(size).release()
    fresh = memory.take(size, fresh=True)
    assert memory.idle == size
    recycled = memory.take(size)
    assert memory.idle == 0
    assert address(fresh) != address(recycled)


@pytest.mark.parametrize("size", [size for size in SIZES if size >= RECYCLED])
def test_block_is_used_again_for_its_class_of_size(size: int) -> None:
    memory = Memory()
    view = memory.take(_size_class(size))
    first = address(view)
    assert memory.idle == 0
    del view
    assert memory.idle == _size_class(size)
    again = memory.take(size)
    assert address(again) == first
    assert again.nbytes == size
    assert memory.idle == 0


@pytest.mark.parametrize("size", [RECYCLED, MIB, 2 * MIB, 8 * MIB])
def test_block_is_not_used_for_another_class(size: int) -> None:
    memory = Memory()
    memory.take(size)
    others = [memory.take(size - size // 8), memory.take(size + 1)]
    assert memory.idle == size
    assert len(others) == 2


def test_small_block_is_not_kept() -> None:
    memory = Memory()
    memory.take(RECYCLED - 1)
    assert memory.idle == 0


def test_last_used_block_is_taken_first() -> None:
    memory = Memory()
    one, two = memory.take(MIB), memory.take(MIB)
    last = address(one)
    del two
    del one
    assert address(memory.take(MIB)) == last


def test_any_view_keeps_its_block() -> None:
    memory = Memory()
    view = memory.take(MIB)
    part = view[1000:2000]
    numbers = part[:8].cast("d")
    del view, part
    assert memory.idle == 0
    other = memory.take(MIB)
    other[:] = b"\1" * MIB
    numbers[0] = 5.0
    assert other == b"\1" * MIB
    del numbers
    assert memory.idle >= MIB


def test_blocks_are_freed_without_gc() -> None:
    memory = Memory()
    gc.disable()
    try:
        for _ in range(50):
            view = memory.take(MIB)
            del view
        assert MIB <= memory.idle < 2 * MIB
    finally:
        gc.enable()


def test_views_may_be_freed_in_other_threads() -> None:
    memory = Memory(keep=4 * MIB)

    def drop(views: list[memoryview]) -> None:
        while views:
            views.pop()

    for _ in range(20):
        shares = [[memory.take(MIB) for _ in range(4)] for _ in range(4)]
        threads = [threading.Thread(target=drop, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not any(shares)
        assert 0 < memory.idle <= 4 * MIB
        assert len({address(view) for view in [memory.take(MIB) for _ in range(6)]}) <= 6


def test_longest_idle_blocks_are_freed_beyond_keep() -> None:
    memory = Memory(keep=2 * MIB)
    views = [memory.take(MIB) for _ in range(4)]
    addresses = [address(view) for view in views]
    while views:
        views.pop(0)
        assert memory.idle <= 2 * MIB
    assert memory.idle == 2 * MIB
    again = [memory.take(MIB), memory.take(MIB)]
    assert [address(view) for view in again] == [addresses[3], addresses[2]]


def test_idle_blocks_of_all_classes_are_bounded() -> None:
    memory = Memory(keep=8 * MIB)
    chance = random.Random(1)
    views: list[memoryview] = []
    for _ in range(2000):
        views.append(memory.take(chance.randrange(RECYCLED, 4 * MIB)))
        if len(views) > chance.randrange(8):
            views.clear()
        assert memory.idle <= 8 * MIB
    assert memory.idle > 4 * MIB


def test_block_beyond_keep_is_used_again() -> None:
    memory = Memory(keep=MIB)
    view = memory.take(4 * MIB)
    first = address(view)
    del view
    memory.take(MIB)  # a message between them does not free it
    assert memory.idle == 5 * MIB
    assert address(memory.take(4 * MIB)) == first


def test_only_the_last_used_block_beyond_keep_is_idle() -> None:
    memory = Memory(keep=MIB)
    views = [memory.take(4 * MIB), memory.take(4 * MIB)]
    views.clear()
    assert memory.idle == 4 * MIB
    view = memory.take(3 * MIB)
    assert memory.idle == 4 * MIB
    del view
    assert memory.idle == 3 * MIB


def test_age_frees_blocks_unused_since_last_call() -> None:
    memory = Memory(keep=6 * MIB)
    small, large, giant = memory.take(MIB), memory.take(4 * MIB), memory.take(8 * MIB)
    del small, large, giant
    memory.age()
    assert memory.idle == 13 * MIB
    memory.take(4 * MIB)
    memory.age()
    assert memory.idle == 4 * MIB, "the others were not used"
    memory.take(8 * MIB)
    memory.age()
    assert memory.idle == 8 * MIB
    memory.age()
    assert memory.idle == 0


def test_age_frees_the_unused_blocks_of_a_class() -> None:
    memory = Memory()
    views = [memory.take(MIB) for _ in range(4)]
    views.clear()
    memory.age()
    views = [memory.take(MIB) for _ in range(2)]
    views.clear()
    memory.age()
    assert memory.idle == 2 * MIB


def test_memory_may_be_freed_before_its_views() -> None:
    memory = Memory()
    view, seen = memory.take(MIB), weakref.ref(memory)
    del memory
    view[:] = b"\1" * MIB
    assert view[-1] == 1
    gc.disable()
    try:
        del view
        assert seen() is None, "no reference cycle keeps it and its idle blocks"
    finally:
        gc.enable()


def test_view_in_a_cycle_is_given_back_once() -> None:
    memory = Memory()
    cycle: list[object] = [memory.take(MIB)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert memory.idle == MIB


def test_views_of_the_end_of_the_interpreter_are_silent() -> None:
    code = """if True:
        import sys, threading
        import numpy as np
        import netq.protocol.memory as module
        memory = module.Memory()
        sys.kept = [np.frombuffer(memory.take(size), "u1") for size in (100, 40_000, 10**6, 2**22, 2**29)]
        cycle = [memory.take(10**6)]; cycle.append(cycle)
        module.last = memory.take(10**6)
        def function(view=memory.take(10**6)): threading.Event().wait()
        threading.Thread(target=function, daemon=True).start()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@given(st.integers(RECYCLED, 2**50))
def test_size_class_wastes_at_most_an_eighth(size: int) -> None:
    waste = _size_class(size) - size
    assert 0 <= waste <= size / 8
    assert _size_class(_size_class(size)) == _size_class(size)


@given(st.integers(RECYCLED, 2**40), st.integers(RECYCLED, 2**40))
def test_size_classes_are_in_order(one: int, other: int) -> None:
    assert (_size_class(one) <= _size_class(other)) or one > other


def test_sizes_of_one_magnitude_share_few_classes() -> None:
    assert len({_size_class(size) for size in range(8 * MIB, 16 * MIB, 1000)}) <= 9


@pytest.mark.parametrize("size", [2**62, 2**63, 2**70])
def test_absurd_size_raises_memory_error(size: int) -> None:
    memory = Memory()
    view = memory.take(MIB)
    del view
    with pytest.raises(MemoryError, match=f"no memory for a message of {_size_class(size)} bytes"):
        memory.take(size)
    assert memory.idle == MIB
    assert memory.take(MIB).nbytes == MIB


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="Linux tells the resident size there")
def test_pages_are_committed_as_they_are_written() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    view = Memory().take(KEEP)
    assert resident() - before < KEEP / 8
    view[: KEEP // 4] = bytes(KEEP // 4)
    assert resident() - before > KEEP / 8


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the child does nothing that threads could break
def test_forked_child_writes_to_its_own_copy() -> None:
    view = Memory().take(MIB)
    view[0] = 1
    child = os.fork()
    if child == 0:
        view[0] = 2
        os._exit(view[0])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert view[0] == 1
