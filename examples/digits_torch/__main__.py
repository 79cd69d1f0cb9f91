"""python -m examples.digits_torch: the demo of examples/digits, with the model of this folder."""

import sys

from examples.digits.__main__ import main

if __name__ == "__main__":
    sys.exit(main("examples.digits_torch.model", "out/digits_torch.png"))
