"""A message each way fits into two processes that each have half as much again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from netq.security import certificates
from tests.faults.test_cgroup import Cgroup
from tests.netq.transports.large_message import send_there_and_back
from tests.programs.child import Children
from tests.wires import Wire

MIB = 2**20
SIZE = 256 * MIB
LIMIT = 3 * SIZE // 2


@pytest.fixture
def cgroups() -> Iterator[list[Cgroup]]:
    with contextlib.ExitStack() as stack:
        try:
            made = [Cgroup(LIMIT) for _ in range(2)]
        except OSError as error:
            if os.environ.get("NETQ_FAULTS") == "must":
                raise
            pytest.skip(f"no memory cgroup can be made here: {error}")
        for cgroup in made:
            stack.callback(cgroup.remove)
        yield made


@pytest.mark.slow
def test_256_mib_each_way_in_cgroups_of_384_mib(
    children: Children, files: certificates.Files, cgroups: list[Cgroup]
) -> None:
    send_there_and_back(Wire("shm", files), children, SIZE, *[str(cgroup.path) for cgroup in cgroups])
    peaks = [cgroup.peak / SIZE for cgroup in cgroups]
    print(f"peaks, as multiples of the message: {peaks}")
    assert max(peaks) <= 1.25  # only the process that holds a message pays for it
