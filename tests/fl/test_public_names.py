"""Public names of fl are imported when they are first used, and are those that type checkers see."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fl

ROOT = Path(__file__).parents[2]


def imports() -> dict[str, tuple[str, ...]]:
    """The names by module, as the block for type checkers imports them."""
    (block,) = [each for each in ast.parse(Path(fl.__file__).read_text()).body if isinstance(each, ast.If)][1:]
    found: dict[str, tuple[str, ...]] = {}
    for each in block.body:
        assert isinstance(each, ast.ImportFrom)
        found[str(each.module)] = (*found.get(str(each.module), ()), *(name.name for name in each.names))
    return found


def test_the_table_is_that_of_the_type_checker() -> None:
    assert imports() == fl.MODULES


@pytest.mark.parametrize("name", fl.__all__)
def test_each_name_is_there(name: str) -> None:
    assert getattr(fl, name) is not None


def test_dotted_names_of_the_pages_need_no_import_but_that_of_fl() -> None:
    """Those of fl.flower do: its pages import it."""
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    names = sorted(set(re.findall(r"`fl\.(?!flower\b)([a-z]+\.[\w.]*\w)", pages)))
    assert "callbacks.jsonl.read" in names
    script = f"import operator, fl; [operator.attrgetter(name)(fl) for name in {names}]"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'fl' has no attribute 'FedAvgs'"):
        fl.FedAvgs  # noqa: B018


def test_what_moves_messages_needs_no_numpy() -> None:
    script = "import sys, fl, fl.membership, netq.toml_file; assert 'numpy' not in sys.modules, sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_trains_for_an_agent_needs_no_communicator() -> None:
    script = "import sys, edge.worker, edge.tasks; assert not {'netq.core', 'edge.agent'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
