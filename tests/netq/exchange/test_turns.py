"""Turns: one function at a time, in order, and no caller waits."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from netq.exchange import turns as module
from netq.exchange.turns import Turns
from netq.testing.fixtures import LIMIT
from tests.netq.interrupting import interrupted


def test_function_that_is_added_in_a_turn_runs_after_it() -> None:
    turns, seen = Turns(), list[str]()

    def first() -> None:
        turns.add(lambda: seen.append("second"))
        seen.append("first")

    turns.add(first)
    assert seen == ["first", "second"]


def test_function_of_another_thread_runs_in_the_turn_of_this() -> None:
    turns, seen = Turns(), list[str]()

    def first() -> None:
        other = threading.Thread(target=turns.add, args=(lambda: seen.append(threading.current_thread().name),))
        other.start()
        other.join(LIMIT)  # it does not wait for this turn
        seen.append("first")

    turns.add(first)
    assert seen == ["first", threading.current_thread().name]


def test_functions_wait_while_the_turn_is_held() -> None:
    turns, seen = Turns(), list[str]()
    with turns.held():
        turns.add(lambda: seen.append("mine"))
        other = threading.Thread(target=turns.add, args=(lambda: seen.append("other"),))
        other.start()
        other.join(LIMIT)
        assert seen == []
    assert seen == ["mine", "other"]


def test_exception_leaves_the_turn_to_the_next() -> None:
    turns, seen = Turns(), list[str]()
    with pytest.raises(ZeroDivisionError):
        turns.add(lambda: 1 / 0)
    other = threading.Thread(target=turns.add, args=(lambda: seen.append("other"),))
    other.start()
    other.join(LIMIT)
    assert seen == ["other"]


def test_what_is_added_for_later_runs_out_of_turn_in_its_thread() -> None:
    turns, seen, ran, go_on = Turns(), list[str](), threading.Event(), threading.Event()

    def later() -> None:
        go_on.wait(LIMIT)
        seen.append("later")

    def turn() -> None:
        turns.add_later(later)
        seen.append("turn")
        ran.set()

    other = threading.Thread(target=turns.add, args=(turn,))
    other.start()
    assert ran.wait(LIMIT)
    with turns.held():  # waits for the turn, not for what blocks
        seen.append("held")
    go_on.set()
    other.join(LIMIT)
    assert seen == ["turn", "held", "later"]


def test_what_is_added_for_later_by_another_one_runs_after_it() -> None:
    turns, seen = Turns(), list[int]()

    def again(left: int) -> None:
        if left:
            turns.add_later(functools.partial(again, left - 1))
        seen.append(left)

    turns.add_later(functools.partial(again, 2000))  # more than the interpreter nests
    assert seen == [*reversed(range(2001))]


@pytest.mark.parametrize("add", [Turns.add, Turns.add_later])
def test_finalizer_on_top_of_any_line_may_add(add: Any) -> None:
    for left in itertools.count():
        turns, seen = Turns(), list[str]()

        def finalizer(turns: Turns = turns, seen: list[str] = seen) -> None:
            turns.add(lambda: seen.append("turn"))
            turns.add_later(lambda: seen.append("later"))

        thread = Reentered(left, functools.partial(add, turns, lambda: None), finalizer)  # new: it has added nothing
        thread.start()
        thread.join(LIMIT)
        if not thread.got_so_far:
            break
        assert seen == ["turn", "later"], left


class Reentered(threading.Thread):
    """Runs a function, and a finalizer on top of it after so many lines of turns.py."""

    def __init__(self, left: int, act: Callable[[], object], finalizer: Callable[[], object]) -> None:
        super().__init__()
        self.got_so_far = False
        self._left, self._act, self._finalizer = left, act, finalizer

    def run(self) -> None:
        sys.settrace(self._trace)
        self._act()
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            self._left -= 1
            if self._left < 0 and not self.got_so_far:
                self.got_so_far = True
                self._finalizer()
        return self._trace


@pytest.mark.parametrize("add", [Turns.add, Turns.add_later])
def test_exception_at_any_point_leaves_the_turn_to_the_next(add: Any) -> None:
    for left in itertools.count():
        turns, seen = Turns(), list[int]()
        more = interrupted(left, functools.partial(add, turns, lambda: None), module)
        other = threading.Thread(target=turns.add, args=(functools.partial(seen.append, 1),))
        other.start()
        other.join(LIMIT)
        turns.add_later(functools.partial(seen.append, 2))
        assert seen == [1, 2], left
        if not more:
            break
