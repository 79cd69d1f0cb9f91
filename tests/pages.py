"""The reader of the pages' tests: what a page has in its sections, blocks and tables, and its scripts as processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.servers import ports

ROOT = Path(__file__).parents[1]

# The scripts' default port may be in use on this machine. They get a free one instead.
PROLOGUE = """
import netq.options
netq.options.NetworkLocation.__new__.__defaults__ = ("127.0.0.1", {port})
"""


class Page:
    """A Markdown file of this repository, or one of its sections."""

    def __init__(self, path: str, text: str = "") -> None:
        self.path = ROOT / path
        self.text = text or self.path.read_text(encoding="utf-8")

    def section(self, title: str) -> Page:
        """Return what is under a heading of the second level."""
        (text,) = [each for each in self.text.split("\n## ")[1:] if each.partition("\n")[0] == title]
        return Page(str(self.path), text)

    def blocks(self, language: str = r"\w*") -> list[str]:
        """Return the fenced blocks of a language."""
        return [text for _, text in self.named_blocks(language)]

    def named_blocks(self, language: str) -> list[tuple[str, str]]:
        """Return the blocks of a language with the rest of the line that opens each."""
        return re.findall(rf"^```{language} ?([^\n]*)\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)

    def output(self, command: str) -> str:
        """Return what the page shows below a command in a `console` block."""
        (block,) = [each for each in self.blocks("console") if each.startswith(f"$ {command}\n")]
        return block.partition("\n")[2]

    def scripts(self) -> dict[str, str]:
        """Return the Python blocks that begin with a comment `# name.py`, by this name."""
        found = (re.match(r"# (\w+\.py)\n", block) for block in self.blocks("python"))
        return {name[1]: name.string for name in found if name}

    def tables(self, *head: str) -> list[list[list[str]]]:
        """Return the tables whose head begins with these cells: a list of rows, the head first."""
        blocks = re.findall(r"(?:^\|.*\n?)+", self.text, re.MULTILINE)
        found = [[_cells(line) for line in block.splitlines()] for block in blocks]
        return [[rows[0], *rows[2:]] for rows in found if rows[0][: len(head)] == [*head]]

    def rows(self, *head: str) -> list[list[str]]:
        """Return the rows below the head of the one table whose head begins with these cells."""
        (table,) = self.tables(*head)
        return table[1:]


def _cells(line: str) -> list[str]:
    """Return the cells of a table's line. A `|` within a cell is written `\\|`."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


class Scripts:
    """Runs a page's scripts as processes, in a folder that has all of them, with a port of their own."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self._stack = ExitStack()
        self.port = ports.free().port
        prologue = PROLOGUE.format(port=self.port)
        for name, text in page.scripts().items():
            (folder / name).write_text(prologue + text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a script with arguments, or `-m` and a module. Killed when this ends."""
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},  # they share few cores
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process
