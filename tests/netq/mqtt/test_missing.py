"""Without paho-mqtt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import netq
for purpose in netq.Purpose:
    try:
        netq.new(netq.Protocol.MQTT, purpose)
    except ImportError as error:
        print(error)
"""


def test_missing_paho_is_named(tmp_path: Path) -> None:
    (tmp_path / "paho.py").write_text("raise ImportError('not here')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.count("Protocol.MQTT needs paho-mqtt (not here): pip install 'paho-mqtt>=2.1,<3'") == 2
