"""How much the updates of a device have said: the device's own ledger, in its folder for the state.

Owned by edge/guard.py, in the agent's thread. An update is counted before it leaves, and the count is on the disk.
"""

from __future__ import annotations

import json
from pathlib import Path

from edge.policy import Policy
from fl.privacy.accountant import Ledger
from netq.errors import NotNow
from netq.utils.files import read_regular, replacing


class Budget:
    """The ledger of a device. Raises NotNow for a file that is damaged: the count may be lost."""

    def __init__(self, policy: Policy, state: Path) -> None:
        self._policy = policy
        self._path = state / "budget.json"
        try:
            self._ledger = Ledger.restored(json.loads(read_regular(self._path)))
        except FileNotFoundError:
            self._ledger = Ledger()
        except (OSError, ValueError, TypeError, IndexError, RecursionError) as error:
            text = "is no budget of an agent; restore it, or remove it if the count may begin at 0"
            raise NotNow(f"policy.max_epsilon: {self._path}: {text} ({error})") from None

    @property
    def epsilon(self) -> float:
        """What the updates have said until now."""
        return self._policy.spent(self._ledger)

    def is_spent(self) -> str:
        """Return why there is no other update; "" if there is."""
        most, policy = self._policy.max_epsilon, self._policy
        if most is None or self._ledger.epsilon_with(policy.noise, policy.delta) <= most:
            return ""
        return (
            f"the budget of this device is spent: epsilon is {self.epsilon:.3g} after {len(self._ledger)} updates, and "
            f"one more would exceed policy.max_epsilon ({most:g}); go on without it, or ask its owner"
        )

    def spend(self) -> None:
        """Count an update. Raises OSError: then it may not leave, and is counted in memory."""
        self._ledger.add(self._policy.noise)
        with replacing(self._path) as file:
            file.write(json.dumps(self._ledger.state()).encode())
