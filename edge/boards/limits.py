"""What a board may use, from the values of the command line. Pure: reads no file and starts nothing."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from netq.errors import InvalidOption
from netq.text import printable

MOST_BOARDS = 200  # each has a Python process of its own
PIDS = 512  # processes and threads of a board; OpenBLAS and torch start one a core

_MEMORY = {"K": 2**10, "M": 2**20, "G": 2**30}
_BANDWIDTH = {"kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9}
_DELAY = {"ms": 1e-3, "s": 1.0}

_LEAST_CPUS = 0.01  # the kernel accepts no quota below 1 ms in a period of 100 ms
_LEAST_MEMORY = 2**24  # bytes; Python alone needs 10 MiB
_RATES = (8_000, 10 * 10**9)  # bit/s; at less, one full packet takes more than 1.5 s
_LONGEST_DELAY = 10.0  # seconds; netq ends a handshake that takes longer


@dataclass(frozen=True)
class Limits:
    """The limits of each board, and the number of boards."""

    boards: int
    cpus: float  # cores
    memory: int  # bytes
    rate: int  # bit/s, each way
    delay: float = 0.0  # seconds, each way

    @classmethod
    def parse(cls, *, boards: str, cpus: str, memory: str, bandwidth: str, delay: str) -> Limits:
        """Read the values of the command line. Raises InvalidOption, which names the argument and its value."""
        return cls(_boards(boards), _cpus(cpus), _memory(memory), _rate(bandwidth), _delay(delay))


def _boards(text: str) -> int:
    right = re.fullmatch("[0-9]{1,9}", text) is not None and 1 <= int(text) <= MOST_BOARDS
    _check(right, "--boards", text, f"a whole number from 1 to {MOST_BOARDS}, as in 8")
    return int(text)


def _cpus(text: str) -> float:
    cores = os.cpu_count() or 1
    right = re.fullmatch(_NUMBER, text) is not None and _LEAST_CPUS <= float(text) <= cores
    expected = f"a number from {_LEAST_CPUS} to {cores}, the cores of this machine, as in 0.25"
    _check(right, "--cpus", text, expected)
    return float(text)


def _memory(text: str) -> int:
    size = _quantity(text, _MEMORY)
    _check(size is not None and size >= _LEAST_MEMORY, "--memory", text, "16M or more, with K, M or G, as in 128M")
    return round(size or 0)


def _rate(text: str) -> int:
    rate = _quantity(text, _BANDWIDTH)
    right = rate is not None and _RATES[0] <= rate <= _RATES[1]
    _check(right, "--bandwidth", text, "a rate from 8kbit to 10Gbit, with kbit, Mbit or Gbit, as in 1Mbit")
    return round(rate or 0)


def _delay(text: str) -> float:
    delay = _quantity(text, _DELAY)
    right = delay is not None and delay <= _LONGEST_DELAY
    _check(right, "--delay", text, "a time from 0ms to 10s, with ms or s, as in 50ms")
    return delay or 0.0


_NUMBER = r"[0-9]{1,9}(\.[0-9]{1,9})?"


def _quantity(text: str, units: dict[str, float] | dict[str, int]) -> float | None:
    """Return number times unit; None if the text is not exactly that."""
    match = re.fullmatch(f"({_NUMBER})({'|'.join(units)})", text)
    return None if match is None else float(match[1]) * units[match[3]]


def _check(right: bool, argument: str, text: str, expected: str) -> None:
    if not right:
        raise InvalidOption(f"{argument}: {printable(repr(text), 100)}; expected {expected}")
