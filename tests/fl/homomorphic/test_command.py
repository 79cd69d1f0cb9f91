"""fl secure-key, and fl export with a key."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fl
from tests.fl.federation import A, Federation, adds, at

pytest.importorskip("typer")
pytestmark = pytest.mark.slow


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    return line


def test_a_key_and_the_export_of_a_model(tmp_path: Path) -> None:
    key, context, checkpoint, out = (tmp_path / name for name in ("a.key", "a.context", "a.ckpt", "a.npz"))
    made = run("secure-key", key, context, "--parameters", "sums", "--encrypt", "w", "--encrypt", "w*")
    assert made.stdout == f"{key}: for the clients only; {context}: for the server; encrypts only 'w', 'w*'\n"
    assert json.loads(context.read_text())["encrypt"] == json.loads(key.read_text())["encrypt"] == ["w", "w*"]
    with Federation(secure=fl.Homomorphic(context), min_clients=1, checkpoint=checkpoint) as federation:
        federation.start(fl.Client(adds(2), secure=fl.SecurePolicy(key=key)).run, at(federation.server.netloc, A))
        federation.round(1)
    assert "its model is encrypted; expected --key with the clients' file" in said(run("export", checkpoint, out))
    assert "is the server's file, without the secret key" in said(run("export", checkpoint, out, "--key", context))
    assert run("export", checkpoint, out, "--key", key).stdout == f"{out}: the model of round 1, 1 tensors\n"
    assert np.load(out)["w"] == pytest.approx([2, 2, 2], abs=1e-5)


def test_files_that_are_there_stay(tmp_path: Path) -> None:
    key, context = tmp_path / "a.key", tmp_path / "a.context"
    context.write_text("of another key")
    assert "a.context: cannot be written (File exists)" in said(run("secure-key", key, context))
    assert not key.exists()
    assert context.read_text() == "of another key"
    key.write_text("another key")
    assert "a.key: cannot be written (File exists)" in said(run("secure-key", key, tmp_path / "b.context"))
    assert not (tmp_path / "b.context").exists()


def test_unknown_parameters_are_refused(tmp_path: Path) -> None:
    done = run("secure-key", tmp_path / "a.key", tmp_path / "a.context", "--parameters", "sum")
    assert said(done) == "fl: --parameters: 'sum'; did you mean sums?"
    done = run("secure-key", tmp_path / "a.key", tmp_path / "a.context", "--encrypt", "")
    assert said(done).startswith("fl: encrypt: ('',); expected names of tensors, or patterns")
