"""python -m netq COMMAND: what netq can do from a shell.

bench   measure what a link gives (netq/bench)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from netq.bench import command

_USAGE = "usage: python -m netq bench ...   measure what a link gives; python -m netq bench --help says how"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    match given:
        case ["bench", *rest]:
            return command.main(rest)
        case ["-h" | "--help"]:
            print(_USAGE)
            return 0
    print(_USAGE, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
