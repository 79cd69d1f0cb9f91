"""CPU time and memory of a process, and its cores."""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path

import pytest

from netq.bench import resources
from netq.bench.resources import Meter, Usage, cores, facts, one_by_one, pinned

SIZE = 64 * 2**20


def test_meter_reports_the_peak_of_released_memory() -> None:
    meter = Meter()
    with mmap.mmap(-1, SIZE) as block:  # not from the heap, where there may be room that is resident already
        for page in range(0, SIZE, mmap.PAGESIZE):
            block[page] = 1
    used = meter.read()
    assert used.resident is not None
    assert used.extra is not None
    assert SIZE * 0.9 < used.extra < SIZE * 1.5
    assert used.resident > used.extra
    again = Meter().read().extra
    assert again is not None
    assert again < SIZE / 2


def test_meter_counts_cpu_of_all_threads() -> None:
    meter = Meter()
    thread = threading.Thread(target=_burn)
    thread.start()
    thread.join()
    assert meter.read().cpu >= 20_000_000


def _burn() -> None:
    begin = time.thread_time_ns()
    while time.thread_time_ns() - begin < 20_000_000:
        continue


def test_memory_is_none_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resources, "_CLEAR", tmp_path / "no" / "proc")
    used = Meter().read()
    assert used[1:] == (None, None)
    assert used.cpu >= 0


def test_pinned_threads_stay_on_a_core_until_the_end() -> None:
    before, seen = os.sched_getaffinity(0), []
    core = cores()[-1]
    with pinned(core):
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert seen == [{core}]
    assert os.sched_getaffinity(0) == before


def test_missing_core_cannot_be_used() -> None:
    before = os.sched_getaffinity(0)
    assert resources.may_use(cores()[0])
    assert not resources.may_use(9999)
    assert os.sched_getaffinity(0) == before


def test_free_memory_is_below_total_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    free = resources.free_memory()
    assert free is not None
    assert 0 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(resources, "_MACHINE", tmp_path / "no")
    assert resources.free_memory() is None


def test_usage_of_periods_is_summed() -> None:
    periods = [Usage(5, 900, 300), Usage(7, 800, 400)]
    assert one_by_one(periods) == Usage(12, 900, 400)
    assert one_by_one([Usage(5, None, None), Usage(7, 800, 400)]) == Usage(12, 800, 400)
    assert one_by_one([Usage(5, None, None)]) == Usage(5, None, None)


def test_facts_are_text() -> None:
    assert all(type(value) is str and value for value in facts().values())
