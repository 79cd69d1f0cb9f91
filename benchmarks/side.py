"""python -m benchmarks.side client|server: one of the two processes of a measurement.

Started by benchmarks/measure.py, which writes peer, task and address to stdin. The server prints "ready" when a client
may connect; both print their figures as the last line. Owns only the connection.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.task import Place, Task
from benchmarks.works import Client, Server, Side, Wire, drive
from netq.bench.resources import pin


def main() -> None:
    is_server = sys.argv[1] == "server"
    pin(int(is_server))
    given = json.loads(sys.stdin.readline())
    place = Place(**given["place"] | {"folder": Path(given["place"]["folder"]), "is_server": is_server})
    run = importlib.import_module(given["loop"]).run if given["loop"] else drive  # of asyncio, uvloop or curio
    run(_measure(importlib.import_module(f"benchmarks.peers.{given['module']}"), Task(**given["task"]), place, run))


async def _measure(peer: Any, task: Task, place: Place, run: Any) -> None:
    wire: Wire = await peer.open(place)
    side: Side = (Server if place.is_server else Client)(wire, task, in_loop=run is not drive)
    await side.run()  # type: ignore[attr-defined]
    print(json.dumps(side.figures), flush=True)
    await wire.close()


if __name__ == "__main__":
    main()
