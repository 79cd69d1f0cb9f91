"""torch.distributed with gloo: send of tensors, and recv into a reused tensor.

https://docs.pytorch.org/docs/stable/distributed.html#point-to-point-communication
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.task import Place


async def open(place: Place) -> Wire:
    if place.is_server:
        place.ready()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    rank = int(not place.is_server)
    dist.init_process_group("gloo", init_method=f"tcp://{place.host}:{place.port}", rank=rank, world_size=2)
    return Wire(1 - rank)


class Wire:
    def __init__(self, other: int) -> None:
        self._other = other
        self._tensors: dict[int, torch.Tensor] = {}  # by size: to receive into
        self._sent: tuple[Any, torch.Tensor] = (None, torch.empty(0))

    async def send(self, message: Any) -> None:
        if self._sent[0] is not message:  # a task sends one message many times: wrap it once
            data = bytearray(message) if isinstance(message, bytes) else message
            self._sent = (message, torch.frombuffer(data, dtype=torch.uint8))
        dist.send(self._sent[1], self._other)

    async def receive(self, size: int) -> Any:
        if size not in self._tensors:
            self._tensors[size] = torch.empty(size, dtype=torch.uint8)
        dist.recv(self._tensors[size], self._other)
        return self._tensors[size].numpy()

    async def close(self) -> None:
        dist.destroy_process_group()
