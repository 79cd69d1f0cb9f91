"""netq.aio in uvloop's event loop instead of asyncio's: see netq_aio.py."""

from __future__ import annotations

import uvloop

from benchmarks.peers.netq_aio import connect, listen

__all__ = ["connect", "listen", "run"]
run = uvloop.run
