"""Where exceptions of signal handlers come out."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from netq.io import interrupts

LIMIT = 20.0


class Alarm(Exception):
    pass


def alarm(number: int, frame: FrameType | None) -> None:
    raise Alarm


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the handlers back. What this module does is a step."""
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGUSR1)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(interrupts, "_STEPS", interrupts._STEPS | {__name__})
    yield
    for number, handler in before:
        signal.signal(number, handler)


@interrupts.interruptible
def wait() -> None:
    """Wait until a signal comes."""
    never = threading.Lock()
    never.acquire()
    never.acquire(timeout=LIMIT)


def raise_in_step(number: int, done: list[str]) -> None:
    signal.raise_signal(number)
    done.append("the step")


def test_ctrl_c_in_a_step_comes_out_of_the_next_wait() -> None:
    done: list[str] = []
    interrupts.protect()
    raise_in_step(signal.SIGINT, done)
    with pytest.raises(KeyboardInterrupt):
        wait()
    assert done == ["the step"]


def test_ctrl_c_in_a_wait_comes_out_of_it() -> None:
    interrupts.protect()
    interrupts._send_again(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        wait()


def test_handler_outside_steps_is_called_after_the_step() -> None:
    done: list[str] = []
    signal.signal(signal.SIGUSR1, interrupts.outside_steps(alarm))
    raise_in_step(signal.SIGUSR1, done)
    with pytest.raises(Alarm) as raised:
        wait()
    assert done == ["the step"]
    assert interrupts.raised_by_handler(raised.value) is raised.value
    assert not interrupts.has_broken_step(raised.value)


def test_signal_put_off_does_not_end_a_process_that_took_its_handler_back() -> None:
    program = """
import signal
from netq.io import interrupts
interrupts._STEPS |= {__name__}
signal.signal(signal.SIGUSR1, interrupts.outside_steps(print))
signal.raise_signal(signal.SIGUSR1)
signal.signal(signal.SIGUSR1, signal.SIG_DFL)
interrupts._send(signal.SIGUSR1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_handler_that_raises_in_a_step_has_broken_it() -> None:
    signal.signal(signal.SIGUSR1, alarm)
    done: list[str] = []
    with pytest.raises(Alarm) as raised:
        raise_in_step(signal.SIGUSR1, done)
    assert done == []
    assert interrupts.has_broken_step(raised.value)


def test_error_that_no_handler_raised_has_broken_nothing() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        print(1 // 0)
    assert not interrupts.has_broken_step(raised.value)


def test_protect_replaces_the_handler_of_python_only() -> None:
    signal.signal(signal.SIGINT, alarm)
    interrupts.protect()
    assert signal.getsignal(signal.SIGINT) is alarm
    signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupts.protect)
    thread.start()
    thread.join(LIMIT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "only the main thread may set handlers"
    interrupts.protect()
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    interrupts.unprotect()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, alarm)
    interrupts.unprotect()
    assert signal.getsignal(signal.SIGINT) is alarm
