"""The parameters of homomorphic encryption, and the files of its keys."""

from __future__ import annotations

import json
import resource
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fl
from fl.homomorphic.context import Context, Key
from fl.homomorphic.options import PARAMETERS, SECURE_BITS, KeyFile, Parameters
from netq.errors import InvalidOption
from tests.fl.homomorphic.keys import files


@pytest.mark.parametrize("name", PARAMETERS)
def test_named_parameters_are_secure_by_the_standard(name: str) -> None:
    parameters = PARAMETERS[name]
    assert sum(parameters.moduli) <= SECURE_BITS[parameters.degree]
    assert parameters.range > 2**20


def test_default_parameters_are_those_of_ciber_cafe() -> None:
    assert PARAMETERS["ciber-cafe"] == Parameters(8192, (60, 40, 40, 60), 40)


@pytest.mark.parametrize(
    ("degree", "moduli", "scale", "why"),
    [
        (4096, (54, 56), 30, "109 bits in all at most for 128-bit security, and not 110"),
        (8192, (60, 40, 59, 60), 40, "218 bits in all at most"),
        (5000, (54, 54), 30, "degree: 5000; expected one of 1024"),
        (4096, (108,), 30, "two or more numbers of bits"),
        (4096, (54, 54), 51, "scale: 51; expected bits, 10 to 50"),
    ],
)
def test_other_parameters_are_refused(degree: int, moduli: tuple[int, ...], scale: int, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        Parameters(degree, moduli, scale)


def test_the_clients_file_is_for_its_owner_only() -> None:
    key, context = files()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert "secret" in json.loads(key.read_text())
    assert "secret" not in json.loads(context.read_text())
    with pytest.raises(InvalidOption, match=r"cannot be written \(File exists\)"):
        KeyFile.read(key, is_secret=True).write(key)


@pytest.mark.parametrize(
    ("options", "name"), [({"noise_multiplier": 1.0}, "noise_multiplier"), ({"certificates": True}, "certificates")]
)
def test_a_policy_promises_nothing_that_ciphertexts_have_not(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidOption, match=f"SecurePolicy.{name}: is of masks"):
        fl.SecurePolicy(key="clients.key", **options)


def test_a_disk_that_is_full_keeps_no_half_of_a_key(tmp_path: Path) -> None:
    file, before = KeyFile.read(files()[0], is_secret=True), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(InvalidOption, match=r"clients.key: cannot be written \(File too large\)"):
            file.write(tmp_path / "clients.key")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [*tmp_path.iterdir()]


def test_a_server_refuses_a_secret_key() -> None:
    with pytest.raises(InvalidOption, match="has the secret key, with which this server could read every update"):
        KeyFile.read(files()[0], is_secret=False)
    with pytest.raises(InvalidOption, match="is the server's file, without the secret key"):
        KeyFile.read(files()[1], is_secret=True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": "another"}, "is no file of a key"),
        ({"key": "00"}, "its key has another name"),
        ({"secret": "c2VjcmV0"}, "its key has another name"),
        ({"moduli": [60] * 9}, "is damaged: moduli"),
        ({"scale": None}, "is damaged: scale"),
    ],
)
def test_damaged_files_are_refused(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = tmp_path / "clients.key"
    path.write_text(json.dumps({**json.loads(files()[0].read_text()), **change}))
    with pytest.raises(InvalidOption, match=why):
        KeyFile.read(path, is_secret=True)


def test_a_key_that_all_users_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clients.key"
    path.write_bytes(files()[0].read_bytes())
    path.chmod(0o644)
    with pytest.raises(InvalidOption, match=r"all users of this machine may read it; run: chmod 600 .*clients\.key"):
        KeyFile.read(path, is_secret=True)
    path.chmod(0o640)
    assert KeyFile.read(path, is_secret=True).secret


def test_a_key_of_other_parameters_than_its_file_says_is_refused() -> None:
    file = KeyFile.read(files()[0], is_secret=True)
    with pytest.raises(InvalidOption, match="of other parameters than its file says"):
        Key(replace(file, parameters=PARAMETERS["ciber-cafe"]))


def test_the_server_has_no_key() -> None:
    context = Context(KeyFile.read(files()[1], is_secret=False))
    assert not context._context.is_private()


def test_without_tenseal_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(InvalidOption, match=r"needs TenSEAL: pip install 'netq-fl\[homomorphic\]'"):
        Context(KeyFile.read(files()[1], is_secret=False))
