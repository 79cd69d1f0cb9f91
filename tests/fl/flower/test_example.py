"""The example of a Flower app: the commands of its README run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.test_readmes import check


@pytest.mark.slow
def test_commands_of_the_readme_run(tmp_path: Path) -> None:
    check("flower_app", tmp_path)
