"""docs/reference/commands.md has every command and option that `--help` shows, and no other."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

import edge.__main__
import fl.__main__
import netq.__main__
from tests.pages import Page

PAGE = Page("docs/reference/commands.md")
SECTIONS = dict(text.split("\n", 1) for text in PAGE.text.replace("\n## ", "\n### ").split("\n### ")[1:])
COMMANDS = [title for title in SECTIONS if " " in title and title != "netq bench"]  # which has a page of its own


_SUBCOMMANDS = re.compile(r"^ {2,4}([a-z][a-z-]*) {2,}\w", re.MULTILINE)


MAIN: dict[str, Callable[[list[str]], object]] = {
    "netq": netq.__main__.main,
    "fl": lambda arguments: fl.__main__.app(arguments, prog_name="fl"),
    "edge": edge.__main__.main,
}


def shown(program: str, *arguments: str) -> str:
    """Return what `--help` prints, by a call in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        MAIN[program]([*arguments, "--help"])
    return out.getvalue()


@pytest.mark.parametrize("title", COMMANDS)
def test_it_has_every_option(title: str) -> None:
    text = shown(*title.split())
    assert f"xample: {Page('', SECTIONS[title]).blocks('')[0].splitlines()[0]}" in text
    text += "".join(shown(*title.split(), name) for name in _SUBCOMMANDS.findall(text))
    rows = "".join(row[0] for row in Page("", SECTIONS[title]).rows("argument"))
    assert {*re.findall(r"--[a-z-]+", rows)} == {*re.findall(r"^ +(--[a-z-]+)", text, re.MULTILINE)} - {"--help"}


@pytest.mark.slow
@pytest.mark.parametrize("program", ["netq", "fl", "edge"])
def test_it_has_every_command(program: str) -> None:
    found = {title.split()[1] for title in SECTIONS if title.startswith(f"{program} ")}
    text = subprocess.check_output([sys.executable, "-m", program, "--help"], text=True)
    assert {name for name in _SUBCOMMANDS.findall(text) if name != "options"} == found
