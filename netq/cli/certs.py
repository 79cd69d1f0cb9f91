"""netq certs: a private authority, its certificates, and their revocation. netq.security.certificates does the work."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from netq.cli.terminal import sentence
from netq.errors import SecurityError

if TYPE_CHECKING:
    from netq.security.certificates import Entry

_EXAMPLE = """\
example: netq certs init --host aggregator.local --host 10.0.0.1
         netq certs issue board-7       its files: authority.pem, board-7.pem, board-7-key.pem
         netq certs request board-8     on the board: its key stays there; then, here,
         netq certs sign board-8 board-8.csr
         netq certs revoke board-7      the server gets revoked.txt, and refuses it
         netq certs show
"""
_ALGORITHMS = """\
p256       every TLS library takes it; the default
ml-dsa-65  post-quantum signatures, of 3 KB each. Only TLS by pyOpenSSL takes them: not gRPC, not a Python with
           OpenSSL older than 3.5, not the mosquitto and nginx of Debian 12
The key exchange is post-quantum with both, if server and client have the extra `security`.
"""


def main(arguments: Sequence[str]) -> int:
    """Run a sub-command; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        import netq.security.certificates  # noqa: F401
    except ImportError as error:
        print(f"netq certs: {error}", file=sys.stderr)
        return 2
    try:
        status: int = options.run(options)
    except SecurityError as error:
        print(f"netq certs: {sentence(error)}", file=sys.stderr)
        return 2
    except OSError as error:
        path = error.filename or options.folder  # a full disk has no name
        print(f"netq certs: {path}: {error.strerror}; use a folder that you can write to", file=sys.stderr)
        return 2
    return status


def _init(options: argparse.Namespace) -> int:
    from netq.security import certificates

    hosts = options.host or certificates.LOCAL
    files = certificates.init(options.folder, hosts, options.days, options.algorithm, options.overwrite)
    _print_table(
        (files.authority, "the authority: copy it to the server and to each client"),
        (files.authority.with_name("authority-key.pem"), "its key, which signs certificates: keep it off the server"),
        (files.certificate, f"the server's certificate, for {', '.join(hosts)}, {options.days} days"),
        (files.key, "the server's key: keep it on the server"),
        (files.authority.with_name("revoked.txt"), "what the server refuses; nothing yet"),
    )
    return 0


def _issue(options: argparse.Namespace) -> int:
    from netq.security import certificates

    folder, name = options.folder, options.name
    old = [entry for entry in certificates.show(folder) if entry.name == name] if options.renew else []
    files = certificates.issue(folder, name, options.host or (), options.days, options.renew)
    (new,) = [entry for entry in certificates.show(folder) if entry.name == name]
    side = "server" if new.hosts else "client"
    _print_table(
        (files.authority, f"the authority that the {side} trusts"),
        (files.certificate, f"the {side}'s certificate" + _for(new.hosts) + f", {options.days} days; id {new.id}"),
        (files.key, f"the {side}'s key"),
    )
    print(f"copy these three files to the {side}; the key is secret")
    for entry in old:
        if entry.until is not None and entry.until > datetime.datetime.now(datetime.UTC) and not entry.revoked:
            print(f"the old certificate stays valid until {entry.until:%Y-%m-%d}")
            if entry.kind == "client":
                print(f"to refuse it: netq certs revoke {name} --serial {entry.serial:x} --folder {folder}")
    return 0


def _request(options: argparse.Namespace) -> int:
    from netq.security import certificates

    key, request = certificates.request(options.folder, options.name, options.algorithm)
    _print_table((key, "the key: it stays here"), (request, "the request: send it to who has the authority"))
    print(f"there: netq certs sign {options.name} {request.name}")
    return 0


def _sign(options: argparse.Namespace) -> int:
    from netq.security import certificates

    folder, name = options.folder, options.name
    path = certificates.sign(folder, name, options.request, options.host or (), options.days, options.renew)
    (new,) = [entry for entry in certificates.show(folder) if entry.name == name]
    side = "server" if new.hosts else "client"
    _print_table(
        (folder / "authority.pem", f"the authority that the {side} trusts"),
        (path, f"the {side}'s certificate" + _for(new.hosts) + f", {options.days} days; id {new.id}"),
    )
    print(f"send both back to the {side}, which has the key; neither is secret")
    return 0


def _revoke(options: argparse.Namespace) -> int:
    from netq.security import certificates

    serial = certificates.revoke(options.folder, options.name, options.serial)
    print(f"{options.folder / 'revoked.txt'} has {options.name}, serial {serial:x}; copy it to the server")
    return 0


def _show(options: argparse.Namespace) -> int:
    from netq.security import certificates

    entries = certificates.show(options.folder)
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        summary, *details = _facts(entry)
        print(f"{entry.name:<{width}}  {summary}")
        for fact in details:
            print(f"{'':<{width}}  {fact}")
    return 2 if any(entry.problems for entry in entries) else 0


def _facts(entry: Entry) -> Iterator[str]:
    if entry.kind is None or entry.until is None:
        yield "not readable"
    else:
        left = (entry.until - datetime.datetime.now(datetime.UTC)).days
        where = "" if entry.has_key else "; its key is not here"
        summary = f"{entry.kind}{_for(entry.hosts)}, {entry.algorithm or 'another algorithm'}"
        yield f"{summary}, until {entry.until:%Y-%m-%d} ({left} days){where}"
        yield f"serial   {entry.serial:x}{', REVOKED' if entry.revoked else ''}"
    if entry.id is not None:
        yield f"id       {entry.id}"
    for problem in entry.problems:
        yield f"PROBLEM  {problem}"


def _for(hosts: Iterable[str]) -> str:
    return f" for {', '.join(hosts)}" if hosts else ""


def _print_table(*rows: tuple[Path, str]) -> None:
    width = max(len(str(path)) for path, _ in rows)
    for path, meaning in rows:
        print(f"{path!s:<{width}}  {meaning}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "netq certs",
        description="Make a private authority, and certificates of servers and clients, in one folder.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument(
        "--folder", type=Path, default=Path("certificates"), help="the folder with the files; default: %(default)s"
    )
    made = argparse.ArgumentParser(add_help=False)
    made.add_argument("--days", type=int, default=365, help="validity of the certificate; default: %(default)s")

    init = commands.add_parser(
        "init",
        parents=[folder, made],
        help="make the authority and the server's certificate",
        description="Make the authority, which lasts ten years, and the server's certificate.",
        epilog=_ALGORITHMS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    host = "a name or address by which clients reach the server; repeat it for more"
    init.add_argument("--host", action="append", help=f"{host}. Default: this machine only")
    init.add_argument("--algorithm", choices=["p256", "ml-dsa-65"], default="p256", help="of all keys; see below")
    init.add_argument("--overwrite", action="store_true", help="replace files; certificates already made become void")
    init.set_defaults(run=_init)

    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("name", metavar="NAME", help="the name of the files: letters, digits, - and _")
    signed = argparse.ArgumentParser(add_help=False, parents=[folder, made, named])
    signed.add_argument("--host", action="append", help=f"{host}. Without it the certificate is a client's")
    signed.add_argument(
        "--renew", action="store_true", help="replace an existing one; the id stays, and so do the hosts"
    )

    issue = commands.add_parser(
        "issue",
        parents=[signed],
        help="make a client's certificate, or one of another server",
        description="Make a client's certificate or, with --host, one of another server.",
    )
    issue.set_defaults(run=_issue)

    request = commands.add_parser(
        "request",
        parents=[folder, named],
        help="make a key here, and a request for a certificate of it",
        description="Make a key on the machine that uses it, and a request for who has the authority.",
    )
    request.add_argument("--algorithm", choices=["p256", "ml-dsa-65"], default="p256", help="as of the authority")
    request.set_defaults(run=_request)

    sign = commands.add_parser(
        "sign",
        parents=[signed],
        help="make the certificate that a request asks for",
        description="Make the certificate of a request: only its key is taken from there, name and hosts are yours.",
    )
    sign.add_argument("request", metavar="NAME.csr", type=Path, help="what `netq certs request` has made")
    sign.set_defaults(run=_sign)

    revoke = commands.add_parser(
        "revoke",
        parents=[folder],
        help="let servers refuse a client's certificate",
        description="Add a client's certificate to revoked.txt. A running server reads that file when it changes.",
    )
    revoke.add_argument("name", metavar="NAME", help="as given to issue")
    revoke.add_argument("--serial", type=_serial, help="of an older certificate, as `issue --renew` has printed it")
    revoke.set_defaults(run=_revoke)

    show = commands.add_parser(
        "show",
        parents=[folder],
        help="list all certificates, and what is wrong with them",
        description="List all certificates. The status is 2 if something is wrong with one of them.",
    )
    show.set_defaults(run=_show)
    return parser


def _serial(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a serial number in hexadecimal") from None
