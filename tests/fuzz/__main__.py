"""Run a fuzz target with atheris, which finds inputs by the coverage of the code (extra `fuzz`).

    python -m tests.fuzz TARGET [option of libFuzzer …]

The targets are the modules of this folder. Inputs are kept in build/fuzz/TARGET, and one that fails in
build/fuzz/TARGET-crash-…: add it to SEEDS of its target, so that tests/fuzz/test_fuzz.py tries it too.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from pathlib import Path

import atheris

TARGETS = ("pickles", "messages", "msgpacks", "links", "packets")
LIMITS = ["-timeout=5", "-rss_limit_mb=1024"]  # an input that takes longer, or more, has failed


def main(target: str, *options: str) -> None:
    os.environ["NETQ_PURE"] = "1"  # the codec in Python: that in C has no coverage
    with atheris.instrument_imports(include=["netq", "fl.tensors", "fl.messages"]):
        module = importlib.import_module(f"tests.fuzz.{target}")
    folder = Path("build/fuzz") / target
    folder.mkdir(parents=True, exist_ok=True)
    for seed in module.SEEDS:
        (folder / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)

    def run(data: bytes) -> None:
        module.run(data)

    atheris.Setup([sys.argv[0], *LIMITS, f"-artifact_prefix={folder}-", *options, str(folder)], run)
    atheris.Fuzz()


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"expected one of {', '.join(TARGETS)}, then options of libFuzzer")
    main(*sys.argv[1:])
