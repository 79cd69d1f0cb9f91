"""How long a thread spins."""

from __future__ import annotations

import os

import pytest

from netq.io.spin import SpinTime


def test_time_grows_while_waits_end_soon_and_shrinks_after_long_ones() -> None:
    if (os.cpu_count() or 1) == 1:
        pytest.skip("one core")
    time, times = SpinTime(), []
    for waited in [100e-6] * 9 + [1.0] * 9:
        time.record(waited)
        times.append(time.seconds)
    assert sorted(times[:9]) == times[:9]
    assert times[8] == max(times) < 1e-3
    assert sorted(times[9:], reverse=True) == times[9:]
    assert times[-1] == SpinTime().seconds > 0


def test_one_core_never_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    time = SpinTime()
    time.record(100e-6)
    assert time.seconds == 0.0
