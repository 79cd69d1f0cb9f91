"""edge: the agent of a device. `edge.run(train, config)` in a script, or the command `edge run client.toml`."""

import sys

from netq.cli import launch

if sys.argv[:1] == ["-m"]:  # so it is until `python -m edge` has imported the package
    launch.check_extra("edge")

from edge.config import Config
from edge.runtime import run

__all__ = ["Config", "run"]
