"""Control characters of messages, errors and tracebacks are escaped; and a reader of the output may go early."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import netq
from netq.cli.terminal import Formatter, sentence, told_if_slow
from netq.testing.fixtures import LIMIT
from netq.testing.log import LogRecorder
from tests.servers import ports

EVIL = "red \x1b[31m, title \x1b]0;x\x07, another line\r\n2026-01-01 INFO netq: all is well, backwards \u202e, \udc80"


def formatted(error: BaseException | None = None) -> str:
    given = (type(error), error, error.__traceback__) if error is not None else None
    return Formatter().format(logging.LogRecord("netq", logging.ERROR, "x.py", 1, "it is %s", (EVIL,), given))


def test_a_record_is_one_printable_line() -> None:
    line = formatted()
    assert line.isprintable()
    assert r"ERROR netq: it is red \x1b[31m" in line
    assert r"another line\r\n2026-01-01" in line


def test_only_a_slow_start_is_told() -> None:
    with LogRecorder() as log:
        with told_if_slow(logging.getLogger("netq"), "importing much", seconds=0.0):
            log.wait("importing much")
        with told_if_slow(logging.getLogger("netq"), "importing little", seconds=LIMIT):
            pass
        assert not log.having("importing little")
    assert not [
        each for each in threading.enumerate() if isinstance(each, threading.Timer) and not each.finished.is_set()
    ]


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


@pytest.fixture
def gone() -> Iterator[int]:
    """A pipe whose reader has gone, as in `netq … | true`."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("netq --help", 0),
        ("netq doctor", 0),
        ("netq bench throughput --size 1KiB --count 2", 0),
        ("netq certs show --folder nowhere", 2),
        ("netq nonsense", 2),
        ("fl --help", 0),
        ("fl server nowhere.toml", 2),
        ("edge --help", 0),
        ("edge check nowhere.toml", 2),
    ],
)
def test_status_is_the_same_when_the_reader_goes(gone: int, command: str, status: int) -> None:
    words = [sys.executable, "-m", *command.split()]
    if words[2] == "fl":
        pytest.importorskip("typer")
    if status == 0:
        done = subprocess.run(words, stdout=gone, stderr=subprocess.PIPE, text=True, timeout=LIMIT)
        assert done.returncode == status
        assert "Traceback" not in done.stderr
        assert "BrokenPipe" not in done.stderr
        if not done.stderr:
            return  # nothing goes there
    assert subprocess.run(words, stdout=gone, stderr=gone, timeout=LIMIT).returncode == status


@pytest.mark.slow
def test_exchange_serves_on_when_the_reader_of_its_log_goes(gone: int, tmp_path: Path) -> None:
    address = ports.free()
    file = tmp_path / "exchange.toml"
    file.write_text(f'[server]\nhost = "{address.host}"\nport = {address.port}\n')
    words = [sys.executable, "-m", "netq", "exchange", str(file)]
    with subprocess.Popen(words, stdout=gone, stderr=gone) as process:
        for _ in range(2):  # each comes and goes, which the exchange logs
            with netq.new(options=netq.CommunicatorOptions(netloc=address)) as client:
                client.put(b"").result(LIMIT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
