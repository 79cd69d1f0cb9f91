"""Control characters of messages, errors and tracebacks are escaped."""

from __future__ import annotations

import logging
import sys

from netq.cli.terminal import Formatter, sentence

EVIL = "red \x1b[31m, title \x1b]0;x\x07, another line\r\n2026-01-01 INFO netq: all is well, backwards \u202e, \udc80"


def formatted(error: BaseException | None = None) -> str:
    given = (type(error), error, error.__traceback__) if error is not None else None
    return Formatter().format(logging.LogRecord("netq", logging.ERROR, "x.py", 1, "it is %s", (EVIL,), given))


def test_a_record_is_one_printable_line() -> None:
    line = formatted()
    assert line.isprintable()
    assert r"ERROR netq: it is red \x1b[31m" in line
    assert r"another line\r\n2026-01-01" in line


def test_a_traceback_keeps_its_lines() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        lines = formatted(error).split("\n")
    assert all(line.isprintable() for line in lines)
    assert lines[1] == "Traceback (most recent call last):"
    assert any(line.startswith(r"ValueError: red \x1b[31m") for line in lines)


def test_a_sentence_is_one_printable_line() -> None:
    assert sentence(ValueError("no\nroom \x1b[31m")) == r"no room \x1b[31m"
    assert sentence(ValueError()) == "ValueError"
    assert sys.getsizeof(sentence(ValueError("x" * 10**6))) < 10**5
