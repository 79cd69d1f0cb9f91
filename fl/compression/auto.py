"""Chooses how an update is packed by the rate of the client's link: `compression="auto"`.

The choice is the most exact packing that is sent in no more time than the training took, so that a round takes at most
twice as long as its training. int8 may take four times as long, because it costs next to no accuracy; what is smaller
does. Called by fl/trainer.py, after each training. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from fl.compression.compressor import Compression


class _Choice(NamedTuple):
    compression: Compression
    size: float | None  # bytes of an element that is sent; None: as many as it has
    patience: float  # how long the sending may take, in times of the training


AUTO = "auto"
_INT8 = _Choice(Compression("int8"), 1.008, 4.0)
_CHOICES = (_Choice(Compression(), None, 1.0), _Choice(Compression("float16"), 2.008, 1.0), _INT8)
_SMALLEST = Compression("int8", top_k=0.1)


def choose(size: int, elements: int, seconds: float, rate: float | None) -> Compression:
    """Return how to pack an update of so many bytes and elements after a training of `seconds`.

    rate: of the link, in bytes a second; None: not measured yet, which chooses int8.
    """
    if rate is None:
        return _INT8.compression
    for choice in _CHOICES:
        sent = size if choice.size is None else elements * choice.size
        if sent <= choice.patience * seconds * rate:
            return choice.compression
    return _SMALLEST
