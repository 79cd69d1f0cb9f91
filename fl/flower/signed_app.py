"""A Flower app's files with their author's signature, as a server delivers them and a node stores them.

    app.signature   in the app's folder: two lines of text, made by `sign`
                    sha256 HEX          of the files
                    signature BASE64    over CONTEXT and this hash: P-256, P-384 (both with SHA-256), Ed25519 or ML-DSA

The hash is that of `_digest`: lengths, names and contents, by name. A node trusts the certificates of authors that its
owner has put there (ReceivedApps), and never runs a file that none of them has signed. docs/how-to/flower.md explains
how to use it. Called by fl/__main__.py, fl/flower/grid.py and fl/flower/node.py. Needs `cryptography`.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from fl.flower.app_folder import PROJECT, AppFolder
from fl.flower.checked_modules import CheckedModules
from netq.errors import InvalidOption, SecurityError
from netq.text import printable
from netq.utils.files import create, read_regular, replacing

if TYPE_CHECKING:
    from fl.flower.apps import ClientApp

log = logging.getLogger("netq.fl")

NAME = "app.signature"
BYTES = 16 * 2**20  # of all files of an app together
FILES = 1000

_CONTEXT = b"netq-fl Flower app 1\0"  # so that a signature over something else is not one of an app
_PATH = 200  # characters of a file's path
_KEPT = 4  # versions in a node's folder
_VERSION = re.compile("[0-9a-f]{16}")


class SignedApp(NamedTuple):
    """An app's files, by their path in its folder, and the signature over them."""

    version: str
    files: Mapping[str, bytes]
    signature: bytes

    @classmethod
    def load(cls, folder: AppFolder) -> Self:
        """Read a signed app's folder. Raises InvalidOption: it is not signed, has changed since, or is too large."""
        path, files = folder.path / NAME, _files(folder)
        command = f"fl flower sign {folder.path} KEY.pem"
        try:
            signed, signature = _parse(read_regular(path))
        except FileNotFoundError:
            raise InvalidOption(f"{folder.path}: this app is not signed; run: {command}") from None
        except (OSError, ValueError) as error:
            raise InvalidOption(f"{path}: no signature of an app ({error}); run: {command}") from None
        if signed != _digest(files):
            raise InvalidOption(f"{folder.path}: this app has changed since it was signed; run: {command}")
        return cls(folder.version, files, signature)

    @property
    def digest(self) -> str:
        """The hash of all files, which is signed: 64 hexadecimal digits."""
        return _digest(self.files).hex()

    def fault(self) -> str | None:
        """Return what a node cannot accept of an app's files, before their signature is checked; None for nothing."""
        if len(self.files) > FILES or sum(map(len, self.files.values())) > BYTES:
            return f"it has more than {FILES:,} files or {BYTES // 2**20} MiB"
        for name in self.files:
            if not _is_path(name):
                shown = printable(repr(name), _PATH)
                return f"it has a file {shown}; expected the path of a Python file in the app's folder"
        return None


class ReceivedApps:
    """A node's folder of apps that servers have delivered, one folder for each version.

    folder: made if it is missing. The last four versions that ran are kept.
    signer: path of a PEM file with the certificates of those whose apps may run here, as `netq certs issue` makes them.

    One ClientApp is imported at a time: loading the next one removes the modules of the one before. Raises
    SecurityError for a certificate that cannot be read, and OSError.
    """

    def __init__(self, folder: Path, signer: Path) -> None:
        from netq.security.files import check_dates, load_certificates
        from netq.security.keys import verifier

        certificates = load_certificates("app.signer", signer)
        for certificate in certificates:
            check_dates("app.signer", signer, certificate)
        self._signer = signer
        self._verifiers = [verifier(certificate.public_key()) for certificate in certificates]
        self._folder = folder.absolute()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._loaded: Path | None = None  # the folder of the app whose modules were imported last
        self._modules: CheckedModules | None = None  # of that folder
        self._app: ClientApp | None = None  # of that folder; None if it cannot be imported

    def has(self, version: str) -> bool:
        """Return whether the files of a version are here, and signed."""
        if self._app is not None and self._loaded == self._folder / version:
            return True
        if not is_stored(self._folder, version):
            return False
        try:
            self._load_signed(self._folder / version, version)
        except (SecurityError, OSError) as error:  # the author's certificate has changed, or the files have
            log.warning("the app %s is refused: %s", version, error)
            return False
        return True

    def client_app(self, version: str) -> ClientApp | None:
        """Return the ClientApp of a version; None if it is not here.

        Its signature is checked again: the certificates may have changed since it arrived. Raises SecurityError, after
        removing the app's files; OSError; and InvalidOption for an app that cannot be imported.
        """
        folder = self._folder / version
        if self._app is not None and self._loaded == folder:
            return self._app
        if not is_stored(self._folder, version):
            return None
        try:
            app = self._load_signed(folder, version)
        except SecurityError:
            shutil.rmtree(folder)
            raise
        self._unload()
        self._loaded = folder
        self._modules = CheckedModules(folder, app.files)
        self._modules.install()
        self._app = app.client_app(on_path=False)
        os.utime(folder)
        return self._app

    def store(self, app: SignedApp) -> None:
        """Write an app's files. Raises SecurityError, which says why nothing of it is kept, and OSError."""
        if fault := app.fault():
            raise SecurityError(fault)
        self._check(app)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".new-") as name:
            new = Path(name, "app")
            for path, content in app.files.items():
                (new / path).parent.mkdir(parents=True, exist_ok=True)
                _write(new / path, content)
            _write(new / NAME, _text(_digest(app.files), app.signature))
            self._load_signed(new, app.version)
            shutil.rmtree(self._folder / app.version, ignore_errors=True)  # refused by `client_app`
            new.rename(self._folder / app.version)
        self._remove_old(app.version)

    def _load_signed(self, path: Path, version: str) -> AppFolder:
        """Read an app's folder, and check the signature and version of what was read. Raises SecurityError, OSError."""
        try:
            folder = AppFolder.load(path)
            self._check(SignedApp.load(folder))
        except InvalidOption as error:
            raise SecurityError(str(error)) from None
        if folder.version != version:
            raise SecurityError(f"its files are those of {folder.version}")
        return folder

    def _check(self, app: SignedApp) -> None:
        """Raise SecurityError unless one of the certificates has signed an app."""
        for verify in self._verifiers:
            try:
                verify(app.signature, _CONTEXT + _digest(app.files))
            except SecurityError:
                continue
            return
        raise SecurityError(f"no certificate in {self._signer} has signed it")

    def _unload(self) -> None:
        """Forget the modules of the app that ran before: the next one may have others of the same names."""
        modules, self._modules, self._loaded, self._app = self._modules, None, None, None
        if modules is not None:
            modules.remove()

    def _remove_old(self, new: str) -> None:
        apps = [path for path in self._folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        for path in sorted(apps, key=lambda path: (path.name == new, path.stat().st_mtime))[:-_KEPT]:
            if path != self._loaded:
                shutil.rmtree(path)


def is_stored(folder: Path, version: str) -> bool:
    """Return whether the files of a version are in a node's folder. Does not check them."""
    return _VERSION.fullmatch(version) is not None and (folder / version).is_dir()


def sign(folder: AppFolder, key: Path) -> str:
    """Write the signature of an app's files into its folder, and return the app's version.

    key: a private key in PEM. Raises SecurityError for a wrong key, InvalidOption for an app that is too large, and
    OSError.
    """
    from netq.security.files import load_key
    from netq.security.keys import signer

    files = _files(folder)
    digest = _digest(files)
    signature = signer("KEY.pem", load_key("KEY.pem", key))(_CONTEXT + digest)
    with replacing(folder.path / NAME, 0o644) as file:
        file.write(_text(digest, signature))
    return folder.version


def _files(folder: AppFolder) -> dict[str, bytes]:
    """Return the files that are delivered. Raises InvalidOption."""
    app = SignedApp("", folder.files, b"")
    if fault := app.fault():
        raise InvalidOption(f"{folder.path}: cannot be delivered: {fault}")
    return dict(app.files)


def _is_path(name: str) -> bool:
    parts = name.split("/")
    return (
        len(name) <= _PATH
        and name.isprintable()
        and "\\" not in name
        and all(part and not part.startswith(".") for part in parts)
        and (name == PROJECT or (name.endswith(".py") and "__pycache__" not in parts))
    )


def _digest(files: Mapping[str, bytes]) -> bytes:
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        encoded = name.encode()
        digest.update(b"%d %d " % (len(encoded), len(content)) + encoded + content)
    return digest.digest()


def _text(digest: bytes, signature: bytes) -> bytes:
    return b"sha256 %s\nsignature %s\n" % (digest.hex().encode(), base64.b64encode(signature))


def _parse(text: bytes) -> tuple[bytes, bytes]:
    """Return the hash and the signature. Raises ValueError."""
    first, second = text.decode("ascii").splitlines()
    (digest_name, digest), (signature_name, signature) = first.split(), second.split()
    if (digest_name, signature_name) != ("sha256", "signature"):
        raise ValueError("expected the lines sha256 and signature")
    return bytes.fromhex(digest), base64.b64decode(signature, validate=True)


def _write(path: Path, content: bytes) -> None:
    with create(path) as file:
        file.write(content)
