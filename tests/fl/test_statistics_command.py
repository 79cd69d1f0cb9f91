"""fl statistics: a process that asks real clients, which then take part in the rounds of `fl serve`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import fl
import netq
from tests.fl.federation import A, B, C, adds, at
from tests.fl.test_main import COMMAND, ROOT, call, serving, write
from tests.programs.reading import Reading

pytest.importorskip("typer")

ASKED = "[statistics.columns]\nage = { low = 0, high = 100, bins = 10 }\nweight = { low = 30, high = 150 }\n"


class Asking(Reading):
    """`fl statistics`, as a process."""

    def __init__(self, config: Path, *options: str) -> None:
        command = [*COMMAND, "statistics", str(config), *options]
        pipe = subprocess.PIPE
        super().__init__(subprocess.Popen(command, cwd=ROOT, stderr=pipe, stdout=pipe, text=True))
        self.netloc = netq.NetworkLocation("127.0.0.1", int(self.wait("listening at 127.0.0.1:")))

    def result(self) -> tuple[int, str]:
        with self.process as process:
            assert process.stdout is not None
            return self.end(), process.stdout.read()


@contextmanager
def clients(netloc: netq.NetworkLocation, ages: float, count: int = 20) -> Iterator[None]:
    def columns(config: object) -> dict[str, object]:
        return {"age": np.full(count, ages)}

    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(fl.Client(adds(1), columns=columns).run, at(netloc, id)) for id in (A, B, C)]
        yield
        for run in runs:
            run.result()


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", '[secure]\n[strategy]\nmax_examples = "equal"\n'], ids=["unmasked", "masked"])
def test_clients_answer_and_wait_for_the_aggregator(tmp_path: Path, more: str) -> None:
    config = write(tmp_path, server="min_clients = 3", more=more + ASKED)
    asking = Asking(config, "--json")
    with clients(asking.netloc, 50.0):
        status, out = asking.result()
        assert status == 0
        assert not (tmp_path / "rounds.jsonl").exists()
        text = config.read_text().replace("port = 0", f"port = {asking.netloc.port}")
        config.write_text(text)
        with serving(config) as served:
            assert served.end() == 0
    found = json.loads(out)
    assert found["columns"]["age"]["histogram"] == [0] * 5 + [60] + [0] * 4
    assert found["hidden"] == {"weight": "no client has given it"}
    assert sorted(found["clients"]) == [str(A), str(B), str(C)]
    assert "Traceback" not in asking.said


@pytest.mark.slow
def test_it_prints_a_table_and_fails_if_nothing_is_shown(tmp_path: Path) -> None:
    asking = Asking(write(tmp_path, server="min_clients = 3", more="[statistics]\nmin_count = 61\n" + ASKED))
    with clients(asking.netloc, 50.0):
        status, out = asking.result()
        with fl.Server({"w": np.zeros(3, np.float32)}, netq.CommunicatorOptions(netloc=asking.netloc)) as server:
            server.wait(3)
    assert status == 1
    assert "age: not shown: it has fewer than 61 values in all clients" in out.splitlines()
    assert asking.said.splitlines()[-1].endswith("statistics that can be shown; the lines above say why")


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("", "[statistics]: missing; expected the table, with the columns to ask for"),
        ("[statistics]\n", "statistics.columns: missing; expected a table of columns, [statistics.columns]"),
        ("[statistics]\ncolumns = 3\n", "statistics.columns: 3; expected a table of columns"),
        ("[statistics.columns]\n", "statistics.columns: {}; expected columns by name"),
        ("[statistics.columns]\nage = 3\n", "statistics.columns.age: 3; expected a table as { low = 0"),
        ("[statistics.columns]\nage = { low = 0 }\n", "statistics.columns.age: {'low': 0}; expected a table as { low"),
        (
            "[statistics.columns]\nage = { low = 0, high = 1, bin = 3 }\n",
            "statistics.columns.age: {'low': 0, 'high': 1, 'bin': 3}; expected a table as { low",
        ),
        (
            "[statistics.columns]\nage = { low = 2, high = 1 }\n",
            "statistics.columns.age.high: 1.0; expected a number above low, 2.0",
        ),
        (
            "[statistics.columns]\nage = { low = 0, high = 1, bins = 0 }\n",
            "statistics.columns.age.bins: 0; expected a whole number, 1 to 1000",
        ),
        ("[statistics]\nmin_count = 0\n" + ASKED, "statistics.min_count: 0; expected a whole number, 1 or more"),
        (
            "[statistics]\nmin = 3\n",
            "statistics.min: no such key; expected one of statistics.columns",
        ),
    ],
)
def test_a_mistake_in_the_file_is_one_line(tmp_path: Path, more: str, error: str) -> None:
    path = write(tmp_path, more=more)
    outcome = call("statistics", str(path))
    assert (outcome.returncode, outcome.stdout) == (2, "")
    [line] = outcome.stderr.splitlines()
    assert f"{path}: {error}" in line


def test_a_mistake_in_the_command_line_has_status_2(tmp_path: Path) -> None:
    assert call("statistics", str(tmp_path / "none.toml")).returncode == 2
    assert call("statistics").returncode == 2
