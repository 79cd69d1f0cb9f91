"""A folder with a private authority, the certificates that it has signed, and the list of those that are revoked.

    authority.pem, authority-key.pem    what all sides trust, and the private key that signs certificates
    server.pem, server-key.pem          the server
    NAME.pem, NAME-key.pem              a client, or another server
    NAME.csr                            the request of one whose key is on its own machine: `request` and `sign`
    revoked.txt                         serial numbers that servers refuse: the option `revoked`

Called by `netq certs` and by users, never by a communicator. A federation with an authority of its own does not need
this module. Functions raise SecurityError, which names the file, and OSError if a file cannot be written.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from netq.errors import SecurityError
from netq.security import authority
from netq.security.authority import Algorithm, CertificateKind, Signed
from netq.security.revocation import serials

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

T = TypeVar("T")
LOCAL = ("localhost", "127.0.0.1", "::1")  # hosts of a server that only this machine reaches
DAYS = 365  # validity of a certificate
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY = "-key"  # ends the name of a key's file
_REQUEST = ".csr"  # ends the name of a request's
_HEAD = "# Servers refuse these serial numbers, in hexadecimal, one a line. `netq certs revoke` adds to them.\n"


class Files(NamedTuple):
    """The PEM files of a server or a client. The key is secret: only its owner can read it."""

    authority: Path
    key: Path
    certificate: Path


@dataclass(frozen=True)
class Entry:
    """What `show` finds out about a certificate. Without a readable certificate there are only name and problems.

    id:       a client has it as the id of its communicator.
    until:    the end of its validity.
    has_key:  whether the private key is in the folder.
    problems: sentences that name the file and say what to do.
    """

    name: str
    kind: CertificateKind | None = None
    id: uuid.UUID | None = None
    serial: int | None = None
    algorithm: Algorithm | None = None
    hosts: tuple[str, ...] = ()
    until: datetime.datetime | None = None
    revoked: bool = False
    has_key: bool = False
    problems: tuple[str, ...] = ()


def init(
    folder: Path,
    hosts: Sequence[str] = LOCAL,
    days: int = DAYS,
    algorithm: Algorithm | str = Algorithm.P256,
    overwrite: bool = False,
) -> Files:
    """Make an authority, and a certificate of a server at these names and addresses. Return the server's files.

    `days` is the validity of the server's certificate; the authority's is ten years. All keys of a folder have the same
    algorithm. Existing files are kept, and SecurityError is raised, unless `overwrite`: then all certificates of the
    old authority become invalid. revoked.txt is always kept.
    """
    if algorithm not in list(Algorithm):
        raise SecurityError(f"algorithm: {algorithm!r}; expected {' or '.join(Algorithm)}")
    if isinstance(hosts, str) or not hosts:
        raise SecurityError(f"hosts: {hosts!r}; expected a list of names and addresses, as in ['aggregator.local']")
    folder = Path(folder)
    signer = authority.new_authority(Algorithm(algorithm))
    server = authority.sign(signer, "server", uuid.uuid4(), hosts, days)
    paths = [path for name in ("authority", "server") for path in _files(folder, name)[1:]]
    if overwrite:
        for path in paths:
            path.unlink(missing_ok=True)
    _refuse_existing(paths, "use another folder, or the option overwrite")
    folder.mkdir(parents=True, exist_ok=True)
    _create_both(folder, "server", server)
    _create_both(folder, "authority", signer)
    with contextlib.suppress(FileExistsError):
        _create(folder / "revoked.txt", _HEAD.encode(), 0o644)
    return _files(folder, "server")


def issue(folder: Path, name: str, hosts: Sequence[str] = (), days: int = DAYS, renew: bool = False) -> Files:
    """Make a key and a certificate: of a client, or of a server if there are `hosts`. Return the files of that side.

    renew: replace an existing certificate. Key and serial number are new; the id stays, and so do the hosts if none are
           given. The old certificate stays valid until its end, so that a device has time to get the new files: see
           `revoke`.
    """
    folder = Path(folder)
    _check_name(name)
    _check_hosts(hosts)
    signer, files = _load_authority(folder), _files(folder, name)
    if renew:
        id, hosts = _renewed(files, hosts)
        signed = authority.sign(signer, name, id, hosts, days)
        _replace(files.key, signed.key_pem(), 0o600)
        _replace(files.certificate, signed.certificate_pem(), 0o644)
    else:
        signed = authority.sign(signer, name, uuid.uuid4(), hosts, days)
        _refuse_existing(files[1:], "use another name, or the option renew for a new certificate with the same id")
        _create_both(folder, name, signed)
    return files


def request(folder: Path, name: str, algorithm: Algorithm | str = Algorithm.P256) -> tuple[Path, Path]:
    """Make a key on the machine that uses it, and a request that `sign` makes a certificate of. Return both files.

    The key never leaves the machine. `algorithm` is that of the authority. Existing files are kept, and SecurityError
    is raised.
    """
    if algorithm not in list(Algorithm):
        raise SecurityError(f"algorithm: {algorithm!r}; expected {' or '.join(Algorithm)}")
    folder = Path(folder)
    _check_name(name)
    key, path = _files(folder, name).key, folder / f"{name}{_REQUEST}"
    _refuse_existing([key, path], "use another name, or move the old files away")
    made = authority.new_request(name, Algorithm(algorithm))
    folder.mkdir(parents=True, exist_ok=True)
    _create(key, made.key_pem(), 0o600)
    _create(path, made.request_pem(), 0o644)
    return key, path


def sign(
    folder: Path, name: str, request: Path, hosts: Sequence[str] = (), days: int = DAYS, renew: bool = False
) -> Path:
    """Make a certificate for the key of a request: a client's, or a server's if there are `hosts`. Return its file.

    Only the key is taken from the request: name and hosts are what you say. renew: as of `issue`.
    """
    folder = Path(folder)
    _check_name(name)
    _check_hosts(hosts)
    signer, files = _load_authority(folder), _files(folder, name)
    key = _load(Path(request), authority.parse_request)
    id, hosts = _renewed(files, hosts) if renew else (uuid.uuid4(), hosts)
    try:
        certificate = authority.certify(signer, key, name, id, hosts, days)
    except SecurityError as error:
        raise SecurityError(f"{request}: {error}") from None
    pem = authority.pem_of(certificate)
    if renew:
        _replace(files.certificate, pem, 0o644)
    else:
        _refuse_existing(files[2:], "use another name, or the option renew for a new certificate with the same id")
        _create(files.certificate, pem, 0o644)
    return files.certificate


def revoke(folder: Path, name: str, serial: int | None = None) -> int:
    """Add a client's certificate to revoked.txt, and return its serial number. It may be there already.

    A server with the option `revoked` reads the file again when it changes, and ends sessions of that certificate.
    `serial` is that of an older certificate of this client; `issue` with `renew` leaves it valid.
    """
    folder = Path(folder)
    _check_name(name)
    if serial is None:
        path = _files(folder, name).certificate
        certificate = _load_certificate(path)
        if authority.kind_of(certificate) is not CertificateKind.CLIENT:
            raise SecurityError(
                f"{path}: of a server, and clients read no revoked.txt; make a new authority in another folder, and "
                "give its authority.pem to the clients"
            )
        serial = certificate.serial_number
    with _locked(folder):
        path = folder / "revoked.txt"
        text, revoked = _revoked(path)
        if serial not in revoked:
            end = "" if text.endswith("\n") or not text else "\n"
            _replace(path, f"{text}{end}# {name}, {_now().date()}\n{serial:x}\n".encode(), 0o644)
    return serial


def show(folder: Path) -> list[Entry]:
    """Return what is in a folder: the authority, servers, clients. It may be a device's, with its three files only."""
    folder = Path(folder)
    try:
        names = {path.stem.removesuffix(_KEY) for path in folder.iterdir() if path.suffix == ".pem"}
    except OSError as error:
        raise SecurityError(f"{folder}: {error.strerror}; `netq certs init` makes a folder of certificates") from None
    _, revoked = _revoked(folder / "revoked.txt")
    signer = None
    with contextlib.suppress(SecurityError):  # the entry of the authority tells what is wrong
        signer = _load_certificate(_files(folder, "authority").certificate)
    entries = [_entry(folder, name, signer, revoked) for name in names | {"authority"}]
    ranks = [*CertificateKind, None]
    return sorted(entries, key=lambda entry: (ranks.index(entry.kind), entry.name))


def _check_hosts(hosts: Sequence[str]) -> None:
    if isinstance(hosts, str):
        raise SecurityError(f"hosts: {hosts!r}; expected a list of names and addresses, as in ['aggregator.local']")


def _renewed(files: Files, hosts: Sequence[str]) -> tuple[uuid.UUID, Sequence[str]]:
    """Return the id and the hosts of a certificate that is renewed, with these hosts if there are any."""
    old = _load_certificate(files.certificate)
    id, was = authority.id_of(old), authority.hosts_of(old)
    if id is None:
        raise SecurityError(f"{files.certificate}: names no id (urn:uuid:…); issue one under another name instead")
    if hosts and not was:
        raise SecurityError(f"{files.certificate}: of a client, which has no hosts; renew it without hosts")
    return id, hosts or was


def _entry(folder: Path, name: str, signer: Certificate | None, revoked: frozenset[int]) -> Entry:
    files = _files(folder, name)
    has_key = files.key.exists()
    try:
        certificate = _load_certificate(files.certificate)
    except SecurityError as error:
        asked, problem = folder / f"{name}{_REQUEST}", str(error)
        if has_key and asked.exists() and not files.certificate.exists():
            problem = f"{files.certificate}: not here yet; `netq certs sign` makes it of {asked}"
        return Entry(name, has_key=has_key, problems=(problem,))
    kind = authority.kind_of(certificate)
    return Entry(
        name=name,
        kind=kind,
        id=authority.id_of(certificate),
        serial=certificate.serial_number,
        algorithm=authority.algorithm_of(certificate),
        hosts=authority.hosts_of(certificate),
        until=certificate.not_valid_after_utc,
        revoked=certificate.serial_number in revoked,
        has_key=has_key,
        problems=(
            *_certificate_problems(files.certificate, certificate, kind, signer),
            *(_key_problems(files, certificate) if has_key else ()),
        ),
    )


def _certificate_problems(
    path: Path, certificate: Certificate, kind: CertificateKind, signer: Certificate | None
) -> Iterator[str]:
    now = _now()
    anew = "make a new authority in another folder" if kind is CertificateKind.AUTHORITY else "renew it"
    if now > certificate.not_valid_after_utc:
        yield f"{path}: has expired on {certificate.not_valid_after_utc:%Y-%m-%d}; {anew}"
    if now < certificate.not_valid_before_utc:
        yield f"{path}: not valid before {certificate.not_valid_before_utc:%Y-%m-%d}; set the clock of this machine"
    if signer is not None and not authority.is_signed_by(certificate, signer):
        yield f"{path}: authority.pem has not signed it; {anew}, or put it back into the folder of its authority"
    if kind is CertificateKind.CLIENT and authority.id_of(certificate) is None:
        yield f"{path}: names no id (urn:uuid:…), so that no server accepts it; issue one under another name"


def _key_problems(files: Files, certificate: Certificate) -> Iterator[str]:
    if files.key.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        yield f"{files.key}: all users of this machine can read it; run: chmod 600 {files.key}"
    try:
        key = _load(files.key, authority.parse_key)
    except SecurityError as error:
        yield str(error)
    else:
        if key.public_key() != certificate.public_key():
            yield f"{files.key}: the key of another certificate than {files.certificate}; renew that certificate"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name.endswith(_KEY) or name == "authority":
        raise SecurityError(
            f"name: {name!r}; expected 1 to 64 letters, digits, - and _, but not -key at the end, and not 'authority'"
        )


def _files(folder: Path, name: str) -> Files:
    return Files(folder / "authority.pem", folder / f"{name}{_KEY}.pem", folder / f"{name}.pem")


def _load_authority(folder: Path) -> Signed:
    files = _files(folder, "authority")
    certificate, key = _load_certificate(files.certificate), _load(files.key, authority.parse_key)
    if key.public_key() != certificate.public_key():
        raise SecurityError(f"{files.key}: the key of another authority than {files.certificate}; find the right one")
    return Signed(certificate, key)


def _load_certificate(path: Path) -> Certificate:
    return _load(path, authority.parse)


def _load(path: Path, parse: Callable[[bytes], T]) -> T:
    try:
        return parse(path.read_bytes())
    except SecurityError as error:
        raise SecurityError(f"{path}: {error}") from None
    except FileNotFoundError:
        raise SecurityError(f"{path}: no such file; is this the right folder? `netq certs init` makes one") from None
    except OSError as error:
        raise SecurityError(f"{path}: not readable: {error.strerror}") from None


def _revoked(path: Path) -> tuple[str, frozenset[int]]:
    """Return the text of a list of revoked certificates, or of an empty one; and the serial numbers in it."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return text, serials(text)
    except FileNotFoundError:
        return _HEAD, frozenset()
    except OSError as error:
        raise SecurityError(f"{path}: not readable: {error.strerror}") from None
    except ValueError as error:
        raise SecurityError(f"{path}: {error}") from None


def _refuse_existing(paths: Sequence[Path], advice: str) -> None:
    for path in paths:
        if os.path.lexists(path):
            raise SecurityError(f"{path} exists and is left as it is; {advice}")


def _create_both(folder: Path, name: str, signed: Signed) -> None:
    files = _files(folder, name)
    _create(files.key, signed.key_pem(), 0o600)
    _create(files.certificate, signed.certificate_pem(), 0o644)


def _create(path: Path, data: bytes, mode: int) -> None:
    """Create `path` with `mode` from the start. O_EXCL: it is no file or link that another user has put there."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, data: bytes, mode: int) -> None:
    """Write a file in one step: a reader, or a machine that loses power, sees all of the old file or of the new one."""
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        _create(new, data, mode)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    with _opened(path.parent) as folder:
        os.fsync(folder)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Exclude other processes that change a folder's revoked.txt."""
    with _opened(folder) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
