from __future__ import annotations

import pytest

from netq.security.processor import _has_aes, has_aes

PI_4 = "processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU part\t: 0xd08\n"
PI_5 = "processor\t: 0\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics\n"
X86 = "processor\t: 0\nflags\t\t: fpu vme de pse aes avx\nbugs\t\t: aesbug\n"
OLD_X86 = "flags\t\t: fpu vme vaes_not avx\n"


@pytest.mark.parametrize(("cpuinfo", "expected"), [(PI_4, False), (PI_5, True), (X86, True), (OLD_X86, False)])
def test_the_features_of_the_processor(cpuinfo: str, expected: bool) -> None:
    assert _has_aes(cpuinfo) is expected


def test_an_unknown_format_counts_as_having_aes() -> None:
    assert _has_aes("vendor_id: IBM/S390\n")


def test_this_machine() -> None:
    assert isinstance(has_aes(), bool)
