"""fl without Flower works, until fl.flower is imported; an unknown release of Flower is refused."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

HERE = importlib.util.find_spec("flwr") is not None


def output(program: str) -> str:
    """Run a program, and return the last line of its output."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    return (done.stdout + done.stderr).splitlines()[-1]


def test_fl_and_edge_work_without_flower() -> None:
    assert output("import fl, edge, edge.__main__, sys; print('flwr' in sys.modules)") == "False"


def test_agent_of_a_flower_app_needs_neither_flower_nor_numpy() -> None:
    assert output("import edge.agent, edge.flower, sys; print({'flwr', 'numpy', 'grpc'} & set(sys.modules))") == "set()"


@pytest.mark.skipif(HERE, reason="Flower is installed")
def test_without_flower_the_error_names_the_extra() -> None:
    said = output("import fl.flower; fl.flower.Node")
    assert said == "ImportError: fl.flower needs Flower, and there is no flwr here: pip install 'flwr>=1.39,<2'"


@pytest.mark.skipif(not HERE, reason="no flwr here: the tests of fl.flower were left out; pip install 'flwr>=1.39,<2'")
def test_with_flower_the_import_works() -> None:
    assert output("import fl.flower; print(fl.flower.KNOWN)") == "flwr>=1.39,<2"


@pytest.mark.skipif(not HERE, reason="no flwr here")
@pytest.mark.parametrize("version", ["0.18.0", "1.9.0", "1.38.9", "2.0.0", "2.41", "1", "one.two"])
def test_an_unknown_release_is_refused(version: str) -> None:
    from fl.flower._compat import check_version

    with pytest.raises(ImportError) as caught:
        check_version(version)
    assert str(caught.value) == (
        f"fl.flower: flwr {version} is installed; expected flwr>=1.39,<2: pip install 'flwr>=1.39,<2'"
    )


@pytest.mark.skipif(not HERE, reason="no flwr here")
@pytest.mark.parametrize("version", ["1.39", "1.39.0", "1.41.0", "1.100.0.dev1"])
def test_a_known_release_is_accepted(version: str) -> None:
    from fl.flower._compat import check_version

    check_version(version)


@pytest.mark.skipif(not HERE, reason="no flwr here")
def test_moved_private_names_are_a_clear_error() -> None:
    said = output("import sys; sys.modules['flwr.supercore.task_identity'] = None; import fl.flower; fl.flower.Node")
    assert said.startswith("ImportError: fl.flower: flwr 1.")
    assert "keeps elsewhere what 1.39 to 1.41 had in one place" in said
    assert "flwr.supercore.task_identity" in said
