"""uvloop, with asyncio's BufferedProtocol: see asyncio_buffered.py.

https://uvloop.readthedocs.io/user/index.html: `uvloop.run`. Its README measures protocols as the fastest way.
"""

from __future__ import annotations

import uvloop

from benchmarks.peers.asyncio_buffered import connect, listen

__all__ = ["connect", "listen", "run"]
run = uvloop.run
