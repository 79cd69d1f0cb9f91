"""edge: the agent of a device. `edge.run(config)` in a script, or the command `edge run client.toml`."""

import sys
from typing import TYPE_CHECKING, Any

from netq.cli import launch

if sys.argv[:1] == ["-m"]:  # so it is until `python -m edge` has imported the package
    launch.check_extra("edge")

from edge.config import Config
from edge.fitness import Fitness
from edge.limits import Limits
from edge.policy import Policy

if TYPE_CHECKING:
    from edge.agent import run as run

__all__ = ["Config", "Fitness", "Limits", "Policy", "run"]


def __getattr__(name: str) -> Any:
    """Import `run` when it is first used: the process that trains imports this package, too, and no agent."""
    if name != "run":
        raise AttributeError(f"module 'edge' has no attribute {name!r}")
    from edge.agent import run

    globals()[name] = run
    return run
