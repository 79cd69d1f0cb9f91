"""The public suite for communicators: whoever adds a transport runs it, as netq's own tests do for each of its own.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_conformance(check):
        check(make)                          # or, all at once: check_communicator(make)

`make(purpose, options)` returns a communicator. It may change the options, to add security say, and the address
if the transport has its own idea of one. A check raises AssertionError, closes what it opens, and needs no pytest.
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
    """Run all checks; raise what the first that fails raises, with its name."""
    for check in CHECKS:
        try:
            check(make)
        except Exception as error:
            error.add_note(f"in {check.__module__}.{check.__name__}: {check.__doc__}")
            raise
