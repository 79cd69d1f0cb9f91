"""The options of homomorphic encryption, its parameters, and the files of its keys. Needs no TenSEAL.

A file is JSON. That of the clients has the secret key; that of the server has none:
{"format": "fl homomorphic context 1", "key": "5f…", "degree": 8192, "moduli": [60, 40, 40, 60], "scale": 40,
"encrypt": ["*"]}
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from netq.errors import InvalidOption
from netq.validate import expect, is_whole

# The largest sum of the bits of the moduli for 128-bit security, by degree, with a ternary secret and classical
# attacks. Source: HomomorphicEncryption.org, "Homomorphic encryption security standard", 2018, table 1.
SECURE_BITS = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}

EVERYTHING = ("*",)
_CONTEXT, _KEY = "fl homomorphic context 1", "fl homomorphic key 1"
_LARGEST_FILE = 10**8  # bytes; the largest key of SECURE_BITS has some 4 MB


@dataclass(frozen=True)
class Homomorphic:
    """The server adds ciphertexts of the clients' updates, and reads neither an update nor a model after the first.

    That is so for the tensors that the key encrypts: all, or those of fl secure-key --encrypt. All clients have one
    secret key: one client and the server together read everything. Raises InvalidOption.

    context: the server's file of `fl secure-key`, which has no secret key.
    """

    context: str | os.PathLike[str]

    def __post_init__(self) -> None:
        right = isinstance(self.context, str | os.PathLike) and bool(os.fspath(self.context))
        expect(right, "Homomorphic.context", self.context, 'a path, as in "server.context"')


@dataclass(frozen=True)
class Parameters:
    """Parameters of CKKS with 128-bit security by SECURE_BITS. Raises InvalidOption.

    degree: of the polynomials; a ciphertext has half as many values.
    moduli: bits of the primes; the last one is not in ciphertexts.
    scale:  bits of the factor that values are encoded with.
    """

    degree: int
    moduli: tuple[int, ...]
    scale: int

    def __post_init__(self) -> None:
        known = ", ".join(map(str, SECURE_BITS))
        expect(is_whole(self.degree) and self.degree in SECURE_BITS, "degree", self.degree, f"one of {known}")
        right = isinstance(self.moduli, list | tuple) and len(self.moduli) > 1
        right = right and all(is_whole(bits, 20, 60) for bits in self.moduli)
        expect(right, "moduli", self.moduli, "two or more numbers of bits, 20 to 60, as in [60, 40, 40, 60]")
        object.__setattr__(self, "moduli", tuple(self.moduli))
        total, most = sum(self.moduli), SECURE_BITS[self.degree]
        expect(
            total <= most, "moduli", self.moduli, f"{most} bits in all at most for 128-bit security, and not {total}"
        )
        room = total - self.moduli[-1] - 4
        expect(is_whole(self.scale, 10, room), "scale", self.scale, f"bits, 10 to {room} with these moduli")

    @property
    def slots(self) -> int:
        """The values in a ciphertext."""
        return self.degree // 2

    @property
    def range(self) -> float:
        """What no sum of values in a slot may exceed. Half of the modulus, and a bit for the noise."""
        return 2.0 ** (sum(self.moduli[:-1]) - self.scale - 2)


PARAMETERS = {
    # Those of CIBER-CAFE's stack (github.com/hpca-uji/fl-fhe-backend).
    "ciber-cafe": Parameters(8192, (60, 40, 40, 60), 40),
    # For sums only, which need no modulus to rescale to.
    "sums": Parameters(4096, (54, 54), 30),
}


@dataclass(frozen=True)
class KeyFile:
    """What the file of a key has. Raises InvalidOption.

    key:     names the secret key, and the patterns.
    secret:  None in the server's file.
    encrypt: patterns (* and ?) of the names of the tensors that are encrypted; the others are sent in plain.
    """

    parameters: Parameters
    key: str
    secret: bytes | None
    encrypt: tuple[str, ...] = EVERYTHING

    def __post_init__(self) -> None:
        right = isinstance(self.encrypt, list | tuple) and bool(self.encrypt)
        right = right and all(type(pattern) is str and pattern for pattern in self.encrypt)
        expect(right, "encrypt", self.encrypt, 'names of tensors, or patterns with * and ?, as in "head.*"')
        object.__setattr__(self, "encrypt", tuple(self.encrypt))

    @classmethod
    def of_secret(cls, parameters: Parameters, secret: bytes, encrypt: Sequence[str]) -> KeyFile:
        """Return the file of a new key. Raises InvalidOption."""
        return cls(parameters, _name_of(secret, encrypt), secret, tuple(encrypt))

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, is_secret: bool) -> KeyFile:
        """Read a client's file, or a server's. Raises InvalidOption, which names the file."""
        whose = "the clients' file" if is_secret else "the server's file"

        def wrong(why: str) -> InvalidOption:
            return InvalidOption(f"{path}: {why}; expected {whose} of fl secure-key")

        try:
            with open(path, "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                found = json.loads(file.read(_LARGEST_FILE))
        except OSError as error:
            raise wrong(f"cannot be read ({error.strerror})") from None
        except (ValueError, RecursionError):
            raise wrong("is no JSON") from None
        if not isinstance(found, dict) or found.get("format") not in (_KEY, _CONTEXT):
            raise wrong("is no file of a key")
        if not is_secret and (found["format"] == _KEY or "secret" in found):
            raise wrong("has the secret key, with which this server could read every update: delete it here")
        if is_secret and found["format"] == _CONTEXT:
            raise wrong("is the server's file, without the secret key")
        try:
            key = cls._of(found, is_secret)
        except (InvalidOption, KeyError, TypeError, ValueError) as error:
            raise wrong(f"is damaged: {error}") from None
        if is_secret and mode & (stat.S_IROTH | stat.S_IWOTH):
            raise InvalidOption(f"{path}: all users of this machine may read it; run: chmod 600 {path}")
        return key

    @classmethod
    def _of(cls, found: dict[str, Any], is_secret: bool) -> KeyFile:
        parameters = Parameters(*(found[name] for name in ("degree", "moduli", "scale")))
        key, secret = found["key"], base64.b64decode(found["secret"], validate=True) if is_secret else None
        encrypt = found["encrypt"]
        if type(key) is not str or not key.isalnum() or (secret is not None and _name_of(secret, encrypt) != key):
            raise ValueError("its key has another name")
        return cls(parameters, key, secret, encrypt)

    def write(self, path: Path) -> None:
        """Write a new file; with a secret, for its owner only. Raises InvalidOption if there is one."""
        found: dict[str, Any] = {
            "format": _KEY if self.secret else _CONTEXT,
            "key": self.key,
            **asdict(self.parameters),
            "encrypt": self.encrypt,
        }
        if self.secret is not None:
            found["secret"] = base64.b64encode(self.secret).decode()
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if self.secret else 0o644)
            try:
                with open(fd, "w", encoding="ascii") as file:
                    file.write(json.dumps(found) + "\n")
            except OSError:
                path.unlink()
                raise
        except OSError as error:
            form = "the name of a new file, on a disk with room"
            raise InvalidOption(f"{path}: cannot be written ({error.strerror}); expected {form}") from None


def _name_of(secret: bytes, encrypt: Sequence[str]) -> str:
    named = json.dumps(list(encrypt)).encode() + b"\0" + secret  # JSON has no byte 0, so no other pair is the same
    return hashlib.blake2b(named, digest_size=16, person=b"fl homomorphic").hexdigest()
