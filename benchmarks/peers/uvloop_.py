"""uvloop, with asyncio's BufferedProtocol: see asyncio_buffered.py.

https://uvloop.readthedocs.io/user/index.html: `uvloop.run`. Its README measures that protocols are the fastest API.
"""

from __future__ import annotations

import uvloop

from benchmarks.peers.asyncio_buffered import connect, listen

__all__ = ["connect", "listen", "run"]
run = uvloop.run
