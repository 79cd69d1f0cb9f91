"""The notebooks: each runs outside the clone, gives the results that its prose states, and is saved with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NAMES = [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]

# Runs a notebook in a folder. In a process of its own, because a kernel's client leaves threads behind.
PROGRAM = """
import json, sys
import nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
notebook.cells.append(nbformat.v4.new_code_cell("import json; print(json.dumps(results))"))
client = nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": sys.argv[2]}})
client.execute()
outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
assert not [output for output in outputs if output.get("name") == "stderr"], outputs
assert [output for output in outputs if "image/png" in output.get("data", {})], "it shows no plot"
print(outputs[-1].text)
"""


def run(name: str, scratch: Path) -> dict[str, Any]:
    """Return `results`, as the notebook leaves it."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(FOLDER / f"{name}.ipynb"), str(scratch)]
    environment = {**os.environ, "JUPYTER_RUNTIME_DIR": str(scratch), "IPYTHONDIR": str(scratch)}
    environment["OPENBLAS_NUM_THREADS"] = "1"  # the clients' processes share few cores
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    return results


def test_there_are_three() -> None:
    assert NAMES == ["attack", "fewer_bytes", "skewed_labels"]


@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_saved_with_its_results(name: str) -> None:
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert [output for output in outputs if "image/png" in output.get("data", {})]
    assert code[-1]["outputs"][0]["name"] == "stdout"


@pytest.mark.parametrize("name", NAMES)
def test_notebook_needs_no_clone(name: str) -> None:
    assert "from examples" not in "".join(code_of(name))


def code_of(name: str) -> list[str]:
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_small_mu_helps_and_large_mu_learns_little(tmp_path: Path) -> None:
    results = run("skewed_labels", tmp_path)
    average, small, large = (results[name] for name in ("FedAvg", "FedProx, µ = 0.1", "FedProx, µ = 1"))
    assert small["loss"] < average["loss"] < large["loss"]
    assert small["accuracy"] > 0.8
    assert large["accuracy"] < average["accuracy"]


@pytest.mark.slow
def test_mean_fails_under_attack_and_multi_krum_holds(tmp_path: Path) -> None:
    results = run("attack", tmp_path)
    assert results["FedAvg"] < 0.5
    assert results["FedMedian"] > 0.9
    assert results["MultiKrum"] > results["FedAvg, no attack"] - 0.02


@pytest.mark.slow
def test_fewer_bytes_keep_the_accuracy(tmp_path: Path) -> None:
    results = run("fewer_bytes", tmp_path)
    sizes = [each["bytes"] for each in results.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] / sizes[1] > 3
    assert sizes[0] / sizes[-1] > 15
    assert min(each["accuracy"] for each in results.values()) > results["none"]["accuracy"] - 0.02
