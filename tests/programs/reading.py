"""A process whose log is read as it comes."""

from __future__ import annotations

import subprocess


class Reading:
    """Reads what a process writes to stderr, which is a pipe of text."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""

    def wait(self, text: str) -> str:
        """Read until a line has this text; return what stands after it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if text in line:
                return line.partition(text)[2]
        raise AssertionError(f"it ended without {text!r}:\n{self.said}")

    def end(self) -> int:
        """Read the rest; return the status."""
        assert self.process.stderr is not None
        self.said += self.process.stderr.read()
        return self.process.wait()
