"""Names of dtypes and limits of shapes that messages, means and compression share. Constants only."""

from __future__ import annotations

TORCH_ONLY = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
# of tensors that travel as differences; others travel as they are
DELTA_DTYPES = ("float16", "bfloat16", "float32", "float64")
MAX_DIMS = 64  # dimensions of a numpy array
