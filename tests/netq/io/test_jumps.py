"""No loop of a user's thread jumps back past a `with` or a `try` (docs/explanation/design.md, "A jump back")."""

from __future__ import annotations

import dis
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import netq

FOLDER = Path(netq.__file__).parent
OF_USERS = [
    "core",
    "io.baton",
    "io.condition",
    "io.loop",
    "io.poller",
    "protocol.codec",
    "protocol.receiver",
    "protocol.sender",
    "protocol.session",
    "runtime.delivery",
    "runtime.inbox",
    "runtime.peer",
]
OF_THE_LOOP = {"Loop._run", "Loop.turn"}  # no signal handler runs there


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def jumps_past(code: CodeType) -> list[int]:
    """Return the lines of the jumps back that an exception handler of their loop does not cover."""
    parse: Any = dis._parse_exception_table  # type: ignore[attr-defined]
    table, instructions = parse(code), list(dis.get_instructions(code))
    holds = {each.offset for each in instructions if each.opname == "PUSH_EXC_INFO"}  # not a comprehension's

    def handler(offset: int) -> int | None:
        return next((e.target for e in table if e.start <= offset < e.end and e.target in holds), None)

    found = []
    for before, jump in itertools.pairwise(instructions):
        if jump.opname == "JUMP_BACKWARD" and handler(jump.offset) != handler(before.offset):
            found.append(jump.positions.lineno or 0 if jump.positions else 0)
    return found


@pytest.mark.parametrize("module", OF_USERS)
def test_no_loop_jumps_back_past_a_handler(module: str) -> None:
    path = FOLDER / f"{module.replace('.', '/')}.py"
    everything = codes(compile(path.read_text(encoding="utf-8"), str(path), "exec"))
    found = {code.co_qualname: jumps_past(code) for code in everything}
    assert {name: lines for name, lines in found.items() if lines and name not in OF_THE_LOOP} == {}


LOOP = """
def wait(lock, come):
    with lock:
        while not come():
            pass
        return True
"""


@pytest.mark.skipif(sys.version_info[:2] not in ((3, 12), (3, 13)), reason="other versions cover the jump")
def test_one_that_does_is_found() -> None:
    wait = next(code for code in codes(compile(LOOP, "", "exec")) if code.co_name == "wait")
    assert jumps_past(wait)
