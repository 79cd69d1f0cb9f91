"""The command netq: its help, its version, and its list of commands."""

from __future__ import annotations

import pytest

from netq.__main__ import main


@pytest.mark.parametrize("arguments", [[], ["sprint"], ["--loud"]])
def test_wrong_command_lists_the_commands(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert all(f"\n  {name} " in errors for name in ("bench", "certs", "doctor"))


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "example: netq bench " in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("netq ")
