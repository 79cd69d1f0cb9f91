"""The fuzz targets, driven by hypothesis: random bytes, and seeds with changed bytes. `make fuzz` goes further."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import links, messages, msgpacks, packets, pickles

TARGETS = pytest.mark.parametrize(
    "target", [pickles, messages, msgpacks, links, packets], ids=lambda target: target.__name__
)


@TARGETS
def test_seeds_pass(target: ModuleType) -> None:
    for seed in target.SEEDS:
        target.run(seed)


@TARGETS
@pytest.mark.slow
def test_any_bytes_pass(target: ModuleType) -> None:
    @settings(max_examples=100)
    @given(st.binary(max_size=200))
    def run(data: bytes) -> None:
        target.run(data)

    run()


@TARGETS
@pytest.mark.slow
def test_changed_seeds_pass(target: ModuleType) -> None:
    @settings(max_examples=100)
    @given(st.sampled_from(target.SEEDS), st.data())
    def run(seed: bytes, data: st.DataObject) -> None:
        changed = bytearray(seed)
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(changed)))
            changed[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        target.run(bytes(changed))

    run()
