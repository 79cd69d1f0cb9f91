"""edge: the agent of a device. `edge.run(config)` in a script, or the command `edge run client.toml`."""

import sys

from netq.cli import launch

if sys.argv[:1] == ["-m"]:  # so it is until `python -m edge` has imported the package
    launch.check_extra("edge")

from edge.agent import run
from edge.config import Config
from edge.fitness import Fitness
from edge.limits import Limits

__all__ = ["Config", "Fitness", "Limits", "run"]
