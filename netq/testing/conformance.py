"""The public conformance suite for communicators. Run it against each transport, as netq's own tests do.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_conformance(check):
        check(make)                          # or, all at once: check_communicator(make)

`make(purpose, options)` returns a communicator. It may change the options: add security, say, or use another form of
address. A check raises AssertionError, closes what it opens, and does not need pytest.
"""

from __future__ import annotations

from collections.abc import Callable

from netq.testing.checks import closing, futures, messages, sessions, waiting, windows
from netq.testing.fixtures import Make

CHECKS: tuple[Callable[[Make], None], ...] = (
    *messages.CHECKS,
    *futures.CHECKS,
    *waiting.CHECKS,
    *closing.CHECKS,
    *sessions.CHECKS,
    *windows.CHECKS,
)


def check_communicator(make: Make) -> None:
    """Run all checks, and raise the error of the first that fails, with the name of the check as a note."""
    for check in CHECKS:
        try:
            check(make)
        except Exception as error:
            error.add_note(f"in {check.__module__}.{check.__name__}: {check.__doc__}")
            raise
