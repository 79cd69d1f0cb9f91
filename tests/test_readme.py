"""README's code runs as it stands there, its figures are those of the benchmarks' page, its targets exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import ROOT, Page, Scripts

README = Page("README.md")
LIMIT = 100.0  # seconds; the machine may be busy with other tests


def test_every_block_of_code_is_a_script_of_these_tests() -> None:
    assert set(README.scripts()) == {"server.py", "client.py", "federation.py"}
    assert len(README.blocks("python")) == len(README.scripts())


@pytest.mark.slow
@pytest.mark.parametrize("first", ["server.py", "client.py"])
@pytest.mark.parametrize("server", ["server.py", "awaiting_server.py"])
@pytest.mark.parametrize("client", ["client.py", "awaiting_client.py"])
def test_server_and_client_greet_in_either_order(tmp_path: Path, server: str, client: str, first: str) -> None:
    both = Page("README.md", README.text + Page("docs/how-to/asyncio.md").text)
    with Scripts(both, tmp_path) as scripts:
        order = sorted((server, client), key=lambda name: not name.endswith(first))
        processes = {name: scripts.start(name) for name in order}
        assert processes[client].communicate(timeout=LIMIT)[0] == both.output("python awaiting_client.py")
        assert processes[client].returncode == 0
        assert processes[server].wait(LIMIT) == 0


@pytest.mark.slow
def test_the_federation_learns(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    lines = [line for line in README.scripts()["federation.py"].splitlines()[1:] if line]
    assert f"\n## A federation in {len(lines)} lines\n" in README.text
    with Scripts(README, tmp_path) as scripts:
        out, errors = scripts.start("federation.py").communicate(timeout=LIMIT)
    found = re.fullmatch(r"<Result: 20 rounds, 4 tensors .*loss ([\d.]+).*>\n", out)
    assert found is not None, (out, errors)
    assert float(found[1]) < 0.35  # 0.69 before it has learned anything


def test_its_figures_are_those_of_the_benchmarks() -> None:
    benchmarks = Page("docs/reference/benchmarks.md")
    for question, ours, others in README.rows("question", "netq"):
        section = benchmarks.section(question.rpartition(", ")[0])
        for figure in re.findall(r"\d[\d.,]*\d", f"{ours} {others.replace('1 MiB', '')}"):
            assert f" {figure} (" in section.text, f"{question}: {figure}"
    assert "20 of 43 hold" in benchmarks.text
    prose = " ".join(README.text.split())
    assert "20 are reached and 23 are missed" in prose
    rounds = dict(row[:2] for row in Page("docs/reference/benchmarks-federation.md").rows("", "s/round", "× fl, TCP"))
    assert (rounds["fl, TCP"].split()[0], rounds["flwr, deployment"].split()[0]) == ("0.24", "8.23")
    assert "0.24 s in fl, and 8.23 s in Flower's" in prose


def test_the_make_targets_that_the_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (README.text, (ROOT / "CONTRIBUTING.md").read_text()):
        assert set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", page, re.MULTILINE)) <= targets
