"""Runs a function and raises an exception at one of its bytecodes, as a signal handler may."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

import pytest

from tests.netq.codecs import use_python


def interrupted(left: int, act: Callable[[], object], *modules: ModuleType) -> bool:
    """Call `act`, and raise in it after `left` bytecodes of these modules; return whether it got so far."""

    if sys.version_info[:3] == (3, 13, 0):
        pytest.skip("CPython 3.13.0 tells a tracer no bytecodes of a function that it sees for the first time")

    class Interrupt(BaseException):
        pass

    files = {module.__file__ for module in modules}

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if event == "opcode":
            left -= 1
            if left < 0:
                raise Interrupt
        return count

    before = sys.gettrace()
    with use_python():
        sys.settrace(trace)
        try:
            act()
        except Interrupt:
            return True
        finally:
            sys.settrace(before)
    return False
