"""python -m examples.c.partition 0 4 part.u8: write part 0 of 4 of the digits as a file that netq.c reads.

Each example is 65 bytes: 64 pixels from 0 to 16, and the digit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from examples.digits import data


def rows(examples: data.Examples) -> bytes:
    """Return the examples as rows of bytes."""
    pixels = np.rint(examples.images * 16).astype(np.uint8)
    return np.column_stack([pixels, examples.labels.astype(np.uint8)]).tobytes()


def main() -> None:
    parser = argparse.ArgumentParser("python -m examples.c.partition", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("partition", type=int, help="which part, from 0")
    parser.add_argument("partitions", type=int, help="into how many the digits are dealt out")
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of the aggregator")
    args = parser.parse_args()
    config = {"partition": args.partition, "partitions": args.partitions, "seed": args.seed}
    args.file.write_bytes(rows(data.partition(config)))


if __name__ == "__main__":
    main()
