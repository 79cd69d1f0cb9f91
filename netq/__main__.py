"""netq COMMAND: what netq does from a shell. `python -m netq` is the same."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from netq.cli.terminal import outlive_readers
from netq.version import VERSION

_COMMANDS = {  # the module of each, which has a function `main`; imported when it is needed
    "bench": ("netq.bench.command", "measure a link between two machines, or on one"),
    "certs": ("netq.cli.certs", "make certificates of servers and clients, and revoke them"),
    "exchange": ("netq.cli.exchange", "run an exchange: topics, work queues and services for many clients"),
    "doctor": ("netq.cli.doctor", "show what this machine can do, and whether a server answers"),
}
_USAGE = "\n".join(
    [
        "usage: netq COMMAND …    netq COMMAND --help explains a command",
        "",
        *[f"  {name:<9} {help}" for name, (_, help) in _COMMANDS.items()],
        "",
        "example: netq bench throughput --size 128MiB --direction both",
    ]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    if arguments is None:
        outlive_readers()
    match list(sys.argv[1:] if arguments is None else arguments):
        case [name, *rest] if name in _COMMANDS:
            command = importlib.import_module(_COMMANDS[name][0])
            status: int = command.main(rest)
            return status
        case ["--version"]:
            print(f"netq {VERSION}")
            return 0
        case ["-h" | "--help"]:
            print(_USAGE)
            return 0
        case [name, *_]:
            print(f"netq: {name}: no such command\n{_USAGE}", file=sys.stderr)
        case _:
            print(_USAGE, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
