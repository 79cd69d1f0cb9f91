"""docs/ as a whole: links, the table of contents, and the API pages that Sphinx fills."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import edge
import fl
import netq
from fl.report import FailureKind
from fl.server.member import MemberState
from tests.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.stem)
def test_every_link_has_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


HUBS = ("queue", "reference/wire", "reference/python", "reference/measured", "explanation/transports")


def listed(page: Path, text: str) -> list[Path]:
    return [(page.parent / path).resolve() for path in re.findall(r"\]\(([\w/-]+\.md)\)", text)]


def test_the_contents_have_every_page_once() -> None:
    index = ROOT / "docs" / "index.md"
    hubs = [ROOT / "docs" / f"{name}.md" for name in HUBS]
    sections = index.read_text().partition("\n## ")[2]
    found = listed(index, sections) + [page for hub in hubs for page in listed(hub, hub.read_text())]
    assert sorted(found) == sorted({*PAGES} - {index})


def test_sidebar_has_few_groups_of_few_pages() -> None:
    groups = (ROOT / "docs" / "index.md").read_text().split("\n## ")[1:]
    assert len(groups) <= 7
    assert max(len(listed(ROOT / "docs" / "index.md", group)) for group in groups) <= 9


def test_first_screen_is_the_federation_of_readme() -> None:
    blocks = [Page(path).scripts()["federation.py"] for path in ("README.md", "docs/index.md")]
    assert blocks[0] == blocks[1]


@cache
def functions(path: Path) -> set[str]:
    """The functions of a module, and the methods and properties of its classes."""
    found = set[str]()
    for node in ast.parse(path.read_text()).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        found |= {
            prefix + member.name for member in members if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
        }
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_function_named_with_its_file_exists(page: Path) -> None:
    named = re.findall(r"`((?:netq|fl|edge)/[\w/]+\.py)`\s+`([\w.]+)`", page.read_text())
    assert [(path, name) for path, name in named if name not in functions(ROOT / path)] == []
    assert len(named) > {"life-of-a-message": 50, "life-of-an-update": 25}.get(page.stem, -1)


def test_the_life_of_an_update_has_every_state_and_event() -> None:
    page = (ROOT / "docs" / "explanation" / "life-of-an-update.md").read_text()
    states = page.partition("## The round around it")[2].partition("## From train")[0]
    rows = re.findall(r"^\| ([A-Z, ]+) \|", states, re.MULTILINE)
    assert {name for row in rows for name in row.split(", ")} == set(MemberState.__members__)
    kinds = set(FailureKind.__members__) - {"ERROR", "FAILED", "INVALID"}  # of rows 12 and 13, and of the reply
    assert kinds <= set(re.findall(r"\b[A-Z]{4,}\b", page))


@pytest.mark.parametrize("package", [netq, fl, edge], ids=lambda package: package.__name__)
def test_the_api_pages_have_every_public_name_once(package: ModuleType) -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference" / "python").glob("*.md"))
    documented = re.findall(rf"^\.\. auto\w+:: {package.__name__}\.([\w.]+)$", pages, re.MULTILINE)
    assert len(documented) == len(set(documented))
    assert {name.partition(".")[0] for name in documented} >= {*package.__all__}
