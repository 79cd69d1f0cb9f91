"""The result of a run: figures, violations, and the slope of the memory; and how it is printed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.soak.history import Violation, What, Wrong

MIB = 1024**2
_SHOWN = 10  # violations
Sample = tuple[float, int]  # seconds, bytes


@dataclass(frozen=True)
class Report:
    """The report of one run on one wire."""

    wire: str
    seconds: float
    seed: int
    clients: int
    counts: Counter[What]
    bytes: int  # delivered
    faults: Counter[str]
    settling: float  # seconds from the end of the last fault until no message was in transit
    violations: Sequence[Violation]
    errors: Sequence[str]
    memory: Sequence[Sample]  # resident bytes each second, after the warm-up

    @property
    def good(self) -> bool:
        """Whether there was no error."""
        return not self.violations and not self.errors

    def __str__(self) -> str:
        lines = [f"{name:10}{text}" for name, text in self._rows()]
        wrong = [*self.errors, *map(str, self.violations)]
        return "\n".join(lines + [f"    {text}" for text in wrong[:_SHOWN]])

    def _rows(self) -> list[tuple[str, str]]:
        delivered = f"{self.bytes / MIB:.1f} MiB in {self.counts[What.DELIVERED]}"
        return [
            ("wire", f"{self.wire}, {self.clients} clients, {self.seconds:g} s, seed {self.seed}"),
            ("messages", ", ".join(f"{what} {self.counts[what]}" for what in What) + f" ({delivered})"),
            ("faults", f"{self.faults.total()}: " + ", ".join(f"{k} {n}" for k, n in sorted(self.faults.items()))),
            ("settled", f"{self.settling:.2f} s after the last fault"),
            ("wrong", ", ".join(f"{wrong} {self._count(wrong)}" for wrong in Wrong) + f", other {len(self.errors)}"),
            ("memory", self._memory()),
        ]

    def _count(self, wrong: Wrong) -> int:
        return sum(violation.wrong is wrong for violation in self.violations)

    def _memory(self) -> str:
        if len(self.memory) < 4:
            return "too short a run"
        first, last = self.memory[0][1] / MIB, self.memory[-1][1] / MIB
        return f"{first:.1f} MiB at the begin, {last:.1f} at the end, {self.slope:+.0f} KiB/min in the second half"

    @property
    def slope(self) -> float:
        """KiB per minute, in the second half of the run."""
        return slope(self.memory[len(self.memory) // 2 :]) * 60 / 1024


def slope(samples: Sequence[Sample]) -> float:
    """Return the slope of the least-squares line, in bytes per second."""
    n = len(samples)
    mean_x, mean_y = sum(x for x, _ in samples) / n, sum(y for _, y in samples) / n
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread
