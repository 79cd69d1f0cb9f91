"""torch.distributed with gloo: send of tensors, and recv into a reused tensor.

https://docs.pytorch.org/docs/stable/distributed.html#point-to-point-communication
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.task import Place


def listen(place: Place, ready: Callable[[], None]) -> Wire:
    ready()
    return Wire(place, rank=0)


def connect(place: Place) -> Wire:
    return Wire(place, rank=1)


class Wire:
    def __init__(self, place: Place, rank: int) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
        address = f"tcp://{place.host}:{place.port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
        self._other = 1 - rank
        self._tensors: dict[int, torch.Tensor] = {}  # by size: to receive into
        self._sent: tuple[Any, torch.Tensor] = (None, torch.empty(0))

    def send(self, message: Any) -> None:
        if self._sent[0] is not message:  # a task sends one message many times: wrap it once
            self._sent = (message, _tensor(message))
        dist.send(self._sent[1], self._other)

    def receive(self, size: int) -> Any:
        if size not in self._tensors:
            self._tensors[size] = torch.empty(size, dtype=torch.uint8)
        dist.recv(self._tensors[size], self._other)
        return self._tensors[size].numpy()

    def close(self) -> None:
        dist.destroy_process_group()


def _tensor(message: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(message) if isinstance(message, bytes) else message, dtype=torch.uint8)
