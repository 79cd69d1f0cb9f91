"""A gigabyte each way fits into two processes that have one and a half gigabytes each."""

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

GIB = 2**30
LIMIT = 3 * GIB // 2


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
def test_1_gib_each_way_in_cgroups_of_1_5_gib(
    children: Children, files: certificates.Files, cgroups: list[Cgroup]
) -> None:
    send_there_and_back(Wire("shm", files), children, GIB, *[str(cgroup.path) for cgroup in cgroups])
    peaks = [cgroup.peak / GIB for cgroup in cgroups]
    print(f"peaks in GiB: {peaks}")
    assert max(peaks) <= 1.25  # only the process that holds a message pays for it
