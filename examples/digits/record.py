"""python -m examples.digits.record: run the demo, and keep what it shows as pictures for the README in docs/images.

demo.svg is the terminal, without the rounds in the middle; digits.png is the plot of the accuracy.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

IMAGES = Path(__file__).parents[2] / "docs" / "images"
FIRST, LAST = 8, 8  # lines that are kept of the beginning and of the end
WIDTH = 76  # characters


def main() -> None:
    """Run `make demo`'s command and write both pictures."""
    plot = IMAGES / "digits.png"
    command = [sys.executable, "-m", "examples.digits", "--out", str(plot)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (IMAGES / "demo.svg").write_text(picture(output.replace(str(plot), "out/digits.png")), encoding="utf-8")


def picture(output: str) -> str:
    """Return the SVG of a terminal with the first and the last lines of this output."""
    lines = output.splitlines()
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    shown = ["$ make demo", *lines[:FIRST], "  ...", *lines[-LAST:]]
    console.print("\n".join(shown), highlight=False, markup=False)
    svg = console.export_svg(title="make demo", theme=DIMMED_MONOKAI)
    svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)  # they are fetched from another host
    return svg.replace("Fira Code, monospace", "monospace").replace("font-family: Fira Code", "font-family: monospace")


if __name__ == "__main__":
    main()
