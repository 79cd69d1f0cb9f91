"""docs/reference/bench.md: its command lines, its options and their defaults, the names of its figures."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from netq.bench import load, sweep
from netq.bench.cli import make_parser, parse
from netq.bench.report import FIGURES
from netq.bench.statistics import spread
from netq.security import certificates
from tests.netq.bench.conftest import Run, Start
from tests.pages import Page
from tests.servers.mosquitto import Mosquitto

PAGE = Page("docs/reference/bench.md")
LINES = re.findall(r"^netq bench ([^#\n]*)", PAGE.text, re.MULTILINE)
CLIENTS = ("iops", "latency", "throughput", "sweep", "load")
GROUPS = {"all": ("server", *CLIENTS), "clients": CLIENTS}


def rows(title: str) -> Iterator[list[str]]:
    """The rows of the first table under a title."""
    yield from PAGE.section(title).tables()[0][1:]


def options() -> Iterator[tuple[str, argparse.Action]]:
    """Each work's, as the parser has them."""
    works = next(action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    for work, parser in works.choices.items():
        yield from ((work, each) for each in parser._actions if each.option_strings and each.dest != "help")


def test_command_lines_of_the_page_parse() -> None:
    assert len(LINES) > 10
    assert {parse(shlex.split(line)).work for line in LINES} == {"server", *CLIENTS}


def test_page_has_every_option_with_its_default() -> None:
    page = {}
    for name, of, default, _ in rows("Options"):
        for work in GROUPS.get(of, tuple(of.split(", "))):
            assert (work, name) not in page
            page[work, name] = default
    ours = {}
    for work, option in options():
        documented = re.search(r"; default (.*)", option.help or "")
        name = " ".join([", ".join(option.option_strings), *([str(option.metavar)] if option.metavar else [])])
        ours[work, f"`{name}`"] = documented[1] if documented else ""
    assert page == ours


def test_help_ends_with_the_default() -> None:
    set_ones = [option for _, option in options() if option.default not in (None, False)]
    assert len(set_ones) > 20
    assert all((option.help or "").endswith(f"; default {option.default}") for option in set_ones)


def test_page_names_every_figure() -> None:
    printed = {key: ", ".join(filter(None, (each.name, each.unit))) for key, each in FIGURES.items()}
    printed["microseconds"] = f"{', '.join(spread([1], 1))}, µs"
    assert {key.strip("`"): name for name, key, _ in rows("What is printed")} == printed


def test_page_names_every_column_of_a_curve() -> None:
    columns = {key: column.title for key, column in load.COLUMNS.items()}
    assert {key.strip("`"): title for title, key, _ in PAGE.rows("of a rate")} == columns


def test_page_names_every_column_of_a_sweep() -> None:
    printed = {key: column.title for key, column in sweep.COLUMNS.items()}
    assert {key.strip("`"): name for name, key, _ in rows("Latency and throughput by size: sweep")} == printed


def _here(line: str, broker: Mosquitto) -> list[str]:
    """The page's words, with the broker of this test."""
    return re.sub(r"broker\.local:\d+", "{}:{}".format(*broker.netloc), line).split()


@pytest.mark.slow
def test_page_example_with_a_broker_works(start: Start, run: Run, broker: Mosquitto) -> None:
    server, client = [line for line in LINES if "broker.local:1883" in line]
    started = start(*_here(server, broker))
    assert started.stdout is not None
    printed_line = started.stdout.readline()
    assert printed_line.startswith("serving mqtt through the broker at {}:{};".format(*broker.netloc))
    assert run(*_here(client, broker), "--count", "20")["figures"]["messages"] == 20


@pytest.mark.slow
def test_page_example_with_password_and_tls_works(
    start: Start, run: Run, tmp_path: Path, files: certificates.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = [line.replace("ca.pem", str(files.authority)) for line in LINES if "broker.local:8883" in line]
    monkeypatch.setenv("NETQ_BENCH_PASSWORD", "secret")
    with Mosquitto(tmp_path, certificate=files.certificate, key=files.key, user="bench", password="secret") as broker:
        started = start(*_here(server, broker))
        assert started.stdout is not None
        assert started.stdout.readline()
        assert run(*_here(client, broker), "--count", "2")["figures"]["messages"] == 2
        started.terminate()
        started.wait()
