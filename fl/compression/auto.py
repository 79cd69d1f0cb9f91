"""Chooses how an update is packed by the rate of the client's link: `compression="auto"`.

The choice is the most exact packing that is sent in no more time than the training took, so that a round takes at most
twice as long as its training. If there is none, the smallest. Called by fl/trainer.py, after each training. Pure.
"""

from __future__ import annotations

from fl.compression.compressor import Compression

AUTO = "auto"
_CHOICES = (  # and the size of a packed change, for each byte of a float32 change
    (Compression(), 1.0),
    (Compression("float16"), 0.502),
    (Compression("int8"), 0.252),
    (Compression("int8", top_k=0.1), 0.042),
)
_UNMEASURED = Compression("int8")


def choose(size: int, seconds: float, rate: float | None) -> Compression:
    """Return how to pack an update of `size` bytes after a training of `seconds`.

    rate: of the link, in bytes a second; None: not measured yet, which chooses int8.
    """
    if rate is None:
        return _UNMEASURED
    return next((choice for choice, part in _CHOICES if size * part <= seconds * rate), _CHOICES[-1][0])
