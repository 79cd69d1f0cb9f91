"""python -m benchmarks.side client|server: one of the two processes of a measurement.

Started by benchmarks/measure.py, which writes peer, task and address to stdin. The server prints "ready" when a client
may connect; both print their figures as the last line. Owns only the connection.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import awaiting, blocking, sweep
from benchmarks.meter import Meter, pin
from benchmarks.task import Place, Task


def main() -> None:
    side = sys.argv[1]
    pin(0 if side == "client" else 1)
    given = json.loads(sys.stdin.readline())
    peer: Any = importlib.import_module(f"benchmarks.peers.{given['module']}")
    task = Task(**given["task"])
    task = replace(task, kind=getattr(peer, "KIND", task.kind))
    place = Place(**given["place"] | {"folder": Path(given["place"]["folder"])})
    place = replace(place, work=task.work, kind=task.kind, size=task.size)
    meter = Meter()
    if inspect.iscoroutinefunction(peer.connect):
        peer.run(_await(peer, side, task, place, meter))
    else:
        _wait(peer, side, task, place, meter)


def _wait(peer: Any, side: str, task: Task, place: Place, meter: Meter) -> None:
    wire: blocking.Wire = peer.connect(place) if side == "client" else peer.listen(place, _ready)
    getattr(sweep if task.work == "sweep" else blocking, f"{task.work}_{side}")(wire, task, meter)
    print(json.dumps(meter.figures()), flush=True)
    wire.close()


async def _await(peer: Any, side: str, task: Task, place: Place, meter: Meter) -> None:
    wire: awaiting.Wire = await (peer.connect(place) if side == "client" else peer.listen(place, _ready))
    await getattr(awaiting, f"{task.work}_{side}")(wire, task, meter)
    print(json.dumps(meter.figures()), flush=True)
    await wire.close()


def _ready() -> None:
    print("ready", flush=True)


if __name__ == "__main__":
    main()
