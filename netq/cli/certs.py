"""netq certs: makes a private authority and a server's certificate. netq.security.certificates does the work."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from netq.errors import SecurityError
from netq.version import DISTRIBUTION

_EXAMPLE = "example: netq certs certificates --name aggregator.local --name 10.0.0.1"


def main(arguments: Sequence[str]) -> int:
    """Write the files, and print what each is for; return the exit status."""
    parser = argparse.ArgumentParser(
        "netq certs",
        description="Make a private authority, and a server certificate that it signs. Its key is not kept.",
        epilog=_EXAMPLE,
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to write; it is made if it does not exist")
    parser.add_argument(
        "--name",
        action="append",
        metavar="HOST",
        help="a name or address by which clients reach the server; repeat it for more. Default: this machine only",
    )
    parser.add_argument("--days", type=int, default=365, help="validity; default: %(default)s")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    options = parser.parse_args(arguments)
    try:
        from netq.security import certificates
    except ImportError:
        print(f"netq certs: needs cryptography: pip install '{DISTRIBUTION}[security]'", file=sys.stderr)
        return 2
    names = options.name or ["localhost", "127.0.0.1", "::1"]
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        files = certificates.make(options.folder, names, options.days, options.overwrite)
    except (SecurityError, OSError) as error:
        print(f"netq certs: {error}".replace("overwrite=True", "--overwrite"), file=sys.stderr)
        return 2
    print(f"{files.key}          the server's key; keep it on the server")
    print(f"{files.certificate}              the server's certificate, for {', '.join(names)}, {options.days} days")
    print(f"{files.authority}           the authority that clients trust; give it to each of them")
    return 0
